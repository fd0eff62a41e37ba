"""Pieces of text that are the same for every tokenizer, and what is said of two models by them."""

from __future__ import annotations

import math

import pytest

from optpipe import drift
from optpipe.backends.evaluators.excerpts import LONGEST_WORD, cut


def test_pieces_follow_one_another_and_end_before_white_space() -> None:
    texts = ["one two three four five six", "seven eight nine ten"]
    pieces = list(cut(iter(texts), 10))
    whole = "\n\n".join(texts)
    assert "".join(pieces) == whole[: len("".join(pieces))] and len(whole) - len("".join(pieces)) < 10
    assert all(len(piece) >= 10 for piece in pieces)
    assert all(whole[len("".join(pieces[: n + 1]))].isspace() for n in range(len(pieces) - 1))


def test_pieces_are_counted_in_bytes_and_no_character_is_torn() -> None:
    text = "größer als äöü " * 40
    pieces = list(cut(iter([text]), 64))
    assert "".join(pieces) == text[: len("".join(pieces))]
    assert all(64 <= len(piece.encode()) < 64 + 16 for piece in pieces)


def test_a_script_without_spaces_is_cut_all_the_same() -> None:
    text = "字" * 4000
    pieces = list(cut(iter([text]), 300))
    assert len(pieces) > 3900 // (100 + LONGEST_WORD) and "".join(pieces) == text[: len("".join(pieces))]


def test_a_text_shorter_than_a_piece_gives_none() -> None:
    assert list(cut(iter(["short"]), 100)) == []


def units(count: int, tokens: int, nats: float) -> list[dict[str, float]]:
    return [{"tokens": tokens, "nll": tokens * nats * (1 + 0.01 * math.sin(k))} for k in range(count)]


def test_another_tokenizer_with_the_same_likelihood_of_the_text_is_no_change() -> None:
    """Twice as many tokens of half the surprise each say the same of the text."""
    theirs, mine = units(40, 100, 3.0), units(40, 200, 1.5)
    assert drift.change_per_byte(theirs, mine).value == pytest.approx(0.0, abs=1e-9)
    assert drift.bits_per_byte(theirs, [400] * 40) == pytest.approx(drift.bits_per_byte(mine, [400] * 40))


def test_a_change_is_per_token_of_the_first_model() -> None:
    theirs = units(40, 100, 3.0)
    mine = [{"tokens": 50, "nll": unit["nll"] + 100 * math.log(1.05)} for unit in theirs]
    assert drift.change_per_byte(theirs, mine).value == pytest.approx(5.0)
