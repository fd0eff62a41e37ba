"""What differs from registry to registry: where a file goes, how it comes back, how an alias is written down.

What is the same for all (a version is complete only when its manifest is there, aliases move last, history, reading
back) stands once, in `registry.py`.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

from optpipe.bundle import Entry, Manifest, open_plain
from optpipe.errors import OptpipeError
from optpipe.rundir import CHUNK

AGAIN = "nothing half can be seen there; the next try goes on"


@contextlib.contextmanager
def on_disk(kind: type[OptpipeError]) -> Iterator[None]:
    """What this machine's files answer (no space, no right) as an error that is told."""
    try:
        yield
    except OSError as error:
        where = str(error.filename2 or error.filename or "a file")
        raise kind(error.strerror or str(error), place=where, hint=AGAIN) from None


class Storage(abc.ABC):
    """One registry's calls. `digest` is that of the version, `sha256:` and 64 digits.

    A fault that the user must know of is a PublishFailed; a broken file of this machine an OSError.
    """

    kind: ClassVar[str]
    where: str
    """The registry as it is told to people; without credentials."""
    tick: Callable[[int], None] = staticmethod(lambda count: None)
    """Told of every so many bytes that went over."""

    # ------------------------------------------------------------ versions

    @abc.abstractmethod
    def names(self) -> list[str]:
        """Models with at least one complete version; only for lists and hints."""

    @abc.abstractmethod
    def versions(self, name: str) -> list[str]:
        """Digests of complete versions, oldest first where the registry knows."""

    @abc.abstractmethod
    def manifest(self, name: str, digest: str) -> bytes | None:
        """The bundle's manifest of a complete version."""

    @abc.abstractmethod
    def size(self, name: str, digest: str, file: Entry) -> int | None:
        """How many bytes of a file are there, of a version complete or under way; None if nothing."""

    @abc.abstractmethod
    def put(self, name: str, digest: str, file: Entry, source: Path) -> None:
        """Bring one file over; nobody sees the version yet."""

    @abc.abstractmethod
    def read(self, name: str, digest: str, file: Entry) -> Iterator[bytes]:
        """The content of a file, in pieces."""

    @abc.abstractmethod
    def seal(self, name: str, digest: str, manifest: Manifest) -> None:
        """All files are there and were read back: make the version visible, in one step."""

    def stage(self, name: str, digest: str, manifest: Manifest) -> None:
        """All files were put: make them readable, where `put` alone does not."""
        return None

    @abc.abstractmethod
    def signature(self, name: str, digest: str) -> bytes | None:
        """The signature over a version, where there is one."""

    @abc.abstractmethod
    def put_signature(self, name: str, digest: str, signature: bytes) -> None: ...

    # ------------------------------------------------------------ aliases

    @abc.abstractmethod
    def moves(self, name: str) -> list[bytes]:
        """Every record that `add_move` stored for a model."""

    @abc.abstractmethod
    def add_move(self, name: str, alias: str, sequence: int, data: bytes) -> bool:
        """Store a record; False where one with this sequence is there (never, if not `conditional`)."""

    @property
    def conditional(self) -> bool:
        """`add_move` is atomic: of two with one sequence, one is refused."""
        return True

    def points(self, alias: str) -> bool:
        """The registry has an alias of its own that others read: it decides, and is written last."""
        return False

    def pointer(self, name: str, alias: str) -> str | None:
        """The digest that the registry's own alias means."""
        raise NotImplementedError(alias)

    def point(self, name: str, alias: str, digest: str) -> None:
        """Move the registry's own alias."""
        raise NotImplementedError(alias)

    # ------------------------------------------------------------ what most have no need to say

    def uploading(self, name: str, digest: str) -> contextlib.AbstractContextManager[object]:
        """Held while files are brought over; two at once is no harm where every file is replaced whole."""
        return contextlib.nullcontext()

    def folder(self, name: str, digest: str) -> Path | None:
        """Where a complete version lies, if that is on this machine."""
        return None

    def fetch(self, name: str, digest: str, file: Entry, target: Path) -> None:
        """Bring one file here."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as writer:
            for chunk in self.read(name, digest, file):
                writer.write(chunk)
                self.tick(len(chunk))

    def chunks(self, source: Path) -> Iterator[bytes]:
        """A file in pieces, each told to `tick`."""
        with open_plain(source) as reader:
            while chunk := reader.read(CHUNK):
                yield chunk
                self.tick(len(chunk))
