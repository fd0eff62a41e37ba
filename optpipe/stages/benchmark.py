"""benchmark: serving figures under the declared load, on the engine that serves the candidate."""

from __future__ import annotations

from optpipe import judge, serving
from optpipe.backends.executors.local import EngineSession
from optpipe.errors import BackendFailed
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import Checkpoint, Serving
from optpipe.run import Run


def benchmark(run: Run, recipe: Recipe, base: Checkpoint, entry: Entry, engine: EngineSession) -> Serving:
    """The recipe's load on a session's engine; an engine that dies under it is a failed candidate."""
    config = engine.spec.config
    try:
        loaded = serving.measure(recipe, base, engine, f"{entry.name}: load", recipe.seed)
    except BackendFailed as error:
        return run.record(
            f"07-benchmark/{entry.name}.json", Serving(entry.name, config, "failed", error.message, None, "")
        )
    status = judge.combine(loaded.checks)
    reason = "; ".join(check.reason for check in loaded.checks if check.status == status)
    record = Serving(entry.name, config, status, reason, loaded.figures, loaded.command, loaded.job)
    return run.record(f"07-benchmark/{entry.name}.json", record)
