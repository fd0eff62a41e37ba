"""Who works with a folder of kept jobs: builds share it, whoever drops files from it needs it alone."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

NAME = "in-use.lock"


class InUse:
    """A lock on a cache, held by the kernel for a living process; nothing is on disk before `hold`."""

    def __init__(self, root: Path) -> None:
        self._path = root / NAME
        self._handle: int | None = None

    def hold(self) -> None:
        """From now on nobody else drops what is kept there; waits for one who is just doing it."""
        fcntl.flock(self._opened(), fcntl.LOCK_SH)

    @contextlib.contextmanager
    def alone(self) -> Iterator[bool]:
        """Whether nobody else works there; if so, nobody begins to within the block. What was held is let go."""
        try:
            fcntl.flock(self._opened(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
        finally:
            self._close()

    def __enter__(self) -> InUse:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._close()

    def _opened(self) -> int:
        if self._handle is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        return self._handle

    def _close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
