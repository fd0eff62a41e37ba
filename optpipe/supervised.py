"""A command under its supervisor, as the build sees it: what to run, how it ended, how to stop it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import psutil

from optpipe.processes import Ident, Live, end_live, live_folder
from optpipe.records import from_json, to_json
from optpipe.rundir import read_json

Why = Literal["exited", "signalled", "time", "memory", "stopped", "orphaned", "not started", "lost"]


@dataclass(frozen=True)
class Command:
    """What to run: `env` whole, output to `log`; `memory_bytes` 0 means no limit."""

    title: str
    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: Path
    log: Path
    status: Path
    timeout_s: float
    memory_bytes: int = 0
    grace_s: float = 10.0


@dataclass(frozen=True)
class Ended:
    """How it ended; `peak_memory_bytes` is the most that all its processes held at once."""

    why: Why
    exit_code: int | None = None
    signal: int | None = None
    peak_memory_bytes: int = 0
    seconds: float = 0.0
    memory_limit_bytes: int = 0
    timeout_s: float = 0.0
    kernel_killed: bool = False
    removed: tuple[str, ...] = ()
    left: tuple[int, ...] = ()
    detail: str = ""

    @property
    def ok(self) -> bool:
        return self.why == "exited" and self.exit_code == 0

    def reason(self) -> str:
        """The sentence for a person."""
        peak = f"peak {human(self.peak_memory_bytes)}"
        if self.why == "memory":
            return f"killed for memory: {peak} of limit {human(self.memory_limit_bytes)}"
        if self.why == "signalled" and self.signal == signal.SIGKILL:
            total = human(psutil.virtual_memory().total)
            by = "the kernel, out of memory" if self.kernel_killed else "someone, or the kernel out of memory"
            return f"killed with signal 9 by {by}: {peak}, this machine has {total}"
        if self.why == "signalled":
            return f"died of {signal.Signals(self.signal or 0).name} ({peak})"
        return {
            "time": f"stopped after its time limit of {self.timeout_s:g} s",
            "stopped": "stopped by the build",
            "orphaned": "ended because the build died",
            "not started": f"could not be started: {self.detail}",
            "lost": "its supervisor was killed",
        }.get(self.why, f"ended with exit code {self.exit_code}")


def human(size: int) -> str:
    return f"{size / 2**30:.2f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"


class Supervised:
    """A command under its supervisor, seen from the build. `locks`: held until the last process is gone."""

    def __init__(self, command: Command, locks: tuple[int, ...] = ()) -> None:
        self.command = command
        self.id = uuid.uuid4().hex
        self.started = time.monotonic()
        build = Ident.of(os.getpid())
        assert build, "a running process has a start time"
        order = {**to_json(command), "id": self.id, "build": [build.pid, build.start]}
        command.status.unlink(missing_ok=True)
        self._process = self._spawn(locks)
        assert self._process.stdin, "opened as a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    def _spawn(self, locks: tuple[int, ...]) -> subprocess.Popen[bytes]:
        source = str(Path(__file__).parents[1])
        path = os.pathsep.join(filter(None, (source, os.environ.get("PYTHONPATH"))))
        with self.command.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "optpipe.supervisor"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": path},
                start_new_session=True,
                pass_fds=locks,
                bufsize=0,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait(self, timeout_s: float | None = None) -> Ended | None:
        """How it ended, or None if it still runs after `timeout_s`."""
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None
        if self._process.stdin:
            self._process.stdin.close()
        try:
            return from_json(Ended, read_json(self.command.status))
        except (FileNotFoundError, ValueError, TypeError):
            return self._lost(code)

    def _lost(self, code: int) -> Ended:
        """The supervisor ended without a word: end what it watched."""
        if read := Live.read(live_folder() / f"{self.id}.json"):
            end_live(read[0])
        seconds = time.monotonic() - self.started
        return Ended("lost", seconds=seconds, detail=f"supervisor ended with {code}")

    def stop(self) -> Ended:
        """End the command and everything below it; returns when nothing is left."""
        if self._process.stdin and not self._process.stdin.closed:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.write(b"stop\n")
            self._process.stdin.close()
        ended = self.wait()
        assert ended, "waited without a limit"
        return ended
