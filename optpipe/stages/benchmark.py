"""benchmark: serving figures under the declared load, on the engine that serves the candidate; and, beside them, the
same load by the engine's own benchmark without a server, where it has one."""

from __future__ import annotations

from dataclasses import replace

from optpipe import judge, serving
from optpipe.backends import engines
from optpipe.backends.executors.local import EngineSession
from optpipe.backends.loads.figures import figures
from optpipe.errors import BackendFailed
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import Checkpoint, EngineSpec, Job, Needs, Offline, Serving, to_json
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


def offline(run: Run, recipe: Recipe, base: Checkpoint, entry: Entry, served: Serving) -> Serving:
    """The serving record with what the engine's own benchmark found, once its server is gone; as it was where the
    engine has none. It ranks nothing, so what it cannot do is told and ends nothing."""
    tool = engines.ENGINES[recipe.targets[entry.candidate.target].engine].OFFLINE
    if tool is None:
        return served
    if recipe.load.concurrency is None:
        found = Offline(tool.name, "it has no arrivals at a rate, only a number of requests in flight", None, "")
    else:
        job = offline_job(recipe, base, entry, tool.job, serving.spec_of(run, recipe, entry, {}))
        try:
            done = run.executor.run(job)
            told = figures(done.record, recipe.load, recipe.slo)
            found = Offline(tool.name, "", told, done.record["command"], done.key)
        except BackendFailed as error:
            found = Offline(tool.name, error.message, None, "")
    return run.record(f"07-benchmark/{entry.name}.json", replace(served, offline=found))


def offline_job(recipe: Recipe, base: Checkpoint, entry: Entry, kind: str, spec: EngineSpec) -> Job:
    width = spec.config.get("tensor_parallel_size", 1)
    own = {"seed": recipe.seed, "name": spec.served_name, "config": spec.config_text, "width": width}
    needs = Needs(spec.needs.cpus, spec.needs.gpus, spec.needs.memory_bytes, exclusive=True)
    return Job(
        kind=kind,
        title=f"{entry.name}: load without a server",
        toolchain=spec.toolchain,
        options={**to_json(recipe.load), **own},
        inputs={"model": entry.weights, "tokenizer": base.artifact},
        needs=needs,
        threads=spec.needs.cpus,
        seed=recipe.seed,
        bound_to_hardware=True,
    )
