"""The code that engines compile when they start, kept for their next start.

<key>/              what the engine wrote; an engine executes it, so it is its user's alone (0700)
<key>/starting.*    an engine is on its way up; where nobody uses the folder, one that never got there left it
<key>.lock          held, shared, by every engine that uses the folder, until the last of its processes is gone
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from optpipe.errors import EnvironmentMissing
from optpipe.records import Json, Start

PLACE = "{compiled}"
"""Stands for the folder in an engine's variables."""
STARTING = "starting."


@dataclass
class KeptFolder:
    """The folder of one key, held by one engine as long as it lives."""

    path: Path
    lock: int
    """To be handed to whoever ends last."""
    ident: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self._mark = self.path / f"{STARTING}{self.ident}"
        self._found = contents(self.path)
        self._mark.touch(mode=0o600)

    def started(self, seconds: float, told: Json) -> Start:
        """The engine is up: what lies here is whole."""
        self._mark.unlink(missing_ok=True)
        left = contents(self.path)
        found_bytes, added = sum(self._found.values()), len(left.keys() - self._found.keys())
        return Start(self.ident, seconds, found_bytes, sum(left.values()), added, told)

    @property
    def empty(self) -> bool:
        """Whether nothing was here when it was taken."""
        return not self._found

    @property
    def suspect(self) -> bool:
        """Whether what was found here may be why its engine is not up: the next one that takes it finds nothing."""
        return not self.empty and self._mark.exists()

    def close(self) -> None:
        """Let go of it; the engine's own hold on the lock ends with its last process."""
        os.close(self.lock)


class CodeStore:
    """Folders of compiled code by key."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, key: str) -> Path:
        return self.root / key.removeprefix("sha256:")

    def hold(self, key: str) -> KeptFolder:
        """The folder for a key, empty if it is new or if who filled it never got ready.

        Raises EnvironmentMissing where it is not this user's alone.
        """
        folder = self.folder(key)
        private(self.root)
        lock = self._lock(key)
        try:
            if _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB) and any(folder.glob(f"{STARTING}*")):
                self._discard(folder)
            fcntl.flock(lock, fcntl.LOCK_SH)
            os.utime(lock)
            private(folder)
            return KeptFolder(folder, lock)
        except BaseException:
            os.close(lock)
            raise

    def __iter__(self) -> Iterator[str]:
        """Every key that there is a folder for."""
        found = sorted(self.root.iterdir()) if self.root.is_dir() else []
        return (f"sha256:{path.name}" for path in found if path.is_dir() and "." not in path.name)

    def used(self, key: str) -> float:
        """When an engine last took the folder: seconds since the epoch."""
        lock = self.folder(key).with_suffix(".lock")
        return lock.stat().st_mtime if lock.exists() else 0.0

    def drop(self, key: str) -> int:
        """Forget what is kept under a key; the bytes freed, 0 where an engine uses it."""
        folder = self.folder(key)
        if not folder.is_dir():
            return 0
        lock = self._lock(key)
        try:
            if not _locked(lock, fcntl.LOCK_EX | fcntl.LOCK_NB):
                return 0
            size = sum(contents(folder).values())
            self._discard(folder)
            return size
        finally:
            os.close(lock)

    def _lock(self, key: str) -> int:
        path = self.folder(key).with_suffix(".lock")
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def _discard(self, folder: Path) -> None:
        """Remove it by a rename first, so that nobody takes half of it; what killed builds left goes too."""
        if folder.is_dir():
            folder.replace(self.root / f"dropped.{os.getpid()}.{time.monotonic_ns()}")
        for old in self.root.glob("dropped.*"):
            shutil.rmtree(old, ignore_errors=True)


def private(folder: Path) -> None:
    """Make sure of a folder that only this user can write to. Raises EnvironmentMissing where it is another's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        found = folder.lstat()
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
        if not ours or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            told = f"owner {found.st_uid}, mode {stat.filemode(found.st_mode)}; expected {os.geteuid()}, drwx------"
            hint = "what lies there would be executed: look who made it, remove it, and build again"
            raise EnvironmentMissing(f"others can write here: {told}", place=str(folder), hint=hint) from None


def contents(folder: Path) -> dict[str, int]:
    """Bytes of each file below a folder; one that another engine removes meanwhile is left out."""
    found = {}
    for root, _, names in os.walk(folder):
        for name in names:
            path = Path(root, name)
            with contextlib.suppress(FileNotFoundError):
                found[str(path.relative_to(folder))] = path.lstat().st_size
    return {name: size for name, size in found.items() if not name.startswith(STARTING)}


def _locked(handle: int, how: int) -> bool:
    try:
        fcntl.flock(handle, how)
    except BlockingIOError:
        return False
    return True
