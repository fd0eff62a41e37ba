"""Paragraphs of documents by digest: how much of one text stands in another."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

from optpipe.records import Json

PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")
LONG = 64
"""Paragraphs under so many characters (headings, `See also`) say nothing about overlap."""


def overlap(calibration: Path, scored: Path) -> float:
    """Share (0 to 1, by characters) of the scored text's paragraphs that also stand in the calibration text.

    Both are resolved texts.
    """
    known = {digest for digest, _ in _paragraphs(calibration)}
    common = total = 0
    for digest, size in _paragraphs(scored):
        total += size
        common += size * (digest in known)
    return common / total if total else 0.0


def _paragraphs(path: Path) -> Iterator[tuple[bytes, int]]:
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in file:
            yield from hashed(json.loads(line))


def hashed(document: Json) -> Iterator[tuple[bytes, int]]:
    """SHA-256 and characters of each long paragraph, spaces and case aside; of the whole where none is long."""
    texts = [m["content"] for m in document["messages"]] if "messages" in document else [document["text"]]
    pieces = [piece for text in texts for piece in PARAGRAPH.split(text) if len(piece) >= LONG]
    for piece in pieces or ["\n".join(texts)]:
        plain = " ".join(piece.lower().split())
        yield hashlib.sha256(plain.encode()).digest(), len(plain)
