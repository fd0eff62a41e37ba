"""Perplexity of what is really served: the engine's own log-probabilities, per unit of text."""

from __future__ import annotations

import math

from optpipe.backends.evaluators.parity import engine_logprobs, load_rows
from optpipe.records import Json
from optpipe.worker import Work

REVISION = 1


def run(options: Json, work: Work) -> Json:
    """Option `rows`, input `tokens`; {"units": [{"tokens", "nll" (nats)}]} as the score job gives them."""
    tokens = load_rows(work.inputs["tokens"] / "tokens.npy", options.get("rows"))
    rows = engine_logprobs(tokens, options, work)
    return {"units": [{"tokens": len(values), "nll": -math.fsum(values)} for values in rows]}
