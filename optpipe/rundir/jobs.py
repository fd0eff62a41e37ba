"""Kept results of jobs: "already done?"."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from optpipe.records import Artifact, JobResult, Json
from optpipe.rundir.code import CodeStore
from optpipe.rundir.digests import DigestMemo
from optpipe.rundir.files import folder_bytes, locked, read_json, remove_tree, sync_tree, write_json


class JobStore:
    """Results of jobs under the SHA-256 of all they depend on.

    jobs/<key>/record.json     the job's record, key parts, digests, seconds, peak memory
    jobs/<key>/files/          what it wrote (may be dropped by `keep:`; the record stays)
    locks/<key>                held while the job runs
    work/<key>.<pid>/          a job at work; renamed when whole
    compiled/<key>/            code that engines compile when they start (rundir/code.py)
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @functools.cached_property
    def memo(self) -> DigestMemo:
        """Made at first use: looking at a wrong recipe leaves no cache behind."""
        return DigestMemo(self.root / "digests.sqlite")

    @property
    def code(self) -> CodeStore:
        """What engines compile when they start."""
        return CodeStore(self.root / "compiled")

    def folder(self, key: str) -> Path:
        return self.root / "jobs" / key.removeprefix("sha256:")

    def lock_file(self, key: str) -> Path:
        return self.root / "locks" / key.removeprefix("sha256:")

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        with locked(self.lock_file(key)):
            yield

    def get(self, key: str) -> JobResult | None:
        """The kept result, or None. Its files may have been dropped: see `has_files`."""
        path = self.folder(key) / "record.json"
        try:
            kept = read_json(path)
        except (FileNotFoundError, json.JSONDecodeError):
            return None
        files = Artifact(self.folder(key) / "files", kept["files"])
        return JobResult(key, kept["record"], files, True, kept["seconds"], kept["peak_memory_bytes"])

    def has_files(self, key: str) -> bool:
        return (self.folder(key) / "files").is_dir()

    def failure(self, key: str) -> Json | None:
        """A definite failure that was kept; one that may be passing never is."""
        try:
            return dict(read_json(self.folder(key) / "failure.json"))
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def keep_failure(self, key: str, failure: Json) -> None:
        write_json(self.folder(key) / "failure.json", failure)

    def work_folder(self, key: str) -> Path:
        """An empty folder for one run of the job; leftovers of dead runs of it are removed."""
        base = self.root / "work"
        base.mkdir(parents=True, exist_ok=True)
        name = key.removeprefix("sha256:")
        for old in base.glob(f"{name}.*"):
            remove_tree(old)
        folder = base / f"{name}.{os.getpid()}"
        (folder / "files").mkdir(parents=True)
        return folder

    def put(self, key: str, work: Path, record: Json, *, parts: Json, seconds: float, peak: int) -> JobResult:
        """Make what is in `work/files` the kept result: digest, fsync, rename. Call under `lock`."""
        target = self.folder(key)
        digest, manifest = self.memo.tree(work / "files")
        sync_tree(work / "files")
        self._discard(target / "files")
        target.mkdir(parents=True, exist_ok=True)
        (work / "files").replace(target / "files")
        kept = {"record": record, "files": digest, "manifest": manifest, "parts": parts}
        write_json(target / "record.json", {**kept, "seconds": seconds, "peak_memory_bytes": peak})
        (target / "failure.json").unlink(missing_ok=True)
        remove_tree(work)
        return JobResult(key, record, Artifact(target / "files", digest), False, seconds, peak)

    def derived(self, key: str, name: str, compute: Callable[[Path], Json]) -> Json:
        """What `compute` says of a job's files, kept beside its record so that it outlives the files."""
        path = self.folder(key) / f"{name}.json"
        if not path.exists():
            write_json(path, compute(self.folder(key) / "files"))
        return dict(read_json(path))

    def beside(self, key: str, name: str) -> Json | None:
        """What was kept beside a job's record (`derived`, `keep_beside`), or None."""
        path = self.folder(key) / f"{name}.json"
        return dict(read_json(path)) if path.exists() else None

    def keep_beside(self, key: str, name: str, facts: Json) -> None:
        """Keep what became known of a job after its end."""
        write_json(self.folder(key) / f"{name}.json", facts)

    def drop_files(self, key: str) -> int:
        """Forget the files of a kept job, not its record; the bytes freed."""
        folder = self.folder(key) / "files"
        size = folder_bytes(folder)
        self._discard(folder)
        return size

    def _discard(self, folder: Path) -> None:
        """Remove a folder so that it is never seen half: by a rename first. What killed builds left goes too."""
        work = self.root / "work"
        work.mkdir(parents=True, exist_ok=True)
        if folder.is_dir():
            folder.replace(work / f"dropped.{os.getpid()}.{time.monotonic_ns()}")
        for old in work.glob("dropped.*"):
            shutil.rmtree(old, ignore_errors=True)
