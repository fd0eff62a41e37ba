"""Rows of token ids, with the real tokenizers library on small tokenizers."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.backends.evaluators.tokens import order
from tests.models import BOS, EOS, edit_json, write_tokenizer
from tests.real.bodies import run_body

pytestmark = pytest.mark.real

BOS_ID, EOS_ID = 0, 1


def tokenizer(folder: Path, adds_bos: bool = False, **config: Any) -> Path:
    """A byte-level tokenizer; `adds_bos` gives it the habit."""
    folder.mkdir()
    write_tokenizer(folder)
    if adds_bos:
        template = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": BOS, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {BOS: {"id": BOS, "ids": [BOS_ID], "tokens": [BOS]}},
        }
        edit_json(folder / "tokenizer.json", post_processor=template)
    edit_json(folder / "tokenizer_config.json", **config)
    return folder


def text(path: Path, *documents: Any) -> Path:
    rows = [{"text": d} if isinstance(d, str) else {"messages": d} for d in documents]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def tokens(
    tmp_path: Path, name: str, model: Path, source: Path, seed: int = 1, **options: Any
) -> tuple[Any, dict[str, Any]]:
    full = {"length": 16, "first_row": 0, "rows": 4, "template": True} | options
    record = run_body("tokens", tmp_path / name, {"model": model, "text": source}, full, seed)
    assert "failure" not in record, record
    rows = np.load(tmp_path / name / "files" / "tokens.npy")
    assert rows.dtype == np.int32
    assert record["sha256"] == hashlib.sha256(rows.tobytes()).hexdigest()
    assert record["tokens"] == rows.size and record["rows"] == len(rows)
    return rows, record


def sorted_rows(rows: Any) -> Any:
    return sorted(map(tuple, rows.tolist()))


def test_documents_are_packed_to_full_rows_with_the_separator_after_each(tmp_path: Path) -> None:
    model = tokenizer(tmp_path / "model")
    source = text(tmp_path / "t.jsonl", *("xyz" * n for n in range(1, 9)))
    rows, record = tokens(tmp_path, "a", model, source, rows=7)
    assert record["documents"] == 8
    assert record["available_rows"] == (3 * 36 + 8) // 16 == 7
    assert rows.shape == (7, 16)
    assert (rows == EOS_ID).sum() == 7, "eight documents, the last of them past the last full row"
    assert not (rows == BOS_ID).any()
    first = next(row for row in rows.tolist() if row[3] == EOS_ID)
    assert first[:3] == first[4:7], "xyz <eos> xyz..."
    assert record["bytes"] == 7 * 16 - 7


def test_asking_for_more_continues_and_never_repeats(tmp_path: Path) -> None:
    model = tokenizer(tmp_path / "model")
    source = text(tmp_path / "t.jsonl", *(f"document number {i} is about {i * i}" for i in range(60)))
    whole, record = tokens(tmp_path, "whole", model, source, rows=40)
    parts = [tokens(tmp_path, f"p{a}", model, source, first_row=a, rows=n)[0] for a, n in ((0, 10), (10, 25), (35, 5))]
    assert np.array_equal(np.concatenate(parts), whole)
    assert len(set(sorted_rows(whole))) == 40
    again, _ = tokens(tmp_path, "again", model, source, rows=40)
    assert np.array_equal(again, whole)
    other, _ = tokens(tmp_path, "other", model, source, rows=40, seed=2)
    assert not np.array_equal(other, whole)
    available = record["available_rows"]
    last, _ = tokens(tmp_path, "last", model, source, first_row=available - 3, rows=9, min_rows=3)
    assert len(last) == 3, "the rest, where fewer are allowed"


def test_too_few_rows_say_how_many_there_are(tmp_path: Path) -> None:
    model = tokenizer(tmp_path / "model")
    source = text(tmp_path / "t.jsonl", *["ten tokens"] * 20)
    options = {"length": 2048, "rows": 30, "min_rows": 30}
    failure = run_body("tokens", tmp_path / "job", {"model": model, "text": source}, options)["failure"]
    assert "20 documents" in failure["message"]
    assert "0 rows of 2048" in failure["message"] and "30 are needed" in failure["message"]
    assert failure["transient"] is False


def test_each_row_begins_with_bos_where_the_tokenizer_has_that_habit(tmp_path: Path) -> None:
    model = tokenizer(tmp_path / "model", adds_bos=True)
    source = text(tmp_path / "t.jsonl", *["xyz" * 20] * 4)
    rows, record = tokens(tmp_path, "a", model, source)
    assert (rows[:, 0] == BOS_ID).all()
    assert not (rows[:, 1:] == BOS_ID).any()
    assert record["available_rows"] == 4 * 61 // 15
    assert any("each row begins with" in note for note in record["notes"])


CHAT = [{"role": "user", "content": "hi there"}, {"role": "assistant", "content": "hello"}]


def test_a_template_that_writes_bos_and_a_tokenizer_that_adds_it_make_one(tmp_path: Path) -> None:
    """open-r1 462."""
    once = BOS + "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}{{ '" + EOS + "' }}{% endfor %}"
    model = tokenizer(tmp_path / "model", adds_bos=True, chat_template=once)
    rows, record = tokens(tmp_path, "a", model, text(tmp_path / "t.jsonl", *[CHAT] * 6))
    assert (rows[:, 0] == BOS_ID).all()
    assert not (rows[:, 1:] == BOS_ID).any()
    assert any("6 documents began with" in note and "one is kept" in note for note in record["notes"])
    assert not ((rows[:, :-1] == EOS_ID) & (rows[:, 1:] == EOS_ID)).any(), "no second separator either"


def test_chats_keep_a_bos_that_only_the_template_writes(tmp_path: Path) -> None:
    model = tokenizer(tmp_path / "model")
    rows, record = tokens(tmp_path, "a", model, text(tmp_path / "t.jsonl", *[CHAT] * 6), rows=8, min_rows=1)
    assert (rows == BOS_ID).any()
    assert record["notes"] == ["6 chats went through the chat template"]


def test_chats_without_a_template(tmp_path: Path) -> None:
    model = tokenizer(tmp_path / "model")
    source = text(tmp_path / "t.jsonl", *[CHAT] * 6)
    rows, record = tokens(tmp_path, "a", model, source, template=False)
    assert not (rows == BOS_ID).any()
    assert record["notes"] == ["6 chats were joined as plain text"]
    edit_json(model / "tokenizer_config.json", chat_template=None)
    failure = run_body(
        "tokens", tmp_path / "b", {"model": model, "text": source}, {"length": 16, "rows": 1, "template": True}
    )["failure"]
    assert "no chat template" in failure["message"]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 64, 186, 2075])
def test_every_beginning_of_the_order_is_spread_over_the_text(count: int) -> None:
    for seed in range(5):
        found = order(count, seed)
        assert sorted(found) == list(range(count))
        for some in {2, 8, 32, count // 2} - {0}:
            taken = sorted(found[:some])
            gaps = [b - a for a, b in zip(taken, [*taken[1:], taken[0] + count], strict=True)]
            assert max(gaps) <= 3.5 * count / len(taken) + 1
    assert order(0, 1) == []
    if count > 7:
        assert len({tuple(order(count, seed)) for seed in range(20)}) > 5
