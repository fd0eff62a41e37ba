"""benchmark: serving figures under the declared load, on the engine that serves the candidate."""

from __future__ import annotations

from optpipe import gates, judge, serving
from optpipe.backends.executors.local import EngineSession
from optpipe.errors import BackendFailed
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import Checkpoint, Serving
from optpipe.run import Run

LOOKS = 3
"""A load that was not sent as asked (a busy client) says nothing of the engine: it is sent again so often."""


def benchmark(run: Run, recipe: Recipe, base: Checkpoint, entry: Entry, engine: EngineSession) -> Serving:
    """The recipe's load on a session's engine; an engine that dies under it is a failed candidate."""
    config = engine.spec.config
    limits = gates.resolve(recipe.gates)
    try:
        for look in range(LOOKS if recipe.on_inconclusive == "extend" else 1):
            title = f"{entry.name}: load" + (f", look {look + 1}" if look else "")
            job = serving.load_job(recipe, base, title, recipe.load.requests, recipe.seed + look)
            loaded = serving.measure(recipe, engine, job)
            checks = judge.load_checks(loaded.figures, limits)
            if judge.combine(checks) != "inconclusive":
                break
    except BackendFailed as error:
        return run.record(
            f"07-benchmark/{entry.name}.json", Serving(entry.name, config, "failed", error.message, None, "")
        )
    status = judge.combine(checks)
    reason = "; ".join(check.reason for check in checks if check.status == status)
    record = Serving(entry.name, config, status, reason, loaded.figures, loaded.command, loaded.job)
    return run.record(f"07-benchmark/{entry.name}.json", record)
