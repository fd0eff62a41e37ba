"""Where things are kept: digests, locks, atomic writes, numbered run folders, "already done?"."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optpipe.records import Artifact, JobResult, Json, canonical, to_json

CHUNK = 1 << 22


# ---------------------------------------------------------------- atomic writes


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside, fsync, rename: a reader sees the old content or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, (json.dumps(to_json(value), indent=2, ensure_ascii=False) + "\n").encode())


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_tree(folder: Path) -> None:
    """fsync every file and folder below `folder`, so that a rename publishes whole content."""
    for root, _, files in os.walk(folder):
        for name in files:
            handle = os.open(Path(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        sync_folder(Path(root))


def remove_tree(path: Path) -> None:
    """Remove a folder, read-only content included; nothing there is fine."""
    if path.is_symlink() or path.is_file():
        path.unlink()
        return
    for root, _, _ in os.walk(path):
        Path(root).chmod(0o755)
    if path.exists():
        shutil.rmtree(path)


# ---------------------------------------------------------------- digests


def digest_bytes(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    return digest_bytes(canonical(value))


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


def digest_file(path: Path) -> str:
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha.update(chunk)
    return "sha256:" + sha.hexdigest()


def tree_files(folder: Path) -> list[Path]:
    """Every file below `folder`, sorted by relative path; links are followed for files only."""
    found = [Path(root, name) for root, _, files in os.walk(folder) for name in files]
    return sorted(found, key=lambda p: str(p.relative_to(folder)))


# ---------------------------------------------------------------- locks


@contextlib.contextmanager
def locked(path: Path, *, shared: bool = False) -> Iterator[None]:
    """Hold an advisory lock on `path`; the kernel drops it when the holder dies."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


# ---------------------------------------------------------------- kept jobs


class JobStore:
    """Results of jobs under the SHA-256 of all they depend on.

    jobs/<key>/record.json     the job's record, key parts, digests, seconds, peak memory
    jobs/<key>/files/          what it wrote (may be dropped by `keep:`; the record stays)
    locks/<key>                held while the job runs
    work/<key>.<pid>/          a job at work; renamed when whole
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @functools.cached_property
    def memo(self) -> DigestMemo:
        """Made at first use: looking at a wrong recipe leaves no cache behind."""
        return DigestMemo(self.root / "digests.sqlite")

    def folder(self, key: str) -> Path:
        return self.root / "jobs" / key.removeprefix("sha256:")

    @contextlib.contextmanager
    def lock(self, key: str) -> Iterator[None]:
        with locked(self.root / "locks" / key.removeprefix("sha256:")):
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


def folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in tree_files(folder)) if folder.is_dir() else 0


# ---------------------------------------------------------------- run folders


class RunFolder:
    """artifacts/runs/<id>/, numbered in the order of the line, and the places beside it."""

    def __init__(self, artifacts: Path, name: str, about: Json) -> None:
        """A new run; its name sorts by time. Nothing is on disk before `begin`: a wrong recipe leaves no run."""
        self.artifacts = artifacts.absolute()
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
        self.ident = f"{stamp}-{name}"
        self.path = self.artifacts / "runs" / self.ident
        self.store = JobStore(self.artifacts / "cache")
        self.registry = self.artifacts / "registry"
        self.about = about
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Make the folder with `run.json`, and let `artifacts/latest` point to it."""
        self.path.mkdir(parents=True)
        write_json(self.path / "run.json", self.about)
        link = self.artifacts / f".latest.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("runs") / self.ident)
        link.replace(self.artifacts / "latest")

    def note(self, **facts: Any) -> None:
        """Add to `run.json` what is known by now."""
        self.about = {**self.about, **to_json(facts)}
        if self.path.is_dir():
            write_json(self.path / "run.json", self.about)

    def write(self, name: str, record: Any) -> Path:
        """Write one record, e.g. `write("01-inspect.json", facts)`; the path it got."""
        with self._lock:
            if not self.path.is_dir():
                self.begin()
        path = self.path / name
        write_json(path, record)
        return path

    def event(self, what: str, **facts: Any) -> None:
        """Append to events.jsonl what happened, when."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(), "event": what, **to_json(facts)})
        with self._lock, (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def shown(path: Path) -> str:
    """A path as short as it is true from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def optpipe_home() -> Path:
    """OPTPIPE_HOME, else the user's cache folder."""
    if home := os.environ.get("OPTPIPE_HOME"):
        return Path(home).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "optpipe"
