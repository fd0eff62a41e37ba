"""`score-onnxruntime`: what the fake `score` says of the weights beside the graph."""

from __future__ import annotations

from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes.bodies import score

REVISION = 1


def run(options: Json, work: Work) -> Json:
    return score.run({**options, "keep_logits": False}, work)
