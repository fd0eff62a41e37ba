"""Registries keep immutable versions by digest, and aliases that move.

Another registry is one file (settings, and a class with these methods) and one line in `connect`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from optpipe.backends.registries.folder import Folder, FolderRegistry
from optpipe.backends.registries.references import Reference, Version
from optpipe.errors import PublishFailed
from optpipe.records import Bundle, Json


class Registry(Protocol):
    """What `publish`, `pull`, `promote` and the rest ask of any registry."""

    kind: str

    def upload(self, bundle: Bundle) -> Version: ...

    def alias(self, name: str, alias: str) -> str | None: ...

    def move(self, version: Version, alias: str, *, expected: str | None, evidence: str) -> None: ...

    def rollback(self, name: str, alias: str, *, evidence: str) -> Version: ...

    def resolve(self, reference: str) -> Version: ...

    def pull(self, reference: str, destination: Path) -> Version: ...

    def listing(self) -> Json: ...


def connect(settings: Folder, default: Path) -> Registry:
    """The registry of a recipe's `publish:` entry; `default` is the folder where it names none."""
    root = Path(settings.path).expanduser() if settings.path else default
    if root.exists() and not root.is_dir():
        raise PublishFailed(f"{root} is not a folder", place="publish.path", hint="name a folder, there or not")
    return FolderRegistry(root)


__all__ = ["Folder", "FolderRegistry", "Reference", "Registry", "Version", "connect"]
