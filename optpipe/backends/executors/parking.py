"""Engines that run: one with what it holds, and those that a session has left for the next of the same kind."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field

from optpipe.backends.executors.engine_run import Engine
from optpipe.backends.executors.resources import Grant
from optpipe.records import Start

PARKED_SHARE = 0.5
"""Of the machine's memory, at most so much is left to engines that nobody uses."""


@dataclass
class Running:
    """An engine, its grant, and the stack that ends it and lets go of what it holds."""

    identity: str
    engine: Engine
    grant: Grant
    held: contextlib.ExitStack
    memory_bytes: int
    served: list[str] = field(default_factory=list)
    """Keys of the jobs that ran against it."""
    start: Start | None = None
    """How it started, where it compiles then."""

    def end(self) -> None:
        self.held.close()


class Parking:
    """Idle engines by identity, each ready for the next session of exactly its configuration.

    The one that has been idle longest is ended where memory is wanted for something else. Thread-safe.
    """

    def __init__(self, memory_bytes: int) -> None:
        self._limit = int(PARKED_SHARE * memory_bytes)
        self._parked: list[Running] = []
        self._lock = threading.Lock()

    def leave(self, running: Running) -> None:
        """Park an engine, or end it if it is lost, holds GPUs, or there is no room for it."""
        if running.grant.gpus or running.memory_bytes > self._limit or running.engine.trouble():
            running.end()
            return
        with self._lock:
            self._parked.append(running)
        while self._held() > self._limit:
            self.make_room()

    def take(self, identity: str) -> Running | None:
        """The parked engine of this identity, if it is still well; it is the caller's now."""
        with self._lock:
            found = next((one for one in self._parked if one.identity == identity), None)
            self._parked = [one for one in self._parked if one is not found]
        if found is not None and found.engine.verdict():
            found.end()
            return None
        return found

    def make_room(self) -> bool:
        """End the engine that has been idle longest; False where none is parked."""
        with self._lock:
            oldest = self._parked.pop(0) if self._parked else None
        if oldest is not None:
            oldest.end()
        return oldest is not None

    def clear(self) -> None:
        """End all of them."""
        while self.make_room():
            pass

    def _held(self) -> int:
        with self._lock:
            return sum(one.memory_bytes for one in self._parked)
