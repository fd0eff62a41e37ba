"""Worker body `tasks`, in an engine session: log-likelihoods of the requests that lm-eval made, by what serves.

The engine is asked for `prompt_logprobs` of token ids, so no tokenizer stands between and a context is never
read from the prefix cache (see parity.py). A continuation is greedy where each of its tokens is the likeliest,
or as likely as that.

input: `requests` (files of `task-requests`). files: answers.jsonl, a line each: [log-likelihood in nats, greedy].
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from optpipe.backends.evaluators.client import UNDEFINED, Engine, Refused
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 1

Answer = tuple[float, bool]


def run(options: Json, work: Work) -> Json:
    """Option `concurrency`: requests in flight. {"requests", "tokens"}."""
    engine = Engine.of(work.context, options)
    requests = read_requests(work.inputs["requests"])
    pool = ThreadPoolExecutor(max_workers=int(options.get("concurrency", 8)))
    answers: list[Answer] = []
    try:
        for answer in pool.map(lambda request: asked(engine, request["ids"], request["from"]), requests):
            answers.append(answer)
            work.progress(len(answers), len(requests), "requests of tasks answered")
    finally:
        pool.shutdown(cancel_futures=True)
    write_answers(answers, work.out)
    return {"requests": len(answers), "tokens": sum(len(request["ids"]) for request in requests)}


def read_requests(folder: Path) -> list[Json]:
    lines = (folder / "requests.jsonl").read_text(encoding="utf-8").splitlines()
    return [dict(json.loads(line)) for line in lines]


def write_answers(answers: list[Answer], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(answer) + "\n" for answer in answers)
    (folder / "answers.jsonl").write_text(text, encoding="utf-8")


def asked(engine: Engine, ids: list[int], first: int) -> Answer:
    """Log-likelihood of ids[first:] given those before, and whether greedy decoding would write them."""
    try:
        choice = engine.complete(ids, max_tokens=1, temperature=0, prompt_logprobs=1)
    except Refused as refused:
        hint = f"the engine needs max_model_len of at least {len(ids) + 1}" if refused.status == 400 else None
        raise Failure(str(refused), hint=hint, transient=not engine.healthy()) from None
    entries = choice.get("prompt_logprobs") or []
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
