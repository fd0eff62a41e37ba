"""The shipped locks, really installed from an empty OPTPIPE_HOME."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from optpipe import toolchains
from optpipe.rundir import remove_tree
from optpipe.toolchains import lock, managed

pytestmark = pytest.mark.real


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty OPTPIPE_HOME, removed afterwards: gigabytes."""
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    for name in ("SSL_CERT_FILE", "SSL_CERT_DIR"):  # the certificate must come from pip's configuration
        monkeypatch.delenv(name, raising=False)
    yield tmp_path / "home"
    remove_tree(tmp_path / "home")


def run(toolchain: toolchains.Toolchain, *arguments: str) -> str:
    command = toolchain.argv(*arguments)
    env = toolchain.environment()
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=True)
    return done.stdout


def test_quantize_runs_from_an_empty_home(home: Path) -> None:
    toolchain = toolchains.get("quantize", {"quantize": toolchains.Managed(accelerator="cpu")})
    text = run(toolchain, "-c", "import torch; print(torch.__version__, torch.cuda.is_available())")
    assert text.split() == ["2.13.0+cpu", "False"]
    assert toolchain.versions["llmcompressor"] == "0.14.0.1"
    assert (home / "toolchains").is_dir()


def test_vllms_own_command_starts(home: Path) -> None:
    toolchain = toolchains.get("vllm", {"vllm": toolchains.Managed(accelerator="cpu")})
    vllm = Path(toolchain.python[0]).with_name("vllm")
    done = subprocess.run([vllm, "--version"], env=toolchain.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0].startswith("0.32.0+cpu")


def test_the_load_generator_starts_without_torch(home: Path) -> None:
    toolchain = toolchains.get("load")
    aiperf = Path(toolchain.python[0]).with_name("aiperf")
    done = subprocess.run([aiperf, "--version"], env=toolchain.environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0.13.0" in done.stdout
    assert "torch" not in toolchain.versions


@pytest.mark.parametrize("name", managed.names())
def test_locks_resolve(name: str) -> None:
    assert lock.stale(name) == []
