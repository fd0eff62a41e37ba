"""The canary passes sensible answers and names what is wrong with garbage."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.evaluators import canary
from optpipe.worker import Failure, Work
from tests.completions import Answer, Completions, serving

PROMPTS = ["The capital of France is", "Once upon a time", "def add(a, b):", "Water is"]
SOUND = ("a", "lake", "lay", "under", "tall", "hills", "where", "few", "people", "ever", "went", "alone")


def choice(tokens: list[str], **changes: Any) -> dict[str, Any]:
    logprobs = {"tokens": tokens, "token_logprobs": [-0.5] * len(tokens)}
    return {
        "choices": [{"text": "".join(tokens), "finish_reason": "length", "logprobs": logprobs, **changes}]
    }


def sound(prompt: str) -> list[str]:
    """A sensible answer that differs with the prompt."""
    return [f" {prompt[-3:]}", *(f" {word}" for word in SOUND)]


def run(answer: Answer, tmp_path: Path, **options: Any) -> dict[str, Any]:
    with serving(answer) as engine:
        return judged(engine, tmp_path, **options)


def judged(engine: Completions, tmp_path: Path, **options: Any) -> dict[str, Any]:
    work = Work({}, {"url": engine.url, "model": "m"}, tmp_path, 1, 1, tmp_path)
    return canary.run({"prompts": PROMPTS, "max_tokens": 16, **options}, work)


def test_sensible_answers_pass_and_are_asked_for_greedily(tmp_path: Path) -> None:
    with serving(lambda body, _: (200, choice(sound(body["prompt"])))) as engine:
        record = judged(engine, tmp_path)
    assert record["passed"], record["reason"]
    assert [answer["prompt"] for answer in record["answers"]] == PROMPTS
    assert all(body["temperature"] == 0 and body["max_tokens"] == 16 for body in engine.asked)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        (["!"] * 16, "repeats '!!!"),
        ([" The", *([" foo", " bar"] * 8)], "repeats ' The foo"),
        ([], "is empty"),
        (["\n", " ", "\n"], "is empty"),
        ([*"abcdefgh", *["\ufffd"] * 4], "is garbage"),
    ],
)
def test_degenerate_answers_fail(tokens: list[str], said: str, tmp_path: Path) -> None:
    record = run(lambda body, _: (200, choice([*tokens])), tmp_path, prompts=PROMPTS[:2])
    assert not record["passed"]
    assert said in record["reason"]


def test_every_prompt_getting_the_same_answer_fails(tmp_path: Path) -> None:
    record = run(lambda body, _: (200, choice(sound("same"))), tmp_path)
    assert not record["passed"]
    assert "same answer" in record["reason"]


def test_a_model_that_loops_late_passes(tmp_path: Path) -> None:
    late = [*(f" {word}" for word in SOUND[:6]), *([" and", " so"] * 5)]
    assert run(lambda body, _: (200, choice([body["prompt"][-4:], *late])), tmp_path)["passed"]


def test_the_end_token_does_not_hide_a_repetition() -> None:
    assert canary.repeated(["!"] * 12)
    assert not canary.repeated([*["!"] * 11, "<eos>"])
    assert not canary.repeated(["!"] * 11), "a short answer may be an exclamation"


@pytest.mark.parametrize("bad", [None, float("nan"), float("-inf"), -9999.0])
def test_one_log_probability_that_is_not_finite_fails(bad: float | None, tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        said = choice(sound(body["prompt"]))
        if number == 3:
            said["choices"][0]["logprobs"]["token_logprobs"][2] = bad
        return 200, said

    record = run(answer, tmp_path)
    assert not record["passed"]
    assert "not finite" in record["reason"]


def test_an_engine_without_log_probabilities_fails(tmp_path: Path) -> None:
    record = run(lambda body, _: (200, choice(sound(body["prompt"]), logprobs=None)), tmp_path)
    assert not record["passed"]
    assert "no log-probabilities" in record["reason"]


def test_one_flaw_fails_where_the_base_has_none_and_passes_where_it_has_the_same(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        return 200, choice(["0", ".", *["1"] * 12] if "France" in body["prompt"] else sound(body["prompt"]))

    alone = run(answer, tmp_path)
    assert alone["passed"], "one of four, and nothing to compare with"
    assert run(answer, tmp_path, base=alone)["passed"]
    base = run(lambda body, _: (200, choice(sound(body["prompt"]))), tmp_path)
    record = run(answer, tmp_path, base=base)
    assert not record["passed"]
    assert "1 of 4" in record["reason"] and "France" in record["reason"]


def test_an_http_error_of_a_healthy_engine_is_a_verdict(tmp_path: Path) -> None:
    record = run(lambda body, _: (500, '{"error": "nan is not JSON"}'), tmp_path)
    assert not record["passed"]
    assert "HTTP 500" in record["reason"] and "nan is not JSON" in record["reason"]


def test_an_http_error_of_an_engine_that_is_down_may_pass(tmp_path: Path) -> None:
    with serving(lambda body, _: (500, "dead")) as engine:
        engine.healthy = False
        with pytest.raises(Failure) as failure:
            judged(engine, tmp_path)
    assert failure.value.transient


def test_a_time_out_and_a_closed_port_may_pass(tmp_path: Path) -> None:
    def slow(body: dict[str, Any], number: int) -> tuple[int, Any]:
        time.sleep(1)
        return 200, choice(sound("x"))

    with serving(slow) as engine:
        with pytest.raises(Failure, match=r"within 0\.2 s") as late:
            judged(engine, tmp_path, timeout_s=0.2)
        url = engine.url
    with pytest.raises(Failure, match="no answer from") as closed:
        judged(Completions(url), tmp_path)
    assert late.value.transient and closed.value.transient
