"""Worker body `tasks`, in an engine session: answers to the requests that lm-eval made, by what serves.

For a log-likelihood the engine is asked for `prompt_logprobs` of token ids, so no tokenizer stands between and a
context is never read from the prefix cache (see parity.py). A continuation is greedy where each of its tokens is the
likeliest, or as likely as that. Text is generated greedily from the ids of its context, up to the first stop.

input: `requests` (files of `task-requests`). files: answers.jsonl, a line each: [log-likelihood in nats, greedy],
or the text.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from optpipe.backends.evaluators.client import UNDEFINED, Engine, Refused
from optpipe.backends.evaluators.harness import Answer
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 2

WRITTEN = 4
"""A token that is written takes as long as about so many that are read."""


def run(options: Json, work: Work) -> Json:
    """Option `concurrency`: requests in flight. {"requests", "tokens": those read or written at most}."""
    engine = Engine.of(work.context, options)
    requests = read_requests(work.inputs["requests"])
    pool = ThreadPoolExecutor(max_workers=int(options.get("concurrency", 8)))
    answers: list[Answer] = []
    try:
        done, total = 0, tokens(requests)
        for answer, request in zip(pool.map(lambda request: asked(engine, request), requests), requests):
            answers.append(answer)
            done += tokens([request])
            work.progress(done, total, f"{len(answers)} of {len(requests)} requests of tasks answered")
    finally:
        pool.shutdown(cancel_futures=True)
    write_answers(answers, work.out)
    return {"requests": len(answers), "tokens": total}


def read_requests(folder: Path) -> list[Json]:
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    return [dict(json.loads(line)) for line in lines]


def write_answers(answers: list[Answer], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(answer) + "\n" for answer in answers)
    (folder / "answers.jsonl").write_text(text, encoding="utf-8")


def tokens(requests: Sequence[Json]) -> int:
    """Read and, at most, written: what is left to do is told in them, for requests differ a hundredfold."""
    return sum(len(request["ids"]) + WRITTEN * int(request.get("max_tokens", 0)) for request in requests)


def asked(engine: Engine, request: Json) -> Answer:
    """What the engine answers to a request."""
    try:
        if "until" in request:
            return written(engine, request)
        return likelihood(engine, request["ids"], request["from"])
    except Refused as refused:
        needed = len(request["ids"]) + int(request.get("max_tokens", 1))
        hint = f"the engine needs max_model_len of at least {needed}" if refused.status == 400 else None
        raise Failure(str(refused), hint=hint, transient=not engine.healthy()) from None


def written(engine: Engine, request: Json) -> str:
    """The text that greedy decoding writes after ids, up to the first of `until`."""
    most, until = request["max_tokens"], request["until"]
    choice = engine.complete(request["ids"], max_tokens=most, temperature=0, **({"stop": until} if until else {}))
    text = choice.get("text")
    if not isinstance(text, str):
        raise Failure(f"the engine's completion has the text {text!r}")
    return until_first(text, until)


def until_first(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stops that it holds."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def likelihood(engine: Engine, ids: list[int], first: int) -> Answer:
    """Log-likelihood of ids[first:] given those before, and whether greedy decoding would write them."""
    entries = engine.prompt_logprobs(ids, 1)
    if len(entries) != len(ids):
        raise Failure(f"the engine gave {len(entries)} log-probabilities for {len(ids)} tokens")
    told = list(told_of(entries[first:], ids[first:]))
    return math.fsum(own for own, _ in told), all(own >= best for own, best in told)


def told_of(entries: list[Json], ids: list[int]) -> Iterator[tuple[float, float]]:
    """(log-probability of the token, that of the likeliest) for each token."""
    for entry, token in zip(entries, ids, strict=True):
        values = {key: value.get("logprob") for key, value in (entry or {}).items()}
        own = values.get(str(token))
        if own is None or not math.isfinite(own) or own <= UNDEFINED:
            raise Failure(f"the engine's log-probability of token {token} is {own}")
        yield float(own), max(float(value) for value in values.values() if value is not None)
