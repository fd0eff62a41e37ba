"""Which release a plan goes by: found by metadata and by what an image says of itself, with nothing started."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe.backends.engines import tensorrt_llm
from optpipe.backends.engines.tensorrt_llm import TensorRtLlm
from optpipe.cli.check import releases
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.stages.check import check
from optpipe.toolchains import Image, Interpreter
from optpipe.toolchains.found import release_of
from tests.models import tiny_llama

IMAGE = "trt@sha256:" + "0" * 64
H100 = named("h100")


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def python(folder: Path, packages: dict[str, str]) -> Path:
    """Answers the one question that is asked of a toolchain's Python: what is installed."""
    about = {"python": "3.12.3", "implementation": "CPython", "machine": "x86_64", "folders": []}
    told = json.dumps({**about, "packages": {name: [version, "x"] for name, version in packages.items()}})
    return program(folder / "python3", f"case \"$*\" in */scan.py) echo '{told}';; *) exit 9;; esac")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")


def test_by_the_metadata_of_a_named_python_or_of_the_command_on_path(tmp_path: Path) -> None:
    found = python(tmp_path, {"tensorrt-llm": "1.2.1"})
    named_ = release_of("tensorrt_llm", "tensorrt-llm", {"tensorrt_llm": Interpreter(str(found))})
    assert (named_.version, named_.told) == ("1.2.1", f"in {found}")
    (tmp_path / "trtllm-serve").write_text(f"#!{found}\n")
    (tmp_path / "trtllm-serve").chmod(0o755)
    assert release_of("tensorrt_llm", "tensorrt-llm", {}).version == "1.2.1"


def test_what_is_not_there_is_not_known_and_says_why(tmp_path: Path) -> None:
    absent = release_of("tensorrt_llm", "tensorrt-llm", {})
    assert absent.version is None and "there is no trtllm-serve on PATH" in absent.told
    other = {"tensorrt_llm": Interpreter(str(python(tmp_path, {"torch": "2.9.1"})))}
    assert "has no tensorrt-llm installed" in release_of("tensorrt_llm", "tensorrt-llm", other).told


@pytest.mark.parametrize(("text", "version", "told"), [
    ("""echo '["PATH=/bin","TRT_LLM_VERSION=1.2.0"]'""", "1.2.0", f"in {IMAGE}"),
    ("""echo '["PATH=/bin"]'""", None, "does not say it by TRT_LLM_VERSION"),
    ("echo null", None, "does not say it by TRT_LLM_VERSION"),
    ("echo 'No such image' >&2; exit 1", None, "docker does not show trt@sha256"),
    ("sleep 60", None, "timed out"),
])  # fmt: skip
def test_an_image_is_looked_at_where_it_lies_and_never_run(
    tmp_path: Path, text: str, version: str | None, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("optpipe.toolchains.found.TIMEOUT_S", 0.5)
    program(tmp_path / "docker", f"case \"$1 $2\" in 'image inspect') {text};; *) echo ran > {tmp_path}/ran;; esac")
    settings = {"tensorrt_llm": Image(("docker", "run", "--rm", "--gpus", "all", IMAGE))}
    found = release_of("tensorrt_llm", "tensorrt-llm", settings)
    assert found.version == version and told in found.told, found
    assert not (tmp_path / "ran").exists()


def test_another_container_program_is_not_asked(tmp_path: Path) -> None:
    sif = tmp_path / "trt.sif"
    sif.touch()
    found = release_of("tensorrt_llm", "tensorrt-llm", {"tensorrt_llm": Image(("apptainer", "exec", str(sif)))})
    assert found.version is None and "apptainer is not asked" in found.told


def test_check_goes_by_the_release_that_is_found_here(tmp_path: Path) -> None:
    """A compressed-tensors FP8 checkpoint is served as it is from 1.3 on, and not before."""
    facts = replace(facts_of_folder(tiny_llama(tmp_path / "m")), quantized="compressed-tensors 8-bit fp8")

    def told(release: str) -> tuple[str, str]:
        python(tmp_path, {"tensorrt-llm": release})
        (tmp_path / "trtllm-serve").write_text(f"#!{tmp_path / 'python3'}\n")
        (tmp_path / "trtllm-serve").chmod(0o755)
        (one,) = (e for e in check(facts, H100, {}, releases()).engines if e.engine == "TensorRT-LLM")
        return one.outcome, " ".join(f"{finding.value} {finding.reason}" for finding in one.findings)

    assert told("1.3.0")[0] == "ok" and "TensorRT-LLM 1.3.0 on" in told("1.3.0")[1]
    assert told("1.2.1")[0] == "no" and "builds engines (trtllm-build)" in told("1.2.1")[1]


@pytest.mark.parametrize(("target", "release", "why"), [
    (TensorRtLlm(backend="tensorrt"), "1.3.0", "trtllm-build ended with 1.3.0rc20"),
    (TensorRtLlm(backend="tensorrt"), "1.2.1", None),
    (TensorRtLlm(kv_cache_dtype="nvfp4"), "1.2.1", "no NVFP4 KV cache"),
    (TensorRtLlm(kv_cache_dtype="nvfp4", backend="pytorch"), "1.2.1", None),
    (TensorRtLlm(kv_cache_dtype="nvfp4"), "1.3.0", None),
    (TensorRtLlm(backend="tensorrt"), None, None),
])  # fmt: skip
def test_a_plan_knows_what_the_release_has_not(target: TensorRtLlm, release: str | None, why: str | None) -> None:
    reasons = [reason for _, _, reason, _ in tensorrt_llm.here(target, H100, release) if reason]
    assert (why is None and reasons == []) or (why is not None and why in reasons[0])
