"""Parity tells how far an engine is from transformers on the same tokens, and never swallows a NaN."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.backends.evaluators import parity, served
from optpipe.worker import Failure, Work
from tests.completions import Answer, serving

ROWS, LENGTH = 3, 9
TOKENS = np.arange(ROWS * LENGTH, dtype=np.int32).reshape(ROWS, LENGTH) + 5
LOGPROBS = -1.0 - np.arange(ROWS * (LENGTH - 1), dtype=np.float32).reshape(ROWS, LENGTH - 1) / 10


def engine(shift: float = 0.0, worst: float | None = None, drop: int | None = None) -> Answer:
    """Answers with the reference, `shift` nats lower; one value `worst`, or the entry at `drop` missing."""

    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        row = int(np.flatnonzero((body["prompt"] == TOKENS).all(axis=1))[0])
        values = [float(value) - shift for value in LOGPROBS[row]]
        if worst is not None and row == 1:
            values[4] = worst
        entries = [
            {str(token): {"logprob": value, "rank": 1}, "999": {"logprob": -0.1}}
            for token, value in zip(body["prompt"][1:], values)
        ]
        entries = entries[:drop] if drop else entries
        return 200, {"choices": [{"text": "x", "prompt_logprobs": [None, *entries]}]}

    return answer


def work(tmp_path: Path, url: str, reference: np.ndarray[Any, Any] = LOGPROBS) -> Work:
    np.save(tmp_path / "tokens.npy", TOKENS)
    np.save(tmp_path / "token_logprobs.npy", reference)
    inputs = {"tokens": tmp_path, "score": tmp_path}
    return Work(inputs, {"url": url, "model": "m"}, tmp_path, 1, 1, tmp_path)


def run(answer: Answer, tmp_path: Path, **options: Any) -> dict[str, Any]:
    with serving(answer) as fake:
        return parity.run(options, work(tmp_path, fake.url))


def test_an_engine_that_agrees(tmp_path: Path) -> None:
    with serving(engine()) as fake:
        record = parity.run({"rows": 2}, work(tmp_path, fake.url))
    assert record["mean_abs"] == pytest.approx(0, abs=1e-6)
    assert record["n_tokens"] == 2 * (LENGTH - 1)
    assert record["perplexity"] == pytest.approx(math.exp(-LOGPROBS[:2].mean()), rel=1e-6)
    assert [body["prompt"] for body in fake.asked] == TOKENS[:2].tolist()
    assert all(body["max_tokens"] == 1 and body["prompt_logprobs"] == 0 for body in fake.asked)


def test_mean_and_tail_of_the_difference(tmp_path: Path) -> None:
    even = run(engine(shift=0.25), tmp_path, rows=ROWS)
    assert even["mean_abs"] == pytest.approx(0.25, rel=1e-5)
    assert even["p99_abs"] == pytest.approx(0.25, rel=1e-5)
    assert even["perplexity"] / even["reference_perplexity"] == pytest.approx(math.exp(0.25), rel=1e-5)
    spike = run(engine(worst=-9.0), tmp_path, rows=ROWS)
    assert spike["mean_abs"] < 0.4 and spike["p99_abs"] > 4 and spike["max_abs"] == pytest.approx(9 + LOGPROBS[1, 4])


@pytest.mark.parametrize("bad", [math.nan, -math.inf, -9999.0])
def test_a_value_that_is_not_finite_is_a_definite_failure(bad: float, tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"token 19 at position 5") as failure:
        run(engine(worst=bad), tmp_path)
    assert not failure.value.transient


def test_missing_values_and_a_reference_of_other_rows_are_named(tmp_path: Path) -> None:
    with pytest.raises(Failure, match=r"gave 5 log-probabilities for 9 tokens"):
        run(engine(drop=4), tmp_path)
    with serving(engine()) as fake, pytest.raises(Failure, match=r"shape \(3, 7\)"):
        parity.run({}, work(tmp_path, fake.url, LOGPROBS[:, :-1]))
    broken = LOGPROBS.copy()
    broken[0, 0] = np.nan
    with serving(engine()) as fake, pytest.raises(Failure, match="reference"):
        parity.run({}, work(tmp_path, fake.url, broken))


def test_too_small_a_window_is_named_with_what_is_needed(tmp_path: Path) -> None:
    with pytest.raises(Failure) as failure:
        run(lambda body, _: (400, '{"error": "maximum context length is 9"}'), tmp_path)
    assert failure.value.hint == "the engine needs max_model_len of at least 10"
    assert not failure.value.transient


def test_a_score_of_more_rows_is_compared_by_its_first(tmp_path: Path) -> None:
    with serving(engine()) as fake:
        record = parity.run({}, work(tmp_path, fake.url, np.vstack([LOGPROBS, LOGPROBS - 1])))
    assert record["n_tokens"] == ROWS * (LENGTH - 1)
    assert record["max_abs"] == pytest.approx(0, abs=1e-6)


def test_served_perplexity_gives_the_nats_of_each_row(tmp_path: Path) -> None:
    with serving(engine()) as fake:
        record = served.run({"rows": 2}, work(tmp_path, fake.url))
    assert [unit["tokens"] for unit in record["units"]] == [LENGTH - 1] * 2
    assert [unit["nll"] for unit in record["units"]] == pytest.approx((-LOGPROBS[:2].sum(axis=1)).tolist())
