"""Cores, memory and GPUs of one machine, handed out first come, first served; and who may measure alone.

Locks that other builds see are files locked by flock, which the kernel drops when the last holder is
gone. They are asked for again and again, never slept on, so that a build can be stopped while it waits.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from optpipe.errors import EnvironmentMissing, Interrupted
from optpipe.records import Needs

POLL_S = 0.1
SAY_AFTER_S = 2.0
WAIT_ALONE = "waiting for another build's work to end, to measure alone"
WAIT_SHARED = "waiting for another build that is measuring"


class Patience:
    """Waiting that can be called off, and that says what it waits for once it takes long."""

    def __init__(self, stop: threading.Event, say: Callable[[str], None], what: str) -> None:
        self._stop, self._say, self._what = stop, say, what
        self._since = time.monotonic()
        self._said = False

    def turn(self) -> None:
        """Wait a moment. Raises Interrupted when the build is being stopped."""
        if self._stop.wait(POLL_S):
            raise Interrupted(f"stopped while {self._what}")
        self.mention()

    def mention(self) -> None:
        if not self._said and time.monotonic() - self._since > SAY_AFTER_S:
            self._said = True
            self._say(self._what)


def open_shared(path: Path) -> int:
    """A lock file that every user of the machine can open, whoever made it; links are not followed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for flags in (os.O_RDWR | os.O_CREAT | os.O_EXCL, os.O_RDONLY):
        try:
            handle = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            continue
        if flags & os.O_CREAT:
            os.fchmod(handle, 0o666)
        return handle
    raise AssertionError(f"{path} is neither new nor there")


def try_lock(path: Path, *, shared: bool = False) -> int | None:
    """The descriptor that holds the lock, or None while another holds it; closing it lets go."""
    handle = open_shared(path)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


@contextlib.contextmanager
def held(path: Path, patience: Patience, *, shared: bool = False) -> Iterator[int]:
    """Hold the lock for the block; the descriptor can be handed to a supervisor, which then holds it too."""
    while (handle := try_lock(path, shared=shared)) is None:
        patience.turn()
    try:
        yield handle
    finally:
        os.close(handle)


@contextlib.contextmanager
def machine_lock(path: Path, patience: Patience, *, shared: bool) -> Iterator[int]:
    """The machine-wide lock: alone to measure, shared by all other work.

    Everyone passes a gate first, one at a time; who waits to be alone waits inside it, so later
    sharers cannot starve it.
    """
    with contextlib.ExitStack() as stack:
        with held(path.with_suffix(".gate"), patience):
            handle = stack.enter_context(held(path, patience, shared=shared))
        yield handle


@dataclass(frozen=True)
class Grant:
    """What a job got: GPUs by name, and the descriptors of the locks that go with it."""

    gpus: tuple[str, ...] = ()
    locks: tuple[int, ...] = ()


@dataclass(frozen=True)
class Machine:
    """All that can be handed out."""

    cpus: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()


@dataclass
class Free:
    """What is free of it, or what one job takes."""

    cpus: int
    memory: int
    gpus: int


class Resources:
    """The machine as one build hands it out. A request never overtakes an earlier one, so none starves.

    Who measures alone waits until nothing works and nothing that could work waits: what a build has to do
    beside measuring is bounded, and done side by side first. What is merely resident (an idle engine) has
    its memory and counts as no work. `make_room` gives up something idle where memory is short; False if it can't.
    """

    def __init__(
        self,
        total: Machine,
        lock: Path,
        stop: threading.Event,
        say: Callable[[str], None],
        make_room: Callable[[], bool] = lambda: False,
    ) -> None:
        self._total = total
        self._make_room = make_room
        self._lock, self._stop, self._say = lock, stop, say
        self._free = Free(total.cpus, total.memory_bytes, len(total.gpus))
        self._changed = threading.Condition()
        self._queue: list[Free] = []
        self._alone: list[Free] = []
        self._running = 0

    @contextlib.contextmanager
    def take(self, needs: Needs, threads: int) -> Iterator[Grant]:
        """Wait for what is needed and hold it for the block. Raises EnvironmentMissing, Interrupted."""
        if needs.gpus > len(self._total.gpus):
            raise EnvironmentMissing(
                f"{needs.gpus} GPUs are needed and this machine shows {len(self._total.gpus)}",
                hint="check `nvidia-smi` and CUDA_VISIBLE_DEVICES, or choose a CPU target",
            )
        whole = needs.exclusive and not needs.gpus
        cpus = self._total.cpus if whole else min(self._total.cpus, max(needs.cpus, threads))
        want = Free(cpus, min(self._total.memory_bytes, needs.memory_bytes), needs.gpus)
        self._wait_for(want, whole)
        try:
            with contextlib.ExitStack() as stack:
                patience = Patience(self._stop, self._say, WAIT_ALONE if whole else WAIT_SHARED)
                machine = stack.enter_context(machine_lock(self._lock, patience, shared=not whole))
                names, locks = self._lock_gpus(needs.gpus, stack)
                yield Grant(names, (machine, *locks))
        finally:
            self._give_back(want)

    @contextlib.contextmanager
    def resident(self, memory_bytes: int) -> Iterator[Grant]:
        """Hold memory for something that lies idle most of the time; what it does takes cores by itself."""
        want = Free(0, min(self._total.memory_bytes, memory_bytes), 0)
        self._wait_for(want, whole=False)
        self._idle(+1)
        try:
            yield Grant()
        finally:
            self._idle(-1)
            self._give_back(want)

    def _idle(self, more: int) -> None:
        with self._changed:
            self._running -= more
            self._changed.notify_all()

    def _wait_for(self, want: Free, whole: bool) -> None:
        queue = self._alone if whole else self._queue
        with self._changed:
            queue.append(want)
            try:
                while queue[0] is not want or not self._fits(want, whole):
                    if queue[0] is want and want.memory > self._free.memory and self._make_room():
                        continue
                    self._changed.wait(POLL_S)
                    if self._stop.is_set():
                        raise Interrupted("stopped while waiting for cores, memory or a GPU")
                self._free.cpus -= want.cpus
                self._free.memory -= want.memory
                self._free.gpus -= want.gpus
                self._running += 1
            finally:
                queue[:] = [other for other in queue if other is not want]
                self._changed.notify_all()

    def _fits(self, want: Free, whole: bool) -> bool:
        if whole:
            return self._running == 0 and not (self._queue and self._has(self._queue[0]))
        return self._has(want)

    def _has(self, want: Free) -> bool:
        free = self._free
        return want.cpus <= free.cpus and want.memory <= free.memory and want.gpus <= free.gpus

    def _give_back(self, want: Free) -> None:
        with self._changed:
            self._free.cpus += want.cpus
            self._free.memory += want.memory
            self._free.gpus += want.gpus
            self._running -= 1
            self._changed.notify_all()

    def _lock_gpus(self, count: int, stack: contextlib.ExitStack) -> tuple[tuple[str, ...], list[int]]:
        """`count` GPUs that no job of any build uses; all of them or none, so that nobody waits in a ring."""
        patience = Patience(self._stop, self._say, "waiting for a GPU that another build uses")
        while True:
            taken: dict[str, int] = {}
            for name in self._total.gpus:
                if len(taken) < count:
                    handle = try_lock(self._lock.with_name(f"optpipe-gpu-{slug(name)}.lock"))
                    taken.update({name: handle} if handle is not None else {})
            if len(taken) == count:
                for handle in taken.values():
                    stack.callback(os.close, handle)
                return tuple(taken), list(taken.values())
            for handle in taken.values():
                os.close(handle)
            patience.turn()


def slug(text: str) -> str:
    """A file name part: lower-case letters, digits, dots and dashes."""
    kept = "".join(c if c.isalnum() or c in ".-" else "-" for c in text.lower())
    return "-".join(filter(None, kept.split("-")))[:80] or "x"
