"""Registries keep immutable versions by digest, and aliases that move.

Another registry is one file (its settings, and a Storage) and one line in `storage_of`.
"""

from __future__ import annotations

from pathlib import Path

from optpipe.backends.registries.folder import Folder, FolderStorage
from optpipe.backends.registries.references import Reference, Version
from optpipe.backends.registries.registry import Progress, Registry
from optpipe.backends.registries.storage import Storage
from optpipe.errors import PublishFailed
from optpipe.proofs import Notary

Settings = Folder


def connect(
    settings: Settings, default: Path, *, notary: Notary | None = None, progress: Progress | None = None
) -> Registry:
    """The registry of a recipe's `publish:` entry; `default` is the folder where it names none."""
    return Registry(storage_of(settings, default), notary, progress)


def at(where: str, *, notary: Notary | None = None, progress: Progress | None = None) -> Registry:
    """The registry that a folder or URL names, as the commands' `--registry` takes it."""
    return connect(Folder(path=where), Path(where), notary=notary, progress=progress)


def storage_of(settings: Settings, default: Path) -> Storage:
    root = Path(settings.path).expanduser() if settings.path else default
    if root.exists() and not root.is_dir():
        raise PublishFailed(f"{root} is not a folder", place="publish.path", hint="name a folder, there or not")
    return FolderStorage(root)


__all__ = ["Folder", "Reference", "Registry", "Settings", "Version", "at", "connect"]
