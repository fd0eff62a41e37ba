"""plan: every candidate expanded and checked for feasibility, with estimates; pure, nothing heavy imported."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from optpipe import costs
from optpipe.backends.engines import ENGINES
from optpipe.backends.quantizers.libraries import LIBRARIES
from optpipe.errors import InputError, InputProblems, Problem, did_you_mean
from optpipe.model import task_hub
from optpipe.model.compat import TITLES, Case, Finding, feasibility, findings
from optpipe.model.hardware import HERE
from optpipe.model.linears import CONV1D
from optpipe.model.selectors import selector_problems
from optpipe.recipe.schema import Recipe
from optpipe.records import (
    Candidate,
    Estimated,
    Hardware,
    ModelFacts,
    Plan,
    Refusal,
    to_json,
)
from optpipe.toolchains.found import Release
from optpipe.toolchains.managed import ROLES
from optpipe.toolchains.versions import locked_version

VERSIONS = (
    ("vllm", "vllm"),
    ("vllm", "torchvision"),
    ("quantize", "transformers"),
    ("onnxruntime", "onnxruntime-genai"),
)
"""Toolchain and package whose versions the compatibility checks ask for."""
Releases = Mapping[str, Release]
NONE: Releases = MappingProxyType({})


@dataclass(frozen=True)
class Explained:
    """One candidate with every check that was made for it."""

    candidate: str
    hardware: str
    feasible: bool
    findings: tuple[Finding, ...]


def plan(recipe: Recipe, facts: ModelFacts, hardware: Hardware, releases: Releases = NONE) -> Plan:
    """checkpoint x target and base x target: feasible with estimates, or refused with the reason; by the `releases`
    that are found of engines that optpipe does not install.

    InputProblems where the recipe itself is wrong for this model.
    """
    check_against_model(recipe, facts)
    feasible, refused = [], []
    for candidate in expand(recipe):
        looked = backend_findings(recipe, facts, hardware, candidate, releases)
        own = [one for one in looked if one.outcome == "no"]
        found = feasibility(case_of(recipe, facts, hardware, candidate, releases))
        refused += [Refusal(candidate.name, no.reason, no.nearest) for no in own]
        refused += [Refusal(candidate.name, no.reason, no.nearest) for no in found.refused]
        if not own and not found.refused:
            notes = (*found.notes, *ENGINES[recipe.targets[candidate.target].engine].NOTES)
            feasible.append(costs.estimate(recipe, facts, hardware, candidate, notes))
    return Plan(
        model=facts.source,
        hardware=hardware,
        feasible=tuple(feasible),
        refused=tuple(refused),
        seconds=costs.total_seconds(recipe, facts, hardware, feasible),
        disk_bytes=costs.disk(recipe, facts, feasible),
        downloads_bytes=Estimated(facts.weight_bytes if facts.kind == "hub" else 0, "bytes", "weights from the hub"),
        warnings=(*facts.notes, *task_notes(recipe), *release_notes(releases)),
    )


def release_notes(releases: Releases) -> Iterator[str]:
    """Which release a plan went by, of engines that optpipe does not install."""
    for engine, release in releases.items():
        title = TITLES.get(engine, engine)
        if release.version is None:
            yield f"which {title} will be found is not known, so it is judged by the newest: {release.told}"
        else:
            yield f"judged by {title} {release.version}, found {release.told}"


def task_notes(recipe: Recipe) -> Iterator[str]:
    """What scoring tasks will need that this machine may not have or allow."""
    for name, commit in filter(None, map(task_hub.parse, recipe.tasks.names)):
        yield f"task {name}: keys from lm-eval, documents from the hub at commit {commit[:12]}"
    for name, command in recipe.tasks.commands.items():
        yield f"{name} is scored by {shlex.join(command.argv)!r}, which runs only with `optpipe build --allow-commands`"


def case_of(
    recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate, releases: Releases = NONE
) -> Case:
    """The candidate as the compatibility checks see it; versions of what optpipe itself would install, and of what
    was found."""
    versions: dict[str, str] = {}
    for role, package in VERSIONS:
        lock = ROLES[role]["cuda" if hardware.gpus else "cpu"]
        own = recipe.toolchains.get(role) or recipe.toolchains.get(lock)
        if own is None or own.kind == "managed":
            found = locked_version(role, package, cuda=bool(hardware.gpus))
            versions |= {package: found} if found else {}
    versions |= {engine: release.version for engine, release in releases.items() if release.version}
    rows = recipe.calibration
    calibrated = (rows.samples, rows.sequence_length) if rows else (0, 0)
    own_code = recipe.model.trust_remote_code
    return Case(facts, candidate.scheme, candidate.engine, hardware, versions, calibrated, own_code)


def explain(recipe: Recipe, facts: ModelFacts, hardware: Hardware, name: str, releases: Releases = NONE) -> Explained:
    """Every check that is made for one candidate; InputError for a name that the recipe does not make."""
    check_against_model(recipe, facts)
    candidates = {candidate.name: candidate for candidate in expand(recipe)}
    if name not in candidates:
        hint = did_you_mean(name, list(candidates))
        raise InputError(f"{name!r} is no candidate of this recipe", place="--why", hint=hint)
    candidate = candidates[name]
    own = backend_findings(recipe, facts, hardware, candidate, releases)
    found = (*own, *findings(case_of(recipe, facts, hardware, candidate, releases)))
    return Explained(name, hardware.name, all(one.outcome != "no" for one in found), found)


def backend_findings(
    recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate, releases: Releases
) -> Iterator[Finding]:
    """What the backends themselves know of a candidate; what this machine lacks only where it is planned for."""
    if scheme := recipe.checkpoints.get(candidate.checkpoint):
        what = f"{scheme.method} on {facts.architecture}"
        conv1d = facts.model_type in CONV1D  # no method works, so no other is nearest
        reason = None if conv1d else LIBRARIES[scheme.library].unmapped(scheme, facts.architecture)
        yield told("method on architecture", what, reason, "method: gptq")
    target = recipe.targets[candidate.target]
    if hardware.name == HERE:
        release = releases[target.engine].version if target.engine in releases else None
        for check, value, reason, nearest in ENGINES[target.engine].here(target, hardware, release):
            yield told(check, value, reason, nearest)


def told(check: str, value: str, reason: str | None, nearest: str) -> Finding:
    return Finding(check, value, "no", reason, nearest) if reason else Finding(check, value, "ok")


def require_feasible(plan: Plan) -> None:
    """Refuse a plan in which nothing can work, with the reason for each candidate."""
    if not plan.feasible:
        raise InputProblems(tuple(Problem(no.candidate, no.reason, no.nearest or "another scheme or machine")
                                  for no in plan.refused))  # fmt: skip


def check_against_model(recipe: Recipe, facts: ModelFacts) -> None:
    """Selectors that match nothing or not what they expect, lengths that the model cannot reach."""
    problems: list[Problem] = []
    names = [name for name, _, _ in facts.linears]
    for name, scheme in recipe.checkpoints.items():
        for key in ("ignore", "int8"):
            for number, selector in enumerate(getattr(scheme, key, ())):
                problems += selector_problems([selector], names, f"checkpoints.{name}.{key}.{number}")
    load, scoring, most = recipe.load, recipe.scoring, facts.max_positions
    for place, tokens in (
        ("load", load.input_tokens + load.output_tokens),
        ("scoring.unit_tokens", scoring.unit_tokens),
        ("calibration.sequence_length", recipe.calibration.sequence_length if recipe.calibration else 0),
    ):
        if most and tokens > most:
            text = f"{tokens} tokens are more than the model's {most} positions"
            problems.append(Problem(place, text, f"{most} tokens at most"))
    if problems:
        raise InputProblems(tuple(problems))


def expand(recipe: Recipe) -> Iterator[Candidate]:
    """`base@target` first, then every checkpoint on every target."""
    for target, engine in recipe.targets.items():
        yield Candidate(f"base@{target}", "base", target, None, to_json(engine))
    for name, scheme in recipe.checkpoints.items():
        for target, engine in recipe.targets.items():
            yield Candidate(f"{name}@{target}", name, target, to_json(dataclasses.asdict(scheme)), to_json(engine))
