"""compile: what an engine needs built before it serves a checkpoint.

vLLM builds nothing ahead: an eager target runs as it is, a compiled one fills the engine's own cache at
its first start. The record says which, and what the result is bound to.
"""

from __future__ import annotations

from optpipe.recipe.schema import Recipe
from optpipe.records import Candidate, Checkpoint, Json
from optpipe.run import Run


def compile_(run: Run, recipe: Recipe, candidate: Candidate, checkpoint: Checkpoint) -> Json:
    """The record of what this target needs; nothing is built for vLLM but its own cache."""
    target = recipe.targets[candidate.target]
    eager = target.enforce_eager if target.enforce_eager is not None else run.hardware.gpus == 0
    record: Json = {
        "candidate": candidate.name,
        "engine": target.engine,
        "built": False,
        "how": "eager: nothing is compiled" if eager else "torch.compile at the engine's first start",
        "bound_to": None if eager else run.hardware.name,
        "model_digest": checkpoint.model_digest,
    }
    return run.record(f"05-compile/{candidate.name}/record.json", record)
