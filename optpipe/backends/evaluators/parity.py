"""Does the engine compute what transformers computes? Log-probabilities of the same tokens, side by side.

The engine is asked for `prompt_logprobs` of token ids, so no tokenizer stands between. vLLM reads nothing
from its prefix cache for such a request (seen: the same values with the cache on), and needs a
`max_model_len` of one more than the window, since it must generate a token.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optpipe.backends.evaluators.client import UNDEFINED, Engine, Refused
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 1


def run(options: Json, work: Work) -> Json:
    """Option `rows`; inputs `tokens` and `score` of the same checkpoint, whose first rows they are. Nats."""
    import numpy as np

    tokens = load_rows(work.inputs["tokens"] / "tokens.npy", options.get("rows"))
    reference = np.load(work.inputs["score"] / "token_logprobs.npy", allow_pickle=False)[: len(tokens)]
    if reference.shape != (tokens.shape[0], tokens.shape[1] - 1):
        message = f"the reference has shape {reference.shape}, the tokens {tokens.shape}"
        raise Failure(message, hint="score must come from the same tokens job")
    if not np.isfinite(reference).all():
        raise Failure("a reference log-probability is not finite")
    served = np.array(list(engine_logprobs(tokens, options, work)))
    difference = np.abs(served - reference.astype(np.float64))
    return {
        "mean_abs": float(difference.mean()),
        "p99_abs": float(np.quantile(difference, 0.99)),
        "max_abs": float(difference.max()),
        "n_tokens": int(difference.size),
        "perplexity": math.exp(-float(served.mean())),
        "reference_perplexity": math.exp(-float(reference.mean(dtype=np.float64))),
    }


def load_rows(path: Path, rows: int | None) -> Any:
    """The first `rows` rows of token ids, all where it is None: int array [rows, L]."""
    import numpy as np

    tokens = np.load(path, allow_pickle=False)
    if tokens.ndim != 2 or tokens.shape[1] < 2 or len(tokens) == 0:
        raise Failure(f"{path.name} has shape {tokens.shape}: rows of at least two token ids expected")
    return tokens[:rows]


def engine_logprobs(tokens: Any, options: Json, work: Work) -> Iterator[list[float]]:
    """For each row the engine's log-probability of every token but the first, in nats."""
    engine = Engine.of(work.context, options)
    for number, row in enumerate(tokens):
        work.progress(number, len(tokens), "rows through the engine")
        yield prompt_logprobs(engine, [int(token) for token in row])


def prompt_logprobs(engine: Engine, ids: list[int]) -> list[float]:
    """Log-probabilities of ids[1:], each given those before it. Raises `Failure`."""
    try:
        entries = engine.prompt_logprobs(ids, 0)
    except Refused as refused:
        healthy = engine.healthy()
        hint = f"the engine needs max_model_len of at least {len(ids) + 1}" if refused.status == 400 else None
        raise Failure(str(refused), hint=hint, transient=not healthy) from None
    if len(entries) != len(ids):
        raise Failure(f"the engine gave {len(entries)} log-probabilities for {len(ids)} tokens")
    return [_logprob(entry, token, at) for at, (entry, token) in enumerate(zip(entries, ids)) if at > 0]


def _logprob(entry: Json | None, token: int, at: int) -> float:
    value = ((entry or {}).get(str(token)) or {}).get("logprob")
    if value is None or not math.isfinite(value) or value <= UNDEFINED:
        raise Failure(f"the engine's log-probability of token {token} at position {at} is {value}")
    return float(value)
