"""ONNX Runtime as a target: what is compiled, which graphs are refused, and how its server answers and takes turns."""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.compilers.onnxruntime import EMBEDDING, HEAD, Options, command, unexpected
from optpipe.backends.engines import files, onnxruntime
from optpipe.backends.engines.onnxruntime import OnnxRuntime
from optpipe.backends.engines.onnxruntime_server import Server, Text
from optpipe.backends.evaluators.client import Engine, Refused
from optpipe.backends.evaluators.parity import prompt_logprobs
from optpipe.backends.executors.keys import Keys
from optpipe.records import Artifact, Hardware, Job, Json, bound_to, foreign
from tests.fakes.site import toolchain

CPU = Hardware("laptop", "cpu", 8, 16 << 30, "avx2")
GPU = Hardware("server", "cpu", 64, 1 << 38, "avx2", gpu="H200", gpus=1, compute_capability="9.0", driver="580.1")
W4 = {"method": "gptq", "bits": 4, "group_size": 64}


# ---------------------------------------------------------------- the target


def test_the_base_is_compiled_to_what_the_target_says_and_a_checkpoint_keeps_its_codes() -> None:
    plain = onnxruntime.compiling(OnnxRuntime(), None, CPU)
    assert (plain.options["precision"], plain.changes, plain.bits) == ("fp32", None, None)
    eight = onnxruntime.compiling(OnnxRuntime(precision="int8", accuracy_level=4), None, CPU)
    assert eight.bits == 8.0 and "int8" in str(eight.changes) and "8 bits" in str(eight.changes)
    codes = onnxruntime.compiling(OnnxRuntime(precision="int8"), W4, CPU)
    assert "precision" not in codes.options and codes.changes is None
    assert (codes.kind, codes.score) == ("compile-onnxruntime", "score-onnxruntime")


def test_threads_and_length_reach_the_server_and_its_revision_the_key() -> None:
    model = Artifact(Path("/m"), "sha256:m")
    spec = onnxruntime.spec("t", OnnxRuntime(max_model_len=512), model, {"max_num_seqs": 8}, CPU, threads=2)
    assert files.read_yaml(spec.config_text) == spec.config
    assert spec.config == {"max-num-seqs": 8, "max-model-len": 512, "threads": 2, "revision": onnxruntime.REVISION}
    assert spec.environment["PYTHONPATH"] == "{source}", "the folder that workers import from is put in at the start"


def test_a_head_that_is_to_be_quantized_in_a_graph_of_float32_is_wrong() -> None:
    (problem,) = onnxruntime.problems(OnnxRuntime(quantize_head=True), "targets.ort", True)
    assert problem.place == "targets.ort.quantize_head"


def test_what_an_artifact_is_bound_to_is_compared_word_by_word() -> None:
    made = bound_to("tensorrt_llm", "1.2.0", GPU)
    assert foreign(made, made) is None
    newer = bound_to("tensorrt_llm", "1.2.0", Hardware(**{**vars(GPU), "driver": "590.0"}))
    assert foreign(made, newer) == "it was compiled for driver 580.1, here 590.0"
    assert "compute_capability 9.0, here None" in str(foreign(made, bound_to("tensorrt_llm", "1.2.0", CPU)))


@pytest.mark.parametrize("change", [{"driver": "590.0"}, {"gpu": "B200", "compute_capability": "10.0"}])
def test_another_driver_or_gpu_makes_a_new_key_for_what_is_compiled_or_measured_and_for_nothing_else(
    change: dict[str, str],
) -> None:
    here, there = (Keys(machine, lambda kind: 1) for machine in (GPU, Hardware(**{**vars(GPU), **change})))
    jobs = {
        "compile": Job("compile-onnxruntime", "c", "ort", {}, bound_to_hardware=True),
        "load": Job("load", "l", "load", {}, bound_to_hardware=True),
        "quantize": Job("quantize", "q", "quantize", {}),
        "score": Job("score-onnxruntime", "s", "ort", {}),
    }
    chain = toolchain("ort")
    changed = {name for name, job in jobs.items() if here.parts(job, chain) != there.parts(job, chain)}
    assert changed == {"compile", "load"}


# ---------------------------------------------------------------- the graph


def packed(count: int, level: int = 1) -> list[Json]:
    one = {"bits": 4, "block_size": 32, "accuracy_level": level}
    return [{"name": f"/layers.{n}/MatMul_Q4", **one} for n in range(count)]


def nodes(**more: list[Json]) -> dict[str, list[Json]]:
    return {"GroupQueryAttention": [{"name": "a"}, {"name": "b"}], "MatMul": [{"name": HEAD}], **more}


INT4 = Options(precision="int4")


def test_a_graph_as_asked_is_taken() -> None:
    assert unexpected(nodes(MatMulNBits=packed(10)), INT4, 2, quantized=False) is None
    assert unexpected(nodes(MatMul=[{"name": f"/{n}"} for n in range(9)]), Options(), 2, quantized=False) is None
    assert unexpected(nodes(MatMulNBits=packed(10)), Options(), 2, quantized=True) is None


@pytest.mark.parametrize(
    ("found", "chosen", "told"),
    [
        (nodes(MatMulNBits=packed(10), MatMul=[]), INT4, "not among the MatMuls that were left alone"),
        (nodes(MatMulNBits=packed(10), GatherBlockQuantized=[{"name": "e"}]), INT4, "embedding is quantized"),
        (nodes(MatMulNBits=packed(10), MatMul=[{"name": HEAD}, {"name": "/layers.0/up"}]), INT4, "/layers.0/up"),
        (nodes(MatMulNBits=packed(10, level=4)), INT4, "accuracy levels {4: 10}"),
        (nodes(MatMulNBits=packed(1)), INT4, "1 quantized MatMuls for 2 layers"),
        (nodes(MatMulNBits=packed(3)), Options(), "3 quantized MatMuls in a graph of float32"),
        (nodes(GroupQueryAttention=[{"name": "a"}]), Options(), "1 attention nodes for 2 layers"),
    ],
)
def test_a_graph_that_is_not_as_asked_is_refused(found: dict[str, list[Json]], chosen: Options, told: str) -> None:
    """Options that the builder does not know are ignored without a word."""
    assert told in str(unexpected(found, chosen, 2, quantized=False))


def test_what_is_left_alone_and_the_accuracy_level_are_always_said() -> None:
    for chosen, quantized in ((INT4, False), (Options(), True), (Options(), False)):
        words = command(chosen, Path("m"), Path("o"), Path("c"), quantized=quantized)
        assert f"nodes_to_exclude={HEAD},{EMBEDDING}" in words and "accuracy_level=1" in words
    assert not any("block_size" in word for word in command(INT4, Path("m"), Path("o"), Path("c"), quantized=True))


# ---------------------------------------------------------------- the server


class Letters:
    """A tokenizer: a letter is a token, `|` the end, and 200 with 201 one character in two halves."""

    def encode(self, text: str) -> Any:
        return type("Encoding", (), {"ids": [ord(letter) for letter in text]})()

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        text = "".join("\ufffd" if one == 200 else "" if one == 201 else chr(one) for one in ids)
        text = text.replace("\ufffd", "é") if 201 in ids else text
        return text.replace("|", "") if skip_special_tokens else text


class Alphabet:
    """A model that goes on with the alphabet after its prompt's last letter, and notes whose turn it was."""

    longest = 64
    vocabulary = 256
    ends = frozenset({ord("|")})

    def __init__(self) -> None:
        self.tokenizer = Letters()
        self.turns: list[str] = []
        self.go = threading.Event()
        self.go.set()

    def generator(self, asked: Any) -> Any:
        self.go.wait(10)
        if asked.ids[0] == ord("!"):
            raise RuntimeError("no memory for it")
        if asked.prompt_logprobs:
            asked.prompt = [None, *({str(one): {"logprob": -float(one)}} for one in asked.ids[1:])]
        return Letter(asked.ids[-1], asked.max_tokens)

    def step(self, made: Any, asked: Any) -> tuple[int, float | None]:
        self.turns.append(chr(asked.ids[0]))
        made.at, made.left = made.at + 1, made.left - 1
        return made.at, -0.5 if asked.logprobs else None


class Letter:
    def __init__(self, at: int, left: int) -> None:
        self.at, self.left = at, left

    def is_done(self) -> bool:
        return self.left == 0 or self.at == ord("|")


@pytest.fixture
def served() -> Iterator[tuple[Engine, Alphabet]]:
    model = Alphabet()
    server = Server(("127.0.0.1", 0), "letters", model, 2)  # type: ignore[arg-type]
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield Engine(f"http://127.0.0.1:{server.server_address[1]}", "letters", 10.0), model
    server.shutdown()
    server.server_close()


def test_it_answers_as_the_canary_and_the_comparison_ask(served: tuple[Engine, Alphabet]) -> None:
    engine, _ = served
    choice = engine.complete("abc", max_tokens=3, temperature=0, logprobs=1)
    assert (choice["text"], choice["finish_reason"]) == ("def", "length")
    assert choice["logprobs"] == {"tokens": ["d", "e", "f"], "token_logprobs": [-0.5] * 3}
    assert prompt_logprobs(engine, [97, 98, 99]) == [-98.0, -99.0]
    assert engine.healthy()


def test_an_end_a_stop_string_and_a_failure_are_told(served: tuple[Engine, Alphabet]) -> None:
    engine, _ = served
    assert engine.complete("z", max_tokens=9)["finish_reason"] == "stop"
    stopped = engine.complete("a", max_tokens=9, stop=["de"])
    assert (stopped["text"], stopped["finish_reason"]) == ("bc", "stop")
    with pytest.raises(Refused, match="no memory for it") as failed:
        engine.complete("!", max_tokens=2)
    assert failed.value.status == 500 and engine.complete("a", max_tokens=1)["text"] == "b"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"prompt": "a", "max_tokens": 64}, "more than max_model_len 64"),
        ({"prompt": []}, "neither a text nor a list"),
        ({"prompt": "a", "echo": True}, "not offered"),
        ({"prompt": [97, True]}, "neither a text nor a list"),
        ({"prompt": [97, 256]}, "token id 256 is not among the model's 256"),
        ({"prompt": "a", "max_tokens": "many"}, "max_tokens is .*many.*, not of type int"),
        ({"prompt": "a", "max_tokens": 0}, "not above 0"),
        ({"prompt": "a", "temperature": [1]}, "temperature is \\[1\\], not of type float"),
        ({"prompt": "a", "top_p": 0}, "not above 0 and at most 1"),
        ({"prompt": "a", "seed": True}, "seed is true, not of type int"),
        ({"prompt": "a", "stop": [1]}, "stop is neither"),
    ],
)
def test_what_cannot_be_answered_is_refused_with_400(
    served: tuple[Engine, Alphabet], words: dict[str, Any], told: str
) -> None:
    with pytest.raises(Refused, match=told) as refused:
        served[0].complete(**words)
    assert refused.value.status == 400


def posted(engine: Engine, body: bytes, headers: dict[str, str] | None = None) -> tuple[int, str]:
    """The status and text of an answer to a body as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", int(engine.url.rpartition(":")[2]), timeout=10)
    connection.request("POST", "/v1/completions", body, headers or {})
    answer = connection.getresponse()
    found = answer.status, answer.read().decode()
    connection.close()
    return found


def test_a_body_that_is_no_request_is_refused_with_400(served: tuple[Engine, Alphabet]) -> None:
    for body in (b"{", b"\xff", b"[]", b'"a"', b"null"):
        status, told = posted(served[0], body)
        assert status == 400 and "invalid_request_error" in told, told
    assert posted(served[0], b"{}", {"Content-Length": "two"})[0] == 400


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_ours_is_500_and_in_the_log_and_the_next_request_is_answered(
    served: tuple[Engine, Alphabet], capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    engine, model = served
    with monkeypatch.context() as broken:
        broken.setattr(model, "tokenizer", None)
        status, told = posted(engine, json.dumps({"prompt": "a", "stream": stream}).encode())
    assert status == 500 and "internal error" in told and "NoneType" not in told
    end, log = time.monotonic() + 10, ""
    while "AttributeError: 'NoneType' object has no attribute 'encode'" not in log:
        assert time.monotonic() < end, log
        time.sleep(0.01)
        log += capfd.readouterr().err
    assert engine.complete("a", max_tokens=1)["text"] == "b"


def test_two_requests_take_turns_and_a_third_waits(served: tuple[Engine, Alphabet]) -> None:
    engine, model = served
    model.go.clear()
    answers: queue.Queue[str] = queue.Queue()

    def ask(letter: str) -> None:
        answers.put(engine.complete(letter, max_tokens=4)["text"])

    asked = [threading.Thread(target=ask, args=(letter,)) for letter in "ace"]
    for one in asked:
        one.start()
    model.go.set()
    for one in asked:
        one.join(10)
    assert sorted(answers.get_nowait() for _ in asked) == ["bcde", "defg", "fghi"]
    last = model.turns[-1]
    assert len(model.turns) == 12 and len(set(model.turns[:6])) <= 2, "at most two at once"
    assert model.turns.count(last) == 4


def test_a_stream_is_events_of_text_then_usage_then_done(served: tuple[Engine, Alphabet]) -> None:
    engine, _ = served
    connection = http.client.HTTPConnection("127.0.0.1", int(engine.url.rpartition(":")[2]), timeout=10)
    body = {"model": "letters", "prompt": "a", "max_tokens": 3, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    lines = [line.removeprefix("data: ") for line in connection.getresponse().read().decode().split("\n\n") if line]
    connection.close()
    assert lines.pop() == "[DONE]"
    events = [json.loads(line) for line in lines]
    assert "".join(event["choices"][0]["text"] for event in events[:-1]) == "bcd"
    assert events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] == 3


def test_half_a_character_waits_for_the_other_half() -> None:
    text = Text(Letters(), special=False)
    assert [text.add(token) for token in (97, 200, 201)] == ["a", "", "é"]
