"""One engine with one configuration, as stages use it: open a session for a checkpoint, measure a load in it."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from optpipe import gates, judge
from optpipe.backends import engines
from optpipe.backends.executors.local import EngineSession
from optpipe.backends.loads.figures import figures
from optpipe.backends.loads.load import Load
from optpipe.backends.quantizers.libraries import LIBRARIES
from optpipe.errors import EnvironmentMissing, InputProblems, Problem
from optpipe.model.hardware import HERE
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import (
    Check,
    Engine,
    EngineSpec,
    Hardware,
    Job,
    Json,
    KeptCode,
    LoadFigures,
    Needs,
    Scored,
    to_json,
)
from optpipe.run import Run
from optpipe.toolchains import ON_PATH
from optpipe.toolchains.found import Release, release_of

Settings = Mapping[str, Any]


def spec_of(run: Run, recipe: Recipe, entry: Entry, settings: Settings) -> EngineSpec:
    """The engine that serves a candidate with these settings."""
    target = recipe.targets[entry.planned.candidate.target]
    engine = engines.ENGINES[target.engine]
    settled = engine.settled(target, run.toolchains(engine.toolchain(run.hardware)))
    spec = engine.spec(entry.name, settled, entry.weights, settings, run.hardware, recipe.engine_threads)
    planned = entry.planned.engine_memory or entry.planned.memory_bytes
    return replace(spec, needs=replace(spec.needs, memory_bytes=int(planned.value)))


def jobs_toolchains(recipe: Recipe) -> tuple[str, ...]:
    """Toolchains of quantizers, load generator and lm-eval."""
    libraries = {LIBRARIES[scheme.library].TOOLCHAIN for scheme in recipe.checkpoints.values()} - {"quantize"}
    return ("quantize", *sorted(libraries), "load", *(("tasks",) if recipe.tasks.names else ()))


def toolchains(recipe: Recipe, hardware: Hardware) -> tuple[str, ...]:
    """Every toolchain that the line needs on a machine, engines included."""
    own = {engines.ENGINES[target.engine].toolchain(hardware) for target in recipe.targets.values()}
    return (*jobs_toolchains(recipe), *sorted(own))


def releases(recipe: Recipe, hardware: Hardware) -> dict[str, Release]:
    """{engine: its release} of the engines that optpipe installs none of, as they are found on this machine."""
    found: dict[str, Release] = {}
    for target in recipe.targets.values():
        engine = engines.ENGINES[target.engine]
        name = engine.toolchain(hardware)
        if name in ON_PATH and target.engine not in found:
            here = hardware.name == HERE
            away = Release(None, f"it is not looked for on {hardware.name}")
            found[target.engine] = release_of(name, engine.PACKAGES[0], recipe.toolchains) if here else away
    return found


def prepare(run: Run, recipe: Recipe) -> dict[str, str]:
    """Get every toolchain ready that the line needs on this machine: quantizers, load generator, lm-eval, engines.

    Tokens and scores are made in `quantize`, whoever quantizes.
    {target: why its engine is absent}; EnvironmentMissing where a target that is required is absent, or all are;
    InputProblems for what an engine that is not of our lock does not take.
    """
    run.prepare(jobs_toolchains(recipe))
    absent: dict[str, str] = {}
    missing: EnvironmentMissing | None = None
    problems: list[Problem] = []
    for name, target in recipe.targets.items():
        engine = engines.ENGINES[target.engine]
        try:
            chain = run.toolchains(engine.toolchain(run.hardware))
            problems += engine.refused(target, f"targets.{name}", chain, run.hardware)
        except EnvironmentMissing as error:
            if name in run.required:
                raise
            missing, absent[name] = error, f"{target.engine} is absent: {error}"
            run.talk.say(f"{name}: skipped: {error}")
    if missing is not None and len(absent) == len(recipe.targets):
        raise missing
    if problems:
        raise InputProblems(tuple(problems))
    return absent


def engine_of(run: Run, recipe: Recipe, entry: Entry) -> Engine:
    """The engine that ships: name, version and the configuration that was confirmed."""
    spec = spec_of(run, recipe, entry, entry.settings)
    version = engines.version(engines.ENGINES[spec.engine], run.toolchains(spec.toolchain).versions)
    return Engine(spec.engine, version, spec.config, dict(spec.environment), spec.compiles)


@contextmanager
def session(run: Run, recipe: Recipe, entry: Entry, settings: Settings) -> Iterator[EngineSession]:
    """An engine session; the engine starts only if one of its jobs is not kept, and stays for the next one. What its
    starts compiled goes to the candidate's record."""
    with run.executor.session(spec_of(run, recipe, entry, settings), park=True) as engine:
        try:
            yield engine
        finally:
            note_starts(run, entry, engine)


def note_starts(run: Run, entry: Entry, engine: EngineSession) -> None:
    """Add how an engine started, where it compiles then, to the candidate's record of compiling."""
    made = entry.compiled
    if made is None or made.code is None or not engine.starts:
        return
    code = functools.reduce(KeptCode.seen, engine.starts, made.code)
    entry.compiled = run.record(f"05-compile/{entry.name}/record.json", replace(made, code=code))


LOOKS = 3
"""A load that was not sent as asked (a busy client) says nothing of the engine: it is sent again so often."""
LOOK_SEED_STEP = 100
"""Added to the seed for each further look, so that it has prompts of its own."""


@dataclass(frozen=True)
class Loaded:
    """What a load showed: figures, whether they are a result, the command that makes them again."""

    figures: LoadFigures
    checks: tuple[Check, ...]
    command: str
    job: str


def measure(
    recipe: Recipe, base: Scored, engine: EngineSession, title: str, seed: int, requests: int | None = None
) -> Loaded:
    """The recipe's load on a session's engine, with prompts of its own (`seed`); again where the client was the limit.

    `requests`: by default the recipe's own number.
    """
    limits = gates.resolve(recipe.gates)
    looks = LOOKS if recipe.on_inconclusive == "extend" else 1
    for look in range(looks):
        name = f"{title}, look {look + 1}" if look else title
        job = load_job(recipe, base, name, requests or recipe.load.requests, seed + LOOK_SEED_STEP * look)
        done = engine.run(job)
        found = figures(done.record, recipe.load, recipe.slo)
        loaded = Loaded(found, judge.load_checks(found, limits), done.record["command"], done.key)
        if judge.combine(loaded.checks) != "inconclusive":
            break
    return loaded


def load_job(recipe: Recipe, base: Scored, title: str, requests: int, seed: int) -> Job:
    load: Load = recipe.load
    options: Json = {**to_json(load), "requests": requests, "seed": seed}
    inputs = {"tokenizer": base.artifact}
    return Job("load", title, "load", options, inputs, needs=Needs(exclusive=True), bound_to_hardware=True)
