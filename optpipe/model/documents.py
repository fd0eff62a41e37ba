"""Reads documents out of text files: one at a time, each `{"text": ...}` or `{"messages": [...]}`."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from optpipe.errors import InputError, did_you_mean
from optpipe.records import Json

FORMATS = (".txt", ".md", ".json", ".jsonl")


@dataclass
class Seen:
    """What a reader came across beside the documents."""

    blank: int = 0
    repaired: int = 0

    def notes(self) -> tuple[str, ...]:
        notes = [f"{self.blank} blank rows dropped"] if self.blank else []
        if self.repaired:
            notes.append(f"{self.repaired} documents with lone surrogates: each became U+FFFD")
        return tuple(notes)


@dataclass(frozen=True)
class Reader:
    """Reads one file or folder; `column` names the text's key where rows are objects."""

    path: Path
    column: str
    seen: Seen = field(default_factory=Seen)

    def documents(self) -> Iterator[Json]:
        """Every document that is not blank, in order; InputError where the file is not what it should be."""
        if self.path.is_dir():
            for file in sorted(p for p in self.path.rglob("*") if p.suffix in (".txt", ".md") and p.is_file()):
                yield from Reader(file, self.column, self.seen).documents()
            return
        kind = format_of(self.path)
        if kind == ".jsonl":
            rows = self._lines()
        elif kind == ".json":
            rows = self._whole()
        else:
            rows = iter([(str(self.path), self._text())])
        for place, row in rows:
            document = self._document(row, place)
            if document is not None:
                yield document

    def _open(self) -> IO[str]:
        if self.path.suffix == ".gz":
            return gzip.open(self.path, "rt", encoding="utf-8-sig", newline="\n")
        return self.path.open(encoding="utf-8-sig", newline="\n")

    def _text(self) -> str:
        try:
            with self._open() as file:
                return file.read().replace("\r\n", "\n")
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
            raise unreadable(self.path, error) from error

    def _lines(self) -> Iterator[tuple[str, Any]]:
        try:
            with self._open() as file:
                for number, line in enumerate(file, 1):
                    place = f"{self.path}:{number}"
                    yield place, _json(line, place) if line.strip() else None
        except (UnicodeDecodeError, gzip.BadGzipFile, EOFError) as error:
            raise unreadable(self.path, error) from error

    def _whole(self) -> Iterator[tuple[str, Any]]:
        value = _json(self._text(), str(self.path))
        if isinstance(value, dict):
            yield from ((f"{self.path}: {key!r}", row) for key, row in value.items())
        elif isinstance(value, list):
            yield from ((f"{self.path}: [{i}]", row) for i, row in enumerate(value))
        else:
            raise InputError(
                f"the JSON is a {type(value).__name__}, expected a list or an object of documents",
                place=str(self.path),
                hint='for example [{"text": "..."}]',
            )

    def _document(self, row: Any, place: str) -> Json | None:
        """The document of one row; None (counted) for a blank one."""
        value = row
        if isinstance(row, dict):
            if self.column not in row:
                columns = sorted(str(key) for key in row)
                raise InputError(f"no column {self.column!r}; there are {', '.join(columns) or 'none'}",
                                 place=place, hint=_column_hint(self.column, columns))  # fmt: skip
            value = row[self.column]
        if value is None or (isinstance(value, str) and not value.strip()) or value == []:
            self.seen.blank += 1
            return None
        if isinstance(value, str):
            return {"text": self._clean(value)}
        if is_chat(value):
            return {"messages": json.loads(self._clean(json.dumps(value, ensure_ascii=False)))}
        raise InputError(
            f"{self.column!r} is {str(value)[:60]!r}, expected text or messages with role and content",
            place=place,
            hint="name another column, or write its values as text",
        )

    def _clean(self, text: str) -> str:
        """Text that can be written as UTF-8: JSON may hold half of a surrogate pair."""
        try:
            text.encode()
        except UnicodeEncodeError:
            self.seen.repaired += 1
            return "".join("\ufffd" if "\ud800" <= letter <= "\udfff" else letter for letter in text)
        return text


def format_of(path: Path) -> str:
    """The suffix that says how to read a file, without .gz; InputError for one that is not read."""
    suffixes = [s.lower() for s in path.suffixes]
    kind = (suffixes[-2:-1] if suffixes[-1:] == [".gz"] else suffixes[-1:]) or [""]
    if kind[0] in FORMATS:
        return kind[0]
    hint = f"read are {', '.join(FORMATS)}, each also as .gz, and folders of .txt and .md"
    if kind[0] == ".parquet":
        hint = "Parquet is not read: write the column as .jsonl; " + hint
    raise InputError(f"{path.name!r} is not a text that can be read", place=str(path), hint=hint)


def is_chat(value: Any) -> bool:
    """A list of messages, each with a role and content that are text."""
    return isinstance(value, list) and all(
        isinstance(m, dict) and isinstance(m.get("role"), str) and isinstance(m.get("content"), str) for m in value
    )


def unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, UnicodeDecodeError):
        return InputError(
            f"not UTF-8: byte {error.object[error.start]:#04x} ({error.reason})",
            place=str(path),
            hint="convert it: iconv -f ISO-8859-1 -t UTF-8",
        )
    return InputError(f"not a whole gzip file: {error}", place=str(path), hint="fetch or write the file again")


def _json(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", place=place, hint="each row of a .jsonl is one JSON object") from error


def _column_hint(column: str, columns: list[str]) -> str:
    if "messages" in columns:
        return "write `column: messages` for chats"
    return f"set `column:`; {did_you_mean(column, columns)}" if columns else "set `column:`"
