"""Worker body `tokens`: a text becomes full rows of token ids, the same rows for every candidate.

Documents are packed in order, the end-of-sequence token after each, and cut into rows of equal
length. Rows are taken in a fixed seeded order that is spread evenly over the whole text from the first
row on; asking for more continues that order, so a measurement that is extended never repeats a row.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.records import Json
from optpipe.worker import Failure, Work

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Ids = npt.NDArray[np.int32]

REVISION = 1

BATCH = 256
GOLDEN = (math.sqrt(5) - 1) / 2


def run(options: Json, work: Work) -> Json:
    """Options: length, first_row, rows, template, min_rows. Files: tokens.npy, int32 [rows, length]."""
    import numpy as np

    length, first, wanted = int(options["length"]), int(options.get("first_row", 0)), int(options["rows"])
    coder = Coder(load_tokenizer(work.inputs["model"]), bool(options.get("template", True)))
    stream, documents = coder.stream(work.inputs["text"], work)
    body = length - len(coder.prefix)
    available = len(stream) // body
    chosen = order(available, work.seed)[first : first + wanted]
    least = int(options.get("min_rows", wanted))
    if len(chosen) < least:
        raise Failure(
            f"{documents} documents of {len(stream)} tokens give {available} rows of {length} tokens; "
            f"{least} are needed from row {first} on",
            hint="give a longer text, shorter rows or fewer of them",
        )
    rows = np.empty((len(chosen), length), dtype=np.int32)
    rows[:, : len(coder.prefix)] = coder.prefix
    for i, number in enumerate(chosen):
        rows[i, len(coder.prefix) :] = stream[number * body : (number + 1) * body]
    work.out.mkdir(parents=True, exist_ok=True)
    np.save(work.out / "tokens.npy", rows)
    return {
        "rows": len(chosen),
        "length": length,
        "tokens": int(rows.size),
        "documents": documents,
        "sha256": hashlib.sha256(rows.tobytes()).hexdigest(),
        "available_rows": available,
        "bytes": coder.utf8_bytes(rows),
        "notes": coder.notes(),
    }


def order(count: int, seed: int) -> list[int]:
    """A permutation of range(count) each of whose beginnings is spread evenly over it.

    Steps of about count / golden ratio from a seeded start: the gaps that remain between the numbers
    taken so far have at most three sizes (Steinhaus), at any time.
    """
    if count < 1:
        return []
    step = max(1, round(count * GOLDEN))
    while math.gcd(step, count) != 1:
        step += 1
    start = random.Random(seed).randrange(count)
    return [(start + i * step) % count for i in range(count)]


def load_tokenizer(folder: Path) -> Any:
    """The model's own tokenizer; none of its code is run."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    return AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)


class Coder:
    """Text and chats to ids; rows get one beginning-of-sequence token where the tokenizer has that habit."""

    def __init__(self, tokenizer: Any, template: bool) -> None:
        self.tokenizer = tokenizer
        self.template = template
        self.bos, self.eos = tokenizer.bos_token_id, tokenizer.eos_token_id
        with_habit, bare = tokenizer("a").input_ids, self.encode(["a"])[0]
        adds = self.bos is not None and with_habit[:1] == [self.bos] and bare[:1] != [self.bos]
        self.prefix: list[int] = [self.bos] if adds else []
        """What each row begins with."""
        self.chats = self.doubled = 0

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Ids without anything added, over-long texts included."""
        found = self.tokenizer(texts, add_special_tokens=False, truncation=False, verbose=False)
        ids: list[list[int]] = found.input_ids
        return ids

    def stream(self, path: Path, work: Work) -> tuple[Ids, int]:
        """All documents as one run of ids with the separator after each, and how many there were."""
        import numpy as np

        parts: list[Any] = []
        count, done, size = 0, 0, path.stat().st_size
        for batch, read in batches(path):
            for ids in self.encode([self.text_of(document) for document in batch]):
                parts.append(np.asarray(self.separated(ids), dtype=np.int32))
                count += 1
            done += read
            work.progress(done, size, "tokens")
        return (np.concatenate(parts) if parts else np.empty(0, dtype=np.int32)), count

    def text_of(self, document: Json) -> str:
        """A document's text; a chat goes through the model's template, once."""
        if "messages" not in document:
            return str(document["text"])
        self.chats += 1
        if not self.template:
            return "\n\n".join(message["content"] for message in document["messages"])
        if not self.tokenizer.chat_template:
            raise Failure(
                "the text holds chats and the model has no chat template",
                hint="set `template: false` to join the messages as plain text",
            )
        return str(self.tokenizer.apply_chat_template(document["messages"], tokenize=False))

    def separated(self, ids: list[int]) -> list[int]:
        """The ids with the separator after them, and without a BOS of the template's where rows have one."""
        if self.prefix and ids[:1] == self.prefix:
            ids, self.doubled = ids[1:], self.doubled + 1
        # Chat templates end with the separator, or with it and a newline.
        return ids if self.eos is None or self.eos in ids[-2:] else [*ids, self.eos]

    def utf8_bytes(self, rows: Ids) -> int:
        """UTF-8 bytes of the text in the rows, special tokens left out: for bits per byte."""
        texts = self.tokenizer.batch_decode(rows.tolist(), skip_special_tokens=True)
        return sum(len(text.encode("utf-8", "replace")) for text in texts)

    def notes(self) -> list[str]:
        notes = []
        if self.prefix:
            notes.append(f"each row begins with {self.tokenizer.bos_token!r}, as the tokenizer does it")
        if self.doubled:
            notes.append(
                f"{self.doubled} documents began with {self.tokenizer.bos_token!r} of their own (the chat "
                "template writes it, the tokenizer adds it): one is kept"
            )
        if self.chats:
            how = "went through the chat template" if self.template else "were joined as plain text"
            notes.append(f"{self.chats} chats {how}")
        if self.eos is None:
            notes.append("the tokenizer names no end of sequence: documents stand side by side")
        return notes


def batches(path: Path) -> Iterator[tuple[list[Json], int]]:
    """The documents of a JSON Lines file in batches, each with the bytes that it took."""
    batch: list[Json] = []
    read = 0
    with path.open("rb") as file:
        for line in file:
            batch.append(json.loads(line))
            read += len(line)
            if len(batch) == BATCH:
                yield batch, read
                batch, read = [], 0
    if batch:
        yield batch, read
