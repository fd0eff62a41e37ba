"""Stands between a build and one job or engine, so that nothing outlives the build.

    python -m optpipe.supervisor      (standard input: one line of JSON, then a pipe that the build holds)

It runs the command in its own session, adopts every orphan below it, watches time and memory, notes the
shared-memory files mapped there, and when the pipe closes (the build died, even by kill -9), when it is
told to stop, or when a limit is broken: SIGTERM to the group, a grace period, SIGKILL to every
descendant, until none is left; then it removes those files and writes a status for the build.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from optpipe.processes import (
    MARK,
    Ident,
    Live,
    descendants,
    end_all,
    files_in_shared_memory,
    mapped_files,
    proportional_bytes,
    resident_bytes,
    scratch_folder,
)
from optpipe.records import Json, from_json
from optpipe.rundir import write_json
from optpipe.supervised import Command, Ended, Why

SAMPLE_S = 0.25
MAPS_EVERY = 4
MAXRSS_UNIT = 1024 if sys.platform == "linux" else 1
ORPHAN_GRACE_S = 4.0
LEFT_BEHIND_GRACE_S = 2.0


@dataclass
class Watch:
    """What is seen of the command while it runs."""

    command: Command
    live: Live
    before: set[tuple[str, int]] = field(default_factory=files_in_shared_memory)
    there: set[tuple[str, int]] = field(default_factory=set)
    peak: int = 0
    samples: int = 0

    def group(self) -> list[Ident]:
        """Everything below: adopted orphans too, and off Linux, where none is adopted, who was seen."""
        found = {*descendants(os.getpid()), *(ident for ident in self.live.seen if ident.alive())}
        return sorted(found, key=lambda ident: ident.pid)

    def sample(self, maps: bool = False) -> int:
        """Memory of the group now; its members and its mapped files go on record.

        Maps are long to read, so every few samples only, and at once where new shared memory has appeared.
        """
        group = self.group()
        seen, shm = set(group), set(self.live.shm)
        there = files_in_shared_memory()
        appeared, self.there = there - self.there, there
        if maps or appeared or self.samples % MAPS_EVERY == 0:
            shm = shm.union(*(mapped_files(ident.pid) for ident in group)) - self.before
        self.samples += 1
        if seen != self.live.seen or shm != self.live.shm:
            self.live.seen, self.live.shm = seen, shm
            self.live.write()
        used = resident_bytes(group)
        if 0 < self.command.memory_bytes < used:
            used = proportional_bytes(group) or used
        self.peak = max(self.peak, used)
        return used


class Supervisor:
    """Runs one command to its end; `end()` leaves nothing of it."""

    def __init__(self, command: Command, live: Live) -> None:
        self.command = command
        self.live = live
        self.watch = Watch(command, live)
        self.started = time.monotonic()
        self.kernel_kills = kernel_kills()
        self.code: int | None = None
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, pipe: int, wake: int) -> Ended:
        self.live.write()
        try:
            self._process = self._start()  # kept: a Popen that is collected reaps its process unseen
            self.pid = self._process.pid
        except OSError as error:
            return self._ended("not started", [], detail=f"{self.command.argv[0]}: {error.strerror}")
        why = self._until(pipe, wake)
        graces: dict[Why, float] = {"exited": LEFT_BEHIND_GRACE_S, "memory": 1.0, "orphaned": ORPHAN_GRACE_S}
        left = self._end(min(graces.get(why, self.command.grace_s), self.command.grace_s))
        if why == "exited" and self.code is not None and self.code < 0:
            why = "signalled"
        return self._ended(why, left)

    def _start(self) -> subprocess.Popen[bytes]:
        self.live.scratch.mkdir(mode=0o700, exist_ok=True)
        env = {**self.command.env, MARK: self.live.id, "TMPDIR": str(self.live.scratch)}
        with self.command.log.open("ab") as log:
            process = subprocess.Popen(
                self.command.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=env,
                cwd=self.command.cwd,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        with contextlib.suppress(OSError):  # the kernel, short of memory, takes the job, not the build
            Path(f"/proc/{process.pid}/oom_score_adj").write_text("500")
        return process

    def _until(self, pipe: int, wake: int) -> Why:
        """Watch until something says that it is over; what that was."""
        while True:
            ready, _, _ = select.select([pipe, wake], [], [], SAMPLE_S)
            if wake in ready:
                numbers = os.read(wake, 4096)
                if any(n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP) for n in numbers):
                    return "stopped"
            if pipe in ready:
                return "stopped" if os.read(pipe, 4096) else "orphaned"
            self._reap()
            if self.code is not None:
                return "exited"
            used = self.watch.sample()
            if 0 < self.command.memory_bytes < used:
                return "memory"
            if time.monotonic() - self.started > self.command.timeout_s:
                return "time"

    def _reap(self) -> None:
        """Collect every ended child, adopted ones too; keep the command's own exit code."""
        with contextlib.suppress(ChildProcessError):
            while (pair := os.waitpid(-1, os.WNOHANG))[0]:
                if pair[0] == self.pid:
                    self.code = os.waitstatus_to_exitcode(pair[1])

    def _end(self, grace_s: float) -> list[Ident]:
        """SIGTERM to the group, the grace period, then SIGKILL until nobody is left.

        All stand still while it is noted what shared memory they map, or one could map more and die unseen.
        """
        still = self._remaining()
        for ident in still:
            ident.send(signal.SIGSTOP)
        self.watch.sample(maps=True)
        if still:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGTERM)
        for ident in still:
            ident.send(signal.SIGCONT)
        grace = time.monotonic() + grace_s
        while self._remaining() and time.monotonic() < grace:
            self.watch.sample()
            time.sleep(0.05)
        return end_all(self._remaining, 0.0)

    def _remaining(self) -> list[Ident]:
        self._reap()
        return self.watch.group()

    def _ended(self, why: Why, left: list[Ident], detail: str = "") -> Ended:
        code = self.code
        largest = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * MAXRSS_UNIT
        removed = () if left else tuple(self.live.clean())
        return Ended(
            why,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            peak_memory_bytes=max(self.watch.peak, largest),
            seconds=time.monotonic() - self.started,
            memory_limit_bytes=self.command.memory_bytes,
            timeout_s=self.command.timeout_s,
            kernel_killed=kernel_kills() > self.kernel_kills,
            removed=removed,
            left=tuple(ident.pid for ident in left),
            detail=detail,
        )


def adopt_orphans() -> None:
    """Become the parent of every orphan below (Linux: PR_SET_CHILD_SUBREAPER)."""
    _prctl(36, 1)


def die_with_parent() -> None:
    """In the command: SIGTERM when the supervisor dies (Linux: PR_SET_PDEATHSIG)."""
    _prctl(1, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def kernel_kills() -> int:
    """How many processes the kernel has killed for memory since boot; 0 where it doesn't say."""
    vmstat = Path("/proc/vmstat")
    text = vmstat.read_text(encoding="ascii") if vmstat.exists() else ""
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith("oom_kill "))


def read_order(pipe: int) -> Json:
    with os.fdopen(os.dup(pipe), "rb", buffering=0) as file:
        order: Json = json.loads(file.readline())
    return order


def wake_on_signals() -> int:
    """A file descriptor that gets a byte for each signal that matters here."""
    read, write = os.pipe()
    os.set_blocking(read, False)
    os.set_blocking(write, False)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: None)
    return read


def main() -> int:
    wake = wake_on_signals()
    adopt_orphans()
    order = read_order(0)
    ident, build = str(order.pop("id")), Ident(*order.pop("build"))
    command = from_json(Command, order)
    me = Ident.of(os.getpid())
    assert me, "a running process has a start time"
    ended = Supervisor(command, Live(ident, command.title, build, me, scratch_folder(ident))).run(0, wake)
    write_json(command.status, asdict(ended))
    return 0


if __name__ == "__main__":
    sys.exit(main())
