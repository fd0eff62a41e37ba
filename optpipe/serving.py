"""One engine with one configuration, as stages use it: open a session for a checkpoint, measure a load in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from optpipe.backends.engines import vllm
from optpipe.backends.executors.local import EngineSession
from optpipe.backends.loads.aiperf import Load
from optpipe.backends.loads.figures import figures, judge
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import Check, Checkpoint, Engine, EngineSpec, Job, Json, LoadFigures, Needs, to_json
from optpipe.run import Run

Settings = Mapping[str, Any]


def spec_of(run: Run, recipe: Recipe, entry: Entry, settings: Settings) -> EngineSpec:
    """The engine that serves a candidate with these settings."""
    target = recipe.targets[entry.planned.candidate.target]
    spec = vllm.spec(entry.name, target, entry.weights, settings, run.hardware, recipe.engine_threads)
    return replace(spec, needs=replace(spec.needs, memory_bytes=int(entry.planned.memory_bytes.value)))


def toolchains(run: Run, recipe: Recipe) -> tuple[str, ...]:
    """Every toolchain that the line needs on this machine: quantizers, engines, load generator."""
    engines = {vllm.toolchain(run.hardware) for _ in recipe.targets}
    return ("quantize", *sorted(engines), "load")


def engine_of(run: Run, recipe: Recipe, entry: Entry) -> Engine:
    """The engine that ships: name, version and the configuration that was confirmed."""
    spec = spec_of(run, recipe, entry, entry.settings)
    versions = run.toolchains(spec.toolchain).versions
    version = versions.get("vllm") or versions.get(spec.toolchain, "unknown")
    return Engine(spec.engine, version, spec.config, dict(spec.environment))


@contextmanager
def session(run: Run, recipe: Recipe, entry: Entry, settings: Settings) -> Iterator[EngineSession]:
    """An engine session; the engine starts only if one of its jobs is not kept."""
    with run.executor.session(spec_of(run, recipe, entry, settings)) as engine:
        yield engine


def load_job(recipe: Recipe, base: Checkpoint, title: str, requests: int, seed: int) -> Job:
    """The recipe's load with prompts of their own (`seed`)."""
    load: Load = recipe.load
    options: Json = {**to_json(load), "requests": requests, "seed": seed}
    inputs = {"tokenizer": base.artifact}
    return Job("load", title, "load", options, inputs, needs=Needs(exclusive=True), bound_to_hardware=True)


@dataclass(frozen=True)
class Loaded:
    """What a load showed: figures, what judges them, the command that makes them again."""

    figures: LoadFigures
    checks: tuple[Check, ...]
    command: str
    job: str


def measure(recipe: Recipe, engine: EngineSession, job: Job) -> Loaded:
    """Put the recipe's load on a session's engine."""
    done = engine.run(job)
    checks = judge(done.record, recipe.slo)
    return Loaded(figures(done.record, recipe.load, recipe.slo), checks, done.record["command"], done.key)
