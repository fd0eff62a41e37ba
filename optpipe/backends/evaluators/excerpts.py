"""Worker body `excerpts`: pieces of a text that are the same bytes for every tokenizer.

What two models with different tokenizers can be compared on: each piece is cut from the text alone, then
tokenized by the model's own tokenizer, with one separator before it so that every byte of it is predicted.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from optpipe.backends.evaluators.tokens import Coder, batches, load_tokenizer, order
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 1
PADDING = -1
"""Stands behind a row's last token; the `score` job leaves it out."""
BREAK = re.compile(r"\s")
LONGEST_WORD = 200
"""Characters: scripts without spaces are cut between any two."""


def run(options: Json, work: Work) -> Json:
    """Options: bytes, first_row, rows. Files: tokens.npy, int32 [rows, longest], padded with -1 on the right."""
    import numpy as np

    coder = Coder(load_tokenizer(work.inputs["model"]), template=False)
    pieces = list(cut(documents(coder, work.inputs["text"]), int(options["bytes"])))
    first, wanted = int(options["first_row"]), int(options["rows"])
    chosen = [pieces[number] for number in order(len(pieces), work.seed)[first : first + wanted]]
    if not chosen:
        raise Failure(f"the text gives {len(pieces)} pieces of {options['bytes']} bytes; row {first} is asked for")
    before = coder.prefix or [coder.eos]
    if before == [None]:
        raise Failure("the tokenizer names neither a beginning nor an end of text to put before a piece")
    rows = [[*before, *ids] for ids in coder.encode(chosen)]
    table = np.full((len(rows), max(map(len, rows))), PADDING, dtype=np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    work.out.mkdir(parents=True, exist_ok=True)
    np.save(work.out / "tokens.npy", table)
    return {
        "rows": len(rows),
        "bytes": [len(piece.encode()) for piece in chosen],
        "tokens": sum(map(len, rows)) - len(rows),
        "text_sha256": hashlib.sha256("\0".join(chosen).encode()).hexdigest(),
        "available_rows": len(pieces),
        "notes": coder.notes(),
    }


def documents(coder: Coder, path: Path) -> Iterator[str]:
    """Every document's text as plain text: a chat template would differ from model to model."""
    for batch, _ in batches(path):
        yield from (coder.text_of(document) for document in batch)


def cut(texts: Iterator[str], size: int) -> Iterator[str]:
    """The documents one after another in pieces of at least `size` UTF-8 bytes, each ending before white space.

    What is left behind the last whole piece is dropped, so that all pieces are about as long.
    """
    held = ""
    for text in texts:
        held, start = f"{held}\n\n{text}" if held else text, 0
        while (end := end_of(held, start, size)) is not None:
            yield held[start:end]
            start = end
        held = held[start:]


def end_of(text: str, start: int, size: int) -> int | None:
    """Where a piece from `start` ends; None where less than a piece is left."""
    head = text[start : start + size].encode()
    if len(head) < size:
        return None
    whole = head[:size].decode("utf-8", "ignore")
    least = start + len(whole) + (len(whole.encode()) < size)
    if space := BREAK.search(text, least, least + LONGEST_WORD):
        return space.start()
    return least if least + LONGEST_WORD <= len(text) else None
