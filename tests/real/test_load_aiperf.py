"""The load body with the real AIPerf: against a small fake engine, then against real vLLM on a tiny model."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe import toolchains
from optpipe.backends.evaluators import canary, served
from optpipe.backends.loads.figures import figures
from optpipe.backends.loads.load import Load, Slo
from optpipe.worker import Work
from tests.completions import Body, Stream, serving
from tests.models import tiny_llama

pytestmark = pytest.mark.real

SLO = Slo(ttft_ms={"p90": 150}, tpot_ms={"p90": 100})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model each of whose tokens has a text: half a character has none, so no time to first token."""
    folder = tiny_llama(tmp_path_factory.mktemp("llama"))
    file = folder / "tokenizer.json"
    tokenizer = json.loads(file.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    texts = {k: text for text, k in vocabulary.items() if text.strip("ĠĊ").isascii()}
    tokenizer["model"]["vocab"] = {texts.get(k, f"word{k}"): k for k in range(320)}
    file.write_text(json.dumps(tokenizer))
    return folder


def run_load(folder: Path, url: str, tokenizer: Path, load: Load) -> tuple[int, Body]:
    """The load job as a worker runs it: exit code, and the record or the failure."""
    (folder / "files").mkdir(parents=True)
    job = {
        "kind": "load",
        "options": {**asdict(load), "seed": 3},
        "inputs": {"tokenizer": str(tokenizer)},
        "context": {"url": url, "model": "m"},
        "threads": 1,
        "seed": 1,
    }
    (folder / "job.json").write_text(json.dumps(job))
    toolchain = toolchains.get("load")
    env = toolchain.environment() | {"PYTHONPATH": str(toolchains.worker_source()), "HF_HUB_OFFLINE": "1"}
    command = toolchain.argv("-m", "optpipe.worker", str(folder))
    done = subprocess.run(command, env=env, capture_output=True, timeout=300, start_new_session=True)
    record = folder / ("failure.json" if done.returncode else "record.json")
    return done.returncode, json.loads(record.read_text())


def words(body: Body, first: float = 0.03, gap: float = 0.005) -> Stream:
    """An empty delta at once, the first token after `first` seconds, each other after `gap`."""
    count = int(body["max_tokens"])
    chunks = ((0.0, ""), (first, " one"), *[(gap, " more")] * (count - 1))
    return Stream(chunks, {"prompt_tokens": 64, "completion_tokens": count, "total_tokens": 64 + count})


def test_what_is_sent_and_what_comes_of_it(tmp_path: Path, model: Path) -> None:
    load = Load(concurrency=4, requests=44, input_tokens=64, output_tokens=8)
    with serving(lambda body, _: (200, words(body))) as engine:
        code, record = run_load(tmp_path / "job", engine.url, model, load)
    assert code == 0, record
    prompts = [body["prompt"] for body in engine.asked]
    assert len(prompts) == 48 and len(set(prompts)) == 48 and record["unique_prompts"]
    sent = engine.asked[0]
    assert (sent["max_tokens"], sent["temperature"], sent["ignore_eos"]) == (8, 0, True)
    got = figures(record, load, SLO)
    assert (got.requests, got.failures) == (44, 0)
    assert got.ttft_ms.p50 is not None and 30 <= got.ttft_ms.p50 < 60, "the empty delta is no token"
    assert got.tpot_ms.p50 is not None and 5 <= got.tpot_ms.p50 < 20
    assert {row["output_tokens"] for row in record["rows"]} == {8}
    assert got.requests_per_s.ci95 is not None
    assert len((tmp_path / "job/files/requests.jsonl").read_text().splitlines()) == 44
    assert str(tmp_path) not in json.dumps(record) and engine.url not in json.dumps(record)


def test_failures_are_counted_apart(tmp_path: Path, model: Path) -> None:
    load = Load(concurrency=2, requests=40, input_tokens=32, output_tokens=4)

    def answer(body: Body, number: int) -> tuple[int, Any]:
        return (500, '{"error": {"message": "no room"}}') if number % 4 == 3 else (200, words(body))

    with serving(answer) as engine:
        code, record = run_load(tmp_path / "job", engine.url, model, load)
    assert code == 0, record
    got = figures(record, load, SLO)
    assert got.failures == 10 and got.e2e_ms.n == 30
    assert "no room" in next(row["error"] for row in record["rows"] if not row["ok"])


def test_an_engine_that_answers_nothing_but_errors_is_no_result(tmp_path: Path, model: Path) -> None:
    load = Load(concurrency=2, requests=12, input_tokens=32, output_tokens=4, warmup=0)
    with serving(lambda body, _: (500, '{"error": "dead"}')) as engine:
        code, failure = run_load(tmp_path / "job", engine.url, model, load)
    assert code == 1
    assert "all 12 requests failed" in failure["message"]


def test_arrivals_at_a_rate_with_a_shared_prefix(tmp_path: Path, model: Path) -> None:
    load = Load("rate", request_rate=20.0, requests=60, input_tokens=64, output_tokens=4, shared_prefix_tokens=32)
    with serving(lambda body, _: (200, words(body))) as engine:
        code, record = run_load(tmp_path / "job", engine.url, model, load)
    assert code == 0, record
    got = figures(record, load, SLO)
    assert got.achieved_rate == pytest.approx(20, rel=0.4) and not got.client_limited
    starts = np.array([row["start_s"] for row in record["rows"]])
    spread = np.diff(starts).std() / np.diff(starts).mean()
    assert 0.6 < spread < 1.5, "gaps of Poisson arrivals spread as much as their mean"
    assert len({body["prompt"][:24] for body in engine.asked}) == 1
    assert record["unique_prompts"]


def test_aiperf_ends_with_its_worker(tmp_path: Path, model: Path) -> None:
    """Killing the worker's process group leaves nothing behind: no process of AIPerf leaves the group."""
    folder = tmp_path / "job"
    (folder / "files").mkdir(parents=True)
    load = Load(concurrency=2, requests=500, input_tokens=32, output_tokens=8)
    with serving(lambda body, _: (200, words(body, gap=0.1))) as engine:
        context = {"url": engine.url, "model": "m"}
        job = {
            "kind": "load",
            "options": asdict(load),
            "inputs": {"tokenizer": str(model)},
            "context": context,
        }
        (folder / "job.json").write_text(json.dumps({**job, "threads": 1, "seed": 1}))
        toolchain = toolchains.get("load")
        env = toolchain.environment() | {"PYTHONPATH": str(toolchains.worker_source())}
        command = toolchain.argv("-m", "optpipe.worker", str(folder))
        process = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL, start_new_session=True)
        deadline = time.monotonic() + 60
        while len(engine.asked) < 6 and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(running(folder)) > 2
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        deadline = time.monotonic() + 10
        while running(folder) and time.monotonic() < deadline:
            time.sleep(0.1)
    assert running(folder) == []


def running(folder: Path) -> list[int]:
    """Processes whose working directory or command line lies in `folder`, zombies left out."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            place = str((entry / "cwd").readlink()) if words else ""
        except OSError:
            continue
        if words and (str(folder) in words.decode(errors="replace") or place.startswith(str(folder))):
            found.append(int(entry.name))
    return found


# ---------------------------------------------------------------- vLLM


@pytest.fixture(scope="module")
def vllm(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A real vLLM that serves the tiny model on one thread, without compilation."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    toolchain = toolchains.get("vllm")
    flags = ["--model", str(model), "--served-model-name", "m", "--host", "127.0.0.1", "--port", str(port)]
    flags += ["--enforce-eager", "--kv-cache-memory-bytes", "64M", "--max-model-len", "129"]
    command = toolchain.argv("-m", "vllm.entrypoints.openai.api_server", *flags)
    env = toolchain.environment() | {"OMP_NUM_THREADS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
    log = tmp_path_factory.mktemp("vllm") / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        wait_ready(url, process, log)
        yield url
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)


def wait_ready(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert process.poll() is None, log.read_text()[-3000:]
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    raise AssertionError(f"not ready: {log.read_text()[-3000:]}")


def test_a_load_on_vllm(tmp_path: Path, model: Path, vllm: str) -> None:
    load = Load(concurrency=4, requests=40, input_tokens=64, output_tokens=8)
    code, record = run_load(tmp_path / "job", vllm, model, load)
    assert code == 0, record
    got = figures(record, load, Slo())
    assert got.failures == 0 and got.unique_prompts
    assert {row["output_tokens"] for row in record["rows"]} == {8}
    assert np.mean([row["input_tokens"] for row in record["rows"]]) == pytest.approx(64, rel=0.1)
    assert got.prefix_cache_hit_rate is not None and got.prefix_cache_hit_rate < 0.1


def test_log_probabilities_of_vllm_for_the_same_ids(tmp_path: Path, model: Path, vllm: str) -> None:
    tokens = np.random.default_rng(1).integers(3, 250, (3, 128), dtype=np.int32)
    np.save(tmp_path / "tokens.npy", tokens)
    work = Work({"tokens": tmp_path}, {"url": vllm, "model": "m"}, tmp_path, 1, 1, tmp_path)
    first, again = served.run({}, work), served.run({}, work)
    assert [unit["tokens"] for unit in first["units"]] == [127] * 3
    assert first == again, "the prefix cache does not change what a prompt's tokens are worth"
    assert all(2 < unit["nll"] / 127 < 20 for unit in first["units"])


def test_the_canary_gets_tokens_and_finite_log_probabilities(tmp_path: Path, model: Path, vllm: str) -> None:
    work = Work({}, {"url": vllm, "model": "m"}, tmp_path, 1, 1, tmp_path)
    record = canary.run({"max_tokens": 24}, work)
    assert len(record["answers"]) == len(canary.PROMPTS)
    assert all(answer["finite"] and answer["tokens"] for answer in record["answers"])
