"""Files and folders: whole or not at all, and locks that die with their holder."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optpipe.errors import InputError
from optpipe.records import to_json


def write_atomic(path: Path, data: bytes) -> None:
    """Write beside, fsync, rename: a reader sees the old content or the new, never half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        error.filename = str(path)  # what was to be written, not the file beside it
        raise
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


def read_yaml(path: Path) -> Any:
    """A YAML file that a build wrote; InputError where it is damaged."""
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        told, hint = f"damaged, no YAML any more: {' '.join(str(error).split())}", "pull it again, or build it anew"
        raise InputError(told, place=str(path), hint=hint) from None


@contextlib.contextmanager
def readable(path: Path) -> Iterator[None]:
    """What is read here lacks the form that this version reads: an InputError of its file, not a bug."""
    try:
        yield
    except FileNotFoundError as error:
        hint = "pull it again, or build it anew"
        raise InputError("is missing", place=str(error.filename or path), hint=hint) from None
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        told = f"damaged, or a record of another version of optpipe: {type(error).__name__}: {error}"
        hint = "read it with the optpipe that made it, or build it anew"
        raise InputError(told, place=str(path), hint=hint) from None


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


def tree_files(folder: Path) -> list[Path]:
    """Every file below `folder`, sorted by relative path; links are followed for files only."""
    found = [Path(root, name) for root, _, files in os.walk(folder) for name in files]
    return sorted(found, key=lambda p: str(p.relative_to(folder)))


def folder_bytes(folder: Path) -> int:
    return sum(p.stat().st_size for p in tree_files(folder)) if folder.is_dir() else 0


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
