"""A registry in a folder, on this machine or on a shared file system.

<name>/versions/<hex>/...             a whole version, immutable; appears by one rename
<name>/incoming/<hex>/...             an upload under way; goes on where it broke
<name>/aliases/<alias>/000001.json    the moves of an alias; each is created once, so of two at once one loses
<name>/locks/                         held by the kernel for a living process, so never left over
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optpipe import bundle as bundles
from optpipe.backends.registries.references import told
from optpipe.backends.registries.storage import Storage
from optpipe.bundle import Entry, Manifest
from optpipe.errors import PublishFailed
from optpipe.rundir import locked, sync_folder, sync_tree, write_atomic

READ_ONLY = 0o444


@dataclass(frozen=True)
class Folder:
    """Publish into a folder; without `path`, the registry beside the runs (artifacts/registry)."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012

    registry: Literal["folder"] = "folder"
    """Which kind."""
    path: str | None = None
    """The registry's folder; made if it is not there."""
    promote: str | None = None
    """An alias to move to the new version where it beats the one that the alias means now."""


class FolderStorage(Storage):
    """Files below `root`; safe for several processes at once."""

    kind = "folder"

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.where = str(self.root)

    # ------------------------------------------------------------ versions

    def names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob("[!.]*/versions") if any(path.iterdir()))

    def versions(self, name: str) -> list[str]:
        folder = self.root / name / "versions"
        found = folder.iterdir() if folder.is_dir() else ()
        by_age = sorted(found, key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [f"sha256:{path.name}" for path in by_age]

    def manifest(self, name: str, digest: str) -> bytes | None:
        folder = self.folder(name, digest)
        try:
            return (folder / bundles.MANIFEST).read_bytes() if folder else None
        except FileNotFoundError:
            raise PublishFailed(f"{folder} has no {bundles.MANIFEST}", place=name, hint="publish it again") from None

    def size(self, name: str, digest: str, file: Entry) -> int | None:
        path = self._at(name, digest) / file.path
        return path.lstat().st_size if path.is_file() and not path.is_symlink() else None

    def put(self, name: str, digest: str, file: Entry, source: Path) -> None:
        bundles.copy_file(source, self._incoming(name, digest) / file.path, READ_ONLY)
        self.tick(file.size)

    def read(self, name: str, digest: str, file: Entry) -> Iterator[bytes]:
        yield from bundles.chunks(self._at(name, digest) / file.path)

    def fetch(self, name: str, digest: str, file: Entry, target: Path) -> None:
        bundles.copy_file(self._at(name, digest) / file.path, target)
        self.tick(file.size)

    def seal(self, name: str, digest: str, manifest: Manifest) -> None:
        incoming, final = self._incoming(name, digest), self._version(name, digest)
        incoming.mkdir(parents=True, exist_ok=True)
        bundles.clear_unlisted(incoming, {entry.path for entry in manifest.files})
        write_atomic(incoming / bundles.MANIFEST, manifest.encode())
        if problems := bundles.verify(incoming, digest, contents=False):
            raise PublishFailed(told(problems), place=str(incoming), hint="publish it again")
        sync_tree(incoming)
        final.parent.mkdir(parents=True, exist_ok=True)
        incoming.rename(final)
        sync_folder(final.parent)

    def signature(self, name: str, digest: str) -> bytes | None:
        try:
            return (self._version(name, digest) / bundles.SIGNATURE).read_bytes()
        except FileNotFoundError:
            return None

    def put_signature(self, name: str, digest: str, signature: bytes) -> None:
        write_atomic(self._version(name, digest) / bundles.SIGNATURE, signature)

    def uploading(self, name: str, digest: str) -> contextlib.AbstractContextManager[object]:
        return locked(self.root / name / "locks" / f"{_hex(digest)}.lock")

    def folder(self, name: str, digest: str) -> Path | None:
        path = self._version(name, digest)
        return path if path.is_dir() else None

    # ------------------------------------------------------------ aliases

    def moves(self, name: str) -> list[bytes]:
        return [path.read_bytes() for path in sorted((self.root / name / "aliases").glob("*/[0-9]*.json"))]

    def add_move(self, name: str, alias: str, sequence: int, data: bytes) -> bool:
        """Whole content under a name that a link creates or finds taken."""
        folder = self.root / name / "aliases" / alias
        folder.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=folder, prefix=".")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fchmod(file.fileno(), READ_ONLY)
                os.fsync(file.fileno())
            os.link(scratch, folder / f"{sequence:06d}.json")
        except FileExistsError:
            return False
        finally:
            Path(scratch).unlink()
        sync_folder(folder)
        return True

    # ------------------------------------------------------------ inside

    def _version(self, name: str, digest: str) -> Path:
        return self.root / name / "versions" / _hex(digest)

    def _incoming(self, name: str, digest: str) -> Path:
        return self.root / name / "incoming" / _hex(digest)

    def _at(self, name: str, digest: str) -> Path:
        return self.folder(name, digest) or self._incoming(name, digest)


def _hex(digest: str) -> str:
    return digest.removeprefix("sha256:")
