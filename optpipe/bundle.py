"""A bundle: a model folder, its engine file and its evidence, named by the digest of its manifest.

`manifest.json` lists every file but itself and the signature, each with SHA-256 and size. It is written
as canonical JSON, so the digest of a version is what `sha256sum manifest.json` prints.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from optpipe.bundle_names import name_problems
from optpipe.errors import Problem
from optpipe.records import canonical
from optpipe.rundir import CHUNK, digest_bytes, remove_tree, write_atomic

MANIFEST = "manifest.json"
SIGNATURE = "model.sig"
OUTSIDE = (MANIFEST, SIGNATURE)
"""What the manifest does not list: itself, and the signature over it."""

SHA256 = re.compile("[0-9a-f]{64}")
FICLONE = 0x40049409
"""Linux ioctl: share the blocks of another file until one of the two is written (linux/fs.h)."""


@dataclass(frozen=True)
class Entry:
    """One file of a bundle; `path` is relative with forward slashes, `sha256` is hexadecimal."""

    path: str
    sha256: str
    size: int


@dataclass(frozen=True)
class Manifest:
    """Every file of a bundle, sorted by path."""

    files: tuple[Entry, ...]

    def encode(self) -> bytes:
        return canonical({"version": 1, "files": self.files})

    @property
    def digest(self) -> str:
        return digest_bytes(self.encode())

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in self.files)


# ---------------------------------------------------------------- writing


def list_files(folder: Path, known: Iterable[Entry] = ()) -> Manifest:
    """The manifest of what is in `folder`; names that travel badly are a ValueError. `known` are hashed already."""
    paths, problems = walk(folder)
    listed = sorted(path for path in paths if path not in OUTSIDE)
    problems += name_problems(listed, OUTSIDE)
    if problems:
        raise ValueError("\n".join(str(problem) for problem in problems))
    have = {entry.path: entry for entry in known}
    return Manifest(tuple(have.get(path) or Entry(path, *hash_file(folder / path)) for path in listed))


def write_manifest(folder: Path, known: Iterable[Entry] = ()) -> Manifest:
    """List what is in `folder` and leave manifest.json there."""
    manifest = list_files(folder, known)
    write_atomic(folder / MANIFEST, manifest.encode())
    return manifest


def signed(manifest: Manifest) -> dict[str, str]:
    """What a signature covers: every file and the manifest itself, path to SHA-256 in hexadecimal."""
    return {entry.path: entry.sha256 for entry in manifest.files} | {MANIFEST: manifest.digest.removeprefix("sha256:")}


def copy_file(source: Path, target: Path, mode: int = 0o644) -> None:
    """A copy with its own inode, so that an edit of one leaves the other; blocks are shared if possible."""
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with open_plain(source) as reader, target.open("xb") as writer:
        if not _clone(reader, writer):
            while chunk := reader.read(CHUNK):
                writer.write(chunk)
        writer.flush()
        os.fchmod(writer.fileno(), mode)
        os.fsync(writer.fileno())


def link_file(source: Path, target: Path) -> None:
    """The same content at `target` without writing it again where the file system can; links are resolved."""
    target.parent.mkdir(parents=True, exist_ok=True)
    real = source.resolve(strict=True)
    try:
        os.link(real, target)
    except OSError:  # another file system, or one without hard links
        copy_file(real, target)


def _clone(reader: BinaryIO, writer: BinaryIO) -> bool:
    try:
        import fcntl

        fcntl.ioctl(writer.fileno(), FICLONE, reader.fileno())
    except (ImportError, OSError):  # not Linux, not one file system, or one without shared blocks
        return False
    return True


# ---------------------------------------------------------------- reading


def bundle_at(path: Path) -> Path | None:
    """The bundle that `path` is, or that a run's folder holds as `package/`; None where there is none."""
    return next((folder for folder in (path, path / "package") if (folder / MANIFEST).is_file()), None)


def read_manifest(folder: Path) -> tuple[Manifest | None, list[Problem]]:
    """The manifest of a bundle from outside, or what is wrong with it; nothing else is read yet."""
    try:
        with open_plain(folder / MANIFEST) as file:
            return parse_manifest(file.read())
    except FileNotFoundError:
        return None, [Problem(MANIFEST, "missing", "a bundle is a folder that `optpipe build` packaged")]
    except OSError as error:
        return None, [Problem(MANIFEST, f"not a manifest: {error}")]


def parse_manifest(data: bytes) -> tuple[Manifest | None, list[Problem]]:
    """The manifest that `data` is, or what is wrong with it."""
    try:
        manifest = _decode(data)
        same = manifest.encode() == data
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return None, [Problem(MANIFEST, f"not a manifest: {error}")]
    if not same:
        return None, [Problem(MANIFEST, "not canonical: it was edited, or two of its keys are the same")]
    return manifest, name_problems((entry.path for entry in manifest.files), OUTSIDE)


def _decode(data: bytes) -> Manifest:
    value = json.loads(data)
    if not isinstance(value, dict) or value.get("version") != 1:
        raise ValueError("expected an object with version 1")
    return Manifest(tuple(_entry(item) for item in value["files"]))


def _entry(item: Any) -> Entry:
    entry = Entry(item["path"], item["sha256"], item["size"])
    whole = isinstance(entry.path, str) and isinstance(entry.sha256, str) and type(entry.size) is int
    if not whole or not SHA256.fullmatch(entry.sha256) or entry.size < 0:
        raise ValueError(f"{item!r} is not a path, a SHA-256 and a size")
    return entry


def verify(folder: Path, expected: str | None = None, *, contents: bool = True) -> tuple[Problem, ...]:
    """Everything by which `folder` differs from its manifest, each file named; empty if it is whole.

    `expected` is the digest that the bundle should have; without `contents` only names and sizes are read.
    Integrity, not origin: who can write the folder can write a new manifest, which has another digest.
    """
    manifest, problems = read_manifest(folder)
    if manifest is None:
        return tuple(problems)
    if expected is not None and manifest.digest != expected:
        problems.append(Problem(MANIFEST, f"digest {manifest.digest} is not {expected}"))
    paths, strange = walk(folder)
    problems += strange
    listed = {entry.path: entry for entry in manifest.files}
    there = set(paths) - set(OUTSIDE)
    named = {problem.place for problem in problems}
    problems += [Problem(path, "not in the manifest: added") for path in sorted(there - set(listed) - named)]
    problems += [Problem(path, "missing") for path in sorted(set(listed) - there - named)]
    for path in sorted(there & set(listed)):
        problems += _differs(folder / path, listed[path], contents)
    return tuple(problems)


def _differs(file: Path, entry: Entry, contents: bool) -> list[Problem]:
    try:
        size = file.lstat().st_size
        if size != entry.size:
            return [Problem(entry.path, f"{size} bytes are not the {entry.size} of the manifest: changed")]
        digest = hash_file(file)[0] if contents else entry.sha256
    except OSError as error:
        return [Problem(entry.path, f"cannot be read: {error.strerror}")]
    if digest != entry.sha256:
        return [Problem(entry.path, f"sha256 {digest} is not {entry.sha256}: changed")]
    return []


def walk(folder: Path) -> tuple[list[str], list[Problem]]:
    """Relative paths of the plain files below `folder`, and what is neither file nor used folder."""
    files: list[str] = []
    problems: list[Problem] = []
    for item in sorted(_entries(folder), key=lambda item: item.path):
        path = Path(item.path).relative_to(folder).as_posix()
        if item.is_file(follow_symlinks=False):
            files.append(path)
        elif item.is_symlink():
            problems.append(Problem(path, "is a link: a bundle holds plain files only"))
        elif not item.is_dir(follow_symlinks=False):
            problems.append(Problem(path, "is neither a file nor a folder"))
        elif not any(Path(item.path).iterdir()):
            problems.append(Problem(path, "empty folder: added"))
    return files, problems


def _entries(folder: Path | str) -> Iterator[os.DirEntry[str]]:
    for item in os.scandir(folder):
        yield item
        if item.is_dir(follow_symlinks=False):
            yield from _entries(item.path)


def clear_unlisted(folder: Path, listed: set[str]) -> None:
    """Drop what is no plain file of this version: what an earlier try left."""
    paths, strange = walk(folder)
    for path in [*(path for path in paths if path not in listed), *(problem.place for problem in strange)]:
        remove_tree(folder / path)


@contextlib.contextmanager
def open_plain(path: Path) -> Iterator[BinaryIO]:
    """Open a plain file; a link or a pipe in its place is an OSError, not followed, not waited for."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(f"{path}: not a plain file")
        yield file


def hash_file(path: Path) -> tuple[str, int]:
    """SHA-256 in hexadecimal and size of a plain file."""
    return hash_chunks(chunks(path))


def hash_chunks(pieces: Iterable[bytes]) -> tuple[str, int]:
    """SHA-256 in hexadecimal and size of content that comes in pieces."""
    sha, size = hashlib.sha256(), 0
    for piece in pieces:
        sha.update(piece)
        size += len(piece)
    return sha.hexdigest(), size


def chunks(path: Path) -> Iterator[bytes]:
    """A plain file in pieces of a few megabytes."""
    with open_plain(path) as file:
        while piece := file.read(CHUNK):
            yield piece
