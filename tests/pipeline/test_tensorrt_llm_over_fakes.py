"""TensorRT-LLM at its documented interface over stand-in commands, on a machine that says that it has a GPU."""

from __future__ import annotations

import json
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe.errors import InputError
from optpipe.model.hardware import this_machine
from optpipe.serve import toolchain_for
from optpipe.toolchains import Interpreter, get
from tests.fakes.place import Done, Place, wait_for
from tests.unit.test_deploy import free_port

TRT: dict[str, Any] = {"engine": "tensorrt_llm", "max_model_len": 512}
FP8 = {"method": "fp8"}
AWQ = {"library": "modelopt", "method": "awq", "group_size": 32}
SMALL: dict[str, Any] = {"publish": [{"registry": "folder"}], "tune": {"trials": 1}}


def new(root: Path, release: str, **keys: Any) -> Place:
    place = Place.new(root / "place")
    place.tensorrt_llm(release)
    place.gpu()
    place.recipe |= {**SMALL, "targets": {"trt": TRT}, **keys}
    return place


def record(place: Place, candidate: str) -> dict[str, Any]:
    return dict(json.loads((place.artifacts / "latest" / "05-compile" / candidate / "record.json").read_text()))


@pytest.fixture(scope="module")
def current(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Done]:
    place = new(
        tmp_path_factory.mktemp("current"), "1.3.0", checkpoints={"fp8": FP8, "awq": AWQ, "int8": {"method": "int8"}}
    )
    return place, place.build()


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Done]:
    place = new(tmp_path_factory.mktemp("old"), "1.2.1", checkpoints={"awq": AWQ, "fp8": FP8})
    return place, place.build()


def test_from_1_3_on_checkpoints_are_served_as_they_are(current: tuple[Place, Done]) -> None:
    place, done = current
    assert done.code == 0, done.err
    for name in ("base@trt", "fp8@trt", "awq@trt"):
        assert done.status(name) == "passed", done.reasons(name)
        assert done.said["candidates"][name]["output_tokens_per_s"]
        made = record(place, name)
        assert (made["built"], made["engine_version"], made["bound_to"]) == (False, "1.3.0", {})


def test_the_bundle_has_the_configuration_and_says_that_no_hardware_was_seen(current: tuple[Place, Done]) -> None:
    place, _ = current
    package = place.artifacts / "latest" / "package"
    text = (package / "engine" / "trtllm.yaml").read_text()
    assert text.startswith("# not run on hardware here")
    assert yaml.safe_load(text)["max_seq_len"] == 512
    assert any(
        "not run on hardware here" in note for note in json.loads((package / "optpipe.json").read_text())["notes"]
    )
    assert "not run on hardware here" in (place.artifacts / "latest" / "report.md").read_text()


def test_what_it_cannot_load_is_refused_in_the_plan(current: tuple[Place, Done]) -> None:
    plan = json.loads((current[0].artifacts / "latest" / "02-plan.json").read_text())
    refused = {one["candidate"]: one["reason"] for one in plan["refused"]}
    assert (
        refused.keys() == {"int8@trt"}
        and "takes a compressed-tensors INT8 W8A8 checkpoint for FP8" in refused["int8@trt"]
    )


def test_up_to_1_2_engines_are_built_and_bound_to_release_and_gpu(old: tuple[Place, Done]) -> None:
    place, done = old
    assert done.code == 0, done.err
    made = record(place, "awq@trt")
    assert (made["built"], made["engine_version"], made["how"]) == (True, "1.2.1", "engine by trtllm-build")
    assert made["bound_to"] == {
        "engine": "tensorrt_llm",
        "version": "1.2.1",
        "gpu": "NVIDIA H100 80GB HBM3",
        "compute_capability": "9.0",
        "driver": "580.65",
    }
    assert made["limits"]["max_model_len"] == 512 and made["limits"]["max_batch_size"] == 256
    assert made["details"]["quantization"] == "W4A16_AWQ"
    assert "--gather_context_logits" in made["details"]["command"]
    names = {path.name for path in Path(made["path"]).iterdir()}
    assert {"rank0.engine", "config.json", "tokenizer.json"} <= names
    assert done.status("awq@trt") == "passed", done.reasons("awq@trt")


def test_a_plan_goes_by_the_release_that_is_found(old: tuple[Place, Done], current: tuple[Place, Done]) -> None:
    """Up to 1.2 an engine is not built from compressed-tensors; from 1.3 on the checkpoint is served as it is."""
    place, done = old
    plan = json.loads((place.artifacts / "latest" / "02-plan.json").read_text())
    (refused,) = plan["refused"]
    assert refused["candidate"] == "fp8@trt" and "builds engines (trtllm-build) from its own" in refused["reason"]
    assert done.status("fp8@trt") == "skipped" and "TensorRT-LLM 1.3 or later" in done.reasons("fp8@trt")
    assert any(note.startswith("judged by TensorRT-LLM 1.2.1, found in ") for note in plan["warnings"])
    newer = json.loads((current[0].artifacts / "latest" / "02-plan.json").read_text())
    assert "fp8@trt" in {one["candidate"]["name"] for one in newer["feasible"]}
    assert any(note.startswith("judged by TensorRT-LLM 1.3.0, found in ") for note in newer["warnings"])


def test_a_plan_for_elsewhere_or_without_it_says_that_the_release_is_not_known(
    current: tuple[Place, Done], tmp_path: Path
) -> None:
    place = current[0].copied(tmp_path / "place")
    there = place.run("plan", "recipe.yaml", "--hardware", "h100", "--json").said["warnings"]
    assert any("which TensorRT-LLM will be found is not known" in note and "on h100" in note for note in there)
    why = place.run("plan", "recipe.yaml", "--why", "fp8@trt")
    assert "TensorRT-LLM 1.3.0 on NVIDIA H100" in why.out, why.out + why.err
    del place.pythons["tensorrt_llm"]
    here = place.run("plan", "recipe.yaml", "--json").said["warnings"]
    assert any("there is no trtllm-serve on PATH" in note for note in here)


def test_absent_it_is_skipped_and_where_required_an_error(tmp_path: Path) -> None:
    place = new(tmp_path, "1.3.0", checkpoints={"fp8": FP8}, targets={"vllm": {"engine": "vllm"}, "trt": TRT})
    del place.pythons["tensorrt_llm"]
    done = place.build()
    assert (done.code, done.status("fp8@trt")) == (0, "skipped"), done.err
    assert "there is no trtllm-serve on PATH" in done.reasons("fp8@trt")
    required = place.build("--require-target", "trt")
    assert required.code == 3 and "there is no trtllm-serve on PATH" in required.err


def test_asking_1_3_for_an_engine_says_what_replaced_it(tmp_path: Path) -> None:
    place = new(tmp_path, "1.3.0", checkpoints={}, targets={"trt": {**TRT, "backend": "tensorrt"}})
    done = place.build()
    assert (
        done.code == 2
        and "trtllm-build ended with 1.3.0rc20" in done.err
        and "loads the checkpoint as it is" in done.err
    )


def test_keys_that_the_release_has_not_are_refused(tmp_path: Path) -> None:
    target = {**TRT, "engine_args": {"cuda_graph_config.batch_sizes": [1, 2]}}
    place = new(tmp_path, "1.2.1", checkpoints={}, targets={"trt": target})
    done = place.build()
    assert done.code == 2 and "this TensorRT-LLM has no key cuda_graph_config" in done.err


def test_another_release_or_gpu_builds_and_measures_again(old: tuple[Place, Done], tmp_path: Path) -> None:
    place = old[0].copied(tmp_path / "place")
    place.gpu("NVIDIA L4", "8.9")
    done = place.build()
    assert done.code == 0, done.err
    assert record(place, "awq@trt")["bound_to"]["gpu"] == "NVIDIA L4"
    assert place.build().jobs["run"] == 0


def test_an_engine_of_another_release_is_not_served(
    old: tuple[Place, Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = old[0].copied(tmp_path / "place")
    place.tensorrt_llm("1.1.0")
    monkeypatch.setenv("OPTPIPE_HOME", str(place.root / "home"))
    chain = get("tensorrt_llm", {"tensorrt_llm": Interpreter(str(place.pythons["tensorrt_llm"]))})
    monkeypatch.setattr("optpipe.serve.toolchains.get", lambda *words: chain)
    about = {
        "candidate": "awq@trt",
        "target": {"engine": "tensorrt_llm"},
        "requirements": {"platform": "cuda"},
        "compiled": {"bound_to": record(place, "awq@trt")["bound_to"]},
    }
    gpu = replace(this_machine(), gpu="NVIDIA H100 80GB HBM3", gpus=1, compute_capability="9.0", driver="580.65")
    with pytest.raises(InputError, match=r"compiled for version 1\.2\.1, here 1\.1\.0") as refused:
        toolchain_for(about, gpu)
    assert "compile it anew here: `optpipe build recipe.resolved.yaml`" in str(refused.value.hint)


def test_nvfp4_on_blackwell_and_a_quantized_kv_cache(tmp_path: Path) -> None:
    targets = {"trt": {**TRT, "kv_cache_dtype": "nvfp4", "cuda_graphs": True}}
    place = new(tmp_path, "1.3.0", checkpoints={"nvfp4": {"method": "nvfp4"}}, targets=targets)
    place.gpu("NVIDIA B200", "10.0")
    done = place.build()
    assert done.status("nvfp4@trt") == "passed", done.reasons("nvfp4@trt") + done.err
    keys = yaml.safe_load((place.artifacts / "latest" / "package" / "engine" / "trtllm.yaml").read_text())
    assert keys["kv_cache_config"] == {"dtype": "nvfp4", "enable_block_reuse": False}
    assert keys["cuda_graph_config"] == {"enable_padding": True}


# ---------------------------------------------------------------- bundles of another engine


def test_a_bundle_that_it_loads_carries_a_configuration_that_starts_and_says_unmeasured(
    fresh: Callable[..., Place], tmp_path: Path
) -> None:
    """The base, measured on vLLM; started by the command that stands in the file."""
    place = fresh(checkpoints={}, **SMALL)
    done = place.build()
    package = place.artifacts / "latest" / "package"
    about = json.loads((package / "optpipe.json").read_text())
    assert (about["target"]["engine"], about["method"]) == ("vllm", None), done.err
    text = (package / "engine" / "trtllm.yaml").read_text()
    first, second, third, command = (line.removeprefix("# ") for line in text.splitlines()[:4])
    assert first.startswith("unmeasured") and second.startswith("not run on hardware here")
    assert "compute capability 8.0 or more" in third, "bfloat16 needs no more"
    assert yaml.safe_load(text) == {"max_batch_size": 2, "max_num_tokens": 8192}, "the recipe's two requests at once"
    place.tensorrt_llm("1.3.0")
    port = free_port()
    where = ["--backend", "pytorch", "--host", "127.0.0.1", "--port", str(port), "--served_model_name", "tiny"]
    words = command.replace("<this folder>", str(package)).split()
    with started(place, [*words, *where], cwd=package, log=tmp_path / "log", port=port):
        assert '"tiny"' in answers(port, "/v1/models")


def test_a_bundle_that_it_does_not_load_carries_none(built: tuple[Place, Done]) -> None:
    """The winner is INT8 or GPTQ, and neither is anything for TensorRT-LLM."""
    package = built[0].artifacts / "latest" / "package"
    about = json.loads((package / "optpipe.json").read_text())
    assert about["target"]["engine"] == "vllm" and about["method"] in ("int8", "gptq")
    assert not (package / "engine" / "trtllm.yaml").exists()


@contextmanager
def started(place: Place, words: list[str], *, cwd: Path, log: Path, port: int) -> Iterator[None]:
    """A stand-in command of the place's TensorRT-LLM, once it answers."""
    env = place.environment() | {"TRTLLM_NO_USAGE_STATS": "1"}
    with log.open("wb") as out:
        own = place.pythons["tensorrt_llm"].parent / words[0]
        server = subprocess.Popen([own, *words[1:]], cwd=cwd, env=env, stdout=out, stderr=out)
    try:
        assert wait_for(lambda: answers(port, "/health") or server.poll() is not None, 30), log.read_text()
        assert server.poll() is None, log.read_text()
        yield
    finally:
        server.terminate()
        server.wait(30)


def answers(port: int, path: str) -> str:
    """Status and body of an answer, empty while there is none."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return f"{answer.status} {answer.read().decode()}"
    except OSError:
        return ""


# ---------------------------------------------------------------- trtllm-bench


@pytest.mark.parametrize(("generation", "candidate"), [("current", "fp8@trt"), ("old", "awq@trt")])
def test_its_own_benchmark_stands_beside_what_was_served_and_ranks_nothing(
    generation: str, candidate: str, request: pytest.FixtureRequest
) -> None:
    place, done = request.getfixturevalue(generation)
    latest = place.artifacts / "latest"
    told = json.loads((latest / "07-benchmark" / f"{candidate}.json").read_text())
    found = told["offline"]
    assert found["tool"] == "trtllm-bench" and found["reason"] == "" and found["job"]
    assert found["command"].startswith(f"trtllm-bench --model {candidate} --model_path MODEL throughput --backend")
    assert ("--engine_dir" in found["command"]) == (generation == "old")
    assert found["figures"]["requests"] == told["figures"]["requests"] == 60
    assert found["figures"]["ttft_ms"]["p50"] == pytest.approx(50), "the stand-in's own"
    said = done.said["candidates"][candidate]["output_tokens_per_s"]["value"]
    assert said == told["figures"]["output_tokens_per_s"]["value"], "the served figure is the candidate's"
    report = (latest / "report.md").read_text()
    assert "| Without a server | By |" in report and f"| {candidate} | trtllm-bench | " in report
    assert "ranks nothing" in (latest / "report.html").read_text()


def test_a_benchmark_that_fails_is_told_and_ends_nothing(current: tuple[Place, Done], tmp_path: Path) -> None:
    place = current[0].copied(tmp_path / "place")
    (place.pythons["tensorrt_llm"].parent / "trtllm-bench").unlink()
    place.recipe["load"] = {**place.recipe["load"], "requests": 50}
    done = place.build()
    assert (done.code, done.status("fp8@trt")) == (0, "passed"), done.err
    told = json.loads((place.artifacts / "latest" / "07-benchmark" / "fp8@trt.json").read_text())
    assert told["offline"]["figures"] is None and "there is no trtllm-bench beside it" in told["offline"]["reason"]
    assert "none: TensorRT-LLM 1.3.0 is installed" in (place.artifacts / "latest" / "report.md").read_text()


# ---------------------------------------------------------------- deployed, served


@pytest.mark.parametrize("generation", ["current", "old"])
def test_what_deploy_writes_starts_the_version(
    generation: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """The command and files of the container, but for where they lie; the stand-in checks each word, key and file."""
    place, done = request.getfixturevalue(generation)
    reference = str(place.artifacts / "latest" / "package")
    told = place.run("deploy", reference, "--for", "compose", "--out", str(tmp_path / "config"), "--image", "trt:1")
    assert told.code == 0 and "note: not run on hardware here" in told.err, told.err
    words = yaml.safe_load((tmp_path / "config" / "compose.yaml").read_text())["services"]["engine"]["entrypoint"]
    assert done.said["winner"].endswith("@trt") and words[0] == "trtllm-serve"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "tiny").symlink_to(reference)
    port = free_port()
    moved = {"0.0.0.0": "127.0.0.1", "8000": str(port)}
    argv = [moved.get(w, w) if not w.startswith(("/model/", "/config/")) else f"{tmp_path}{w}" for w in words]
    with started(place, argv, cwd=tmp_path, log=tmp_path / "log", port=port):
        assert '"tiny"' in answers(port, "/v1/models")


def test_serve_ends_with_sigterm_and_leaves_nothing(current: tuple[Place, Done], tmp_path: Path) -> None:
    """As a container's runtime ends it: the first process has no default for the signal."""
    place = current[0].copied(tmp_path / "place")
    place.on_path = [place.pythons.pop("tensorrt_llm").parent]
    port = free_port()
    served = place.command("serve", str(place.artifacts / "latest" / "package"), "--port", str(port))
    try:
        assert wait_for(lambda: answers(port, "/health") or served.poll() is not None, 60)
        served.send_signal(signal.SIGTERM)
        _, err = served.communicate(timeout=30)
    finally:
        served.kill()
    assert served.returncode == 0 and "stopping" in err, err
    assert wait_for(lambda: not place.processes() and not place.live(), 15)


def test_its_commands_on_path_are_enough(tmp_path: Path) -> None:
    place = new(tmp_path, "1.3.0", checkpoints={})
    place.on_path = [place.pythons.pop("tensorrt_llm").parent]
    done = place.build()
    assert (done.code, done.status("base@trt")) == (0, "passed"), done.err
    assert record(place, "base@trt")["engine_version"] == "1.3.0"
