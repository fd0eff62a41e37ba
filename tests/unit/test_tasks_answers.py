"""The answers of an engine to the requests of tasks: in order, per continuation, nothing swallowed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.evaluators import tasks
from optpipe.backends.evaluators.harness import Generation, Likelihood, read_answers
from optpipe.backends.evaluators.task_requests import cut_to
from optpipe.worker import Failure, Work
from tests.completions import serving

REQUESTS = [{"ids": [5, 6, 7 + n], "from": 1 + n % 2} for n in range(20)]


def engine(body: dict[str, Any], number: int) -> tuple[int, Any]:
    """Each token has -id/10 nats; even ones are the likeliest, odd ones are not, 8 is as likely as another."""
    entries = []
    for token in body["prompt"]:
        best = -token / 10 + (0.5 if token % 2 else 0.0)
        entries.append({str(token): {"logprob": -token / 10, "rank": 1}, "99": {"logprob": best}})
    return 200, {"choices": [{"text": "x", "prompt_logprobs": [None, *entries[1:]]}]}


def work(folder: Path, url: str, requests: list[dict[str, Any]]) -> Work:
    (folder / "requests.jsonl").write_text("".join(json.dumps(request) + "\n" for request in requests))
    return Work({"requests": folder}, {"url": url, "model": "m"}, folder / "files", 1, 1, folder)


def test_answers_come_in_the_order_of_the_requests(tmp_path: Path) -> None:
    with serving(engine) as fake:
        job = work(tmp_path, fake.url, REQUESTS)
        record = tasks.run({"concurrency": 4}, job)
    assert record == {"requests": 20, "tokens": 60}
    answers = read_answers(tmp_path / "files")
    for request, (value, greedy) in zip(REQUESTS, answers, strict=True):
        scored = request["ids"][request["from"] :]
        assert value == pytest.approx(-sum(scored) / 10)
        assert greedy == all(token % 2 == 0 for token in scored)
    assert sorted(body["prompt"] for body in fake.asked) == [request["ids"] for request in REQUESTS]
    assert all(body["prompt_logprobs"] == 1 and body["temperature"] == 0 for body in fake.asked)
    told = [json.loads(line) for line in (tmp_path / "progress.jsonl").read_text().splitlines()]
    assert [line["done"] for line in told] == list(range(3, 61, 3)) and told[0]["total"] == 60
    assert told[-1]["what"] == "20 of 20 requests of tasks answered"


@pytest.mark.parametrize("bad", [None, math.nan, -9999.0])
def test_a_log_probability_that_is_none_is_a_definite_failure(bad: float | None, tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        entries = [{str(token): {"logprob": bad}} for token in body["prompt"]]
        return 200, {"choices": [{"prompt_logprobs": [None, *entries[1:]]}]}

    with serving(answer) as fake, pytest.raises(Failure, match="of token 6 is") as failure:
        tasks.run({}, work(tmp_path, fake.url, REQUESTS[:1]))
    assert not failure.value.transient


def test_an_engine_without_prompt_log_probabilities_or_room_is_told(tmp_path: Path) -> None:
    silent = serving(lambda body, _: (200, {"choices": [{"text": "x"}]}))
    with silent as fake, pytest.raises(Failure, match="0 log-probabilities for 3 tokens"):
        tasks.run({}, work(tmp_path, fake.url, REQUESTS))
    with serving(lambda body, _: (400, '{"error": "too long"}')) as fake, pytest.raises(Failure) as failure:
        tasks.run({}, work(tmp_path, fake.url, REQUESTS))
    assert failure.value.hint == "the engine needs max_model_len of at least 4"


def test_a_request_too_long_loses_the_beginning_of_its_context() -> None:
    requests, cut = cut_to([Likelihood([1, 2, 3, 4], [5, 6]), Likelihood([1], [2])], longest=4)
    assert requests == [{"ids": [3, 4, 5, 6], "from": 2}, {"ids": [1, 2], "from": 1}]
    assert cut == 1
    requests, cut = cut_to([Generation([1, 2, 3], ("x",), 2), Generation([1], (), 3)], longest=4)
    assert requests == [
        {"ids": [2, 3], "until": ["x"], "max_tokens": 2},
        {"ids": [1], "until": [], "max_tokens": 3},
    ]
    assert cut == 1


@pytest.mark.parametrize(
    "asked",
    [Likelihood([], [1]), Likelihood([1], []), Likelihood([1], [2, 3, 4, 5]), Generation([1], (), 4)],
)
def test_a_request_with_nothing_to_score_or_too_much_is_refused(asked: Likelihood | Generation) -> None:
    with pytest.raises(Failure, match="to score"):
        cut_to([asked], longest=4)


def test_text_is_generated_greedily_up_to_the_first_stop(tmp_path: Path) -> None:
    requests = [
        {"ids": [1, 2], "until": ["Q:", "\n\n"], "max_tokens": 9},
        {"ids": [3], "until": [], "max_tokens": 2},
        {"ids": [4, 5], "from": 1},
    ]

    def answer(body: dict[str, Any], number: int) -> tuple[int, Any]:
        if "prompt_logprobs" in body:
            return engine(body, number)
        return 200, {"choices": [{"text": " 42\u2028\n\nQ: and Q: more"}]}

    with serving(answer) as fake:
        record = tasks.run({"concurrency": 1}, work(tmp_path, fake.url, requests))
    first, second, third = read_answers(tmp_path / "files")
    assert first == " 42\u2028" and second == " 42\u2028\n\nQ: and Q: more" and isinstance(third, tuple)
    assert fake.asked[0]["stop"] == ["Q:", "\n\n"] and "stop" not in fake.asked[1]
    assert [body["max_tokens"] for body in fake.asked] == [9, 2, 1]
    assert all(body["temperature"] == 0 for body in fake.asked)
    assert record["requests"] == 3


def test_an_engine_that_gives_no_text_is_told(tmp_path: Path) -> None:
    request = {"ids": [1], "until": [], "max_tokens": 2}
    with serving(lambda body, _: (200, {"choices": [{}]})) as fake, pytest.raises(Failure, match="text None"):
        tasks.run({}, work(tmp_path, fake.url, [request]))
