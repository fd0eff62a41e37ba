"""SHA-256 of bytes, JSON values, files and folders."""

from __future__ import annotations

import hashlib
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

from optpipe.records import canonical
from optpipe.rundir.files import tree_files

CHUNK = 1 << 22


def digest_bytes(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    return digest_bytes(canonical(value))


def digest_file(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha.update(chunk)
    return "sha256:" + sha.hexdigest()


class DigestMemo:
    """SHA-256 of files, remembered by device, inode, size, mtime and ctime in nanoseconds.

    A file that changed within the last two seconds is not remembered: its times could stay
    the same under a further change.
    """

    def __init__(self, database: Path) -> None:
        database.parent.mkdir(parents=True, exist_ok=True)
        self._db = sqlite3.connect(database, timeout=60, check_same_thread=False)
        self._lock = threading.Lock()
        with self._lock, self._db:
            self._db.execute("create table if not exists digests (id text primary key, digest text)")

    def file(self, path: Path) -> str:
        stat = path.stat()
        ident = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}"
        with self._lock:
            row = self._db.execute("select digest from digests where id = ?", (ident,)).fetchone()
        if row:
            return str(row[0])
        digest = digest_file(path)
        settled = time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > 2_000_000_000
        if settled:
            with self._lock, self._db:
                self._db.execute("insert or replace into digests values (?, ?)", (ident, digest))
        return digest

    def tree(self, folder: Path) -> tuple[str, dict[str, str]]:
        """The digest of a folder, and of each file in it by its relative path."""
        files = {str(p.relative_to(folder)): self.file(p) for p in tree_files(folder)}
        return digest_json(files), files
