"""plan: every candidate expanded and checked for feasibility, with estimates; pure, nothing heavy imported."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from optpipe.backends.engines import ENGINES
from optpipe.backends.quantizers.libraries import LIBRARIES
from optpipe.errors import InputError, InputProblems, Problem, did_you_mean
from optpipe.model import memory, roofline, task_hub
from optpipe.model.compat import Case, Finding, feasibility, findings
from optpipe.model.hardware import HERE, peaks
from optpipe.model.selectors import selector_problems
from optpipe.recipe.schema import Recipe
from optpipe.records import (
    Candidate,
    CandidatePlan,
    Estimated,
    Hardware,
    ModelFacts,
    Plan,
    Refusal,
    to_json,
)
from optpipe.toolchains.managed import ROLES
from optpipe.toolchains.versions import locked_version

START_S = 40.0
"""Seconds until an engine is ready on a CPU, mostly imports; measured 32 to 35."""
ATTAINED = 0.5
"""Share of the peak that quantizing and scoring keep up."""
FALLBACK_FLOPS = 2e10
"""Per core, where nothing is known of the processor."""


VERSIONS = (("vllm", "vllm"), ("quantize", "transformers"))
"""Toolchain and package whose versions the compatibility table asks for."""


@dataclass(frozen=True)
class Explained:
    """One candidate with every check that was made for it."""

    candidate: str
    hardware: str
    feasible: bool
    findings: tuple[Finding, ...]


def plan(recipe: Recipe, facts: ModelFacts, hardware: Hardware) -> Plan:
    """checkpoint x target and base x target: feasible with estimates, or refused with the reason.

    InputProblems where the recipe itself is wrong for this model.
    """
    check_against_model(recipe, facts)
    feasible, refused = [], []
    for candidate in expand(recipe):
        own = [one for one in backend_findings(recipe, facts, hardware, candidate) if one.outcome == "no"]
        found = feasibility(case_of(recipe, facts, hardware, candidate))
        refused += [Refusal(candidate.name, no.reason, no.nearest) for no in own]
        refused += [Refusal(candidate.name, no.reason, no.nearest) for no in found.refused]
        if not own and not found.refused:
            feasible.append(estimate(recipe, facts, hardware, candidate, found.notes))
    seconds = total_seconds(recipe, hardware, feasible)
    disk = sum(c.disk_bytes.value for c in feasible) + logits_bytes(recipe, facts)
    return Plan(
        model=facts.source,
        hardware=hardware,
        feasible=tuple(feasible),
        refused=tuple(refused),
        seconds=seconds,
        disk_bytes=Estimated(disk, "bytes", "checkpoints, their copies in bundle and registry, the base's logits"),
        downloads_bytes=Estimated(facts.weight_bytes if facts.kind == "hub" else 0, "bytes", "weights from the hub"),
        warnings=(*facts.notes, *task_notes(recipe)),
    )


def task_notes(recipe: Recipe) -> Iterator[str]:
    """What scoring tasks will need that this machine may not have or allow."""
    for name, commit in filter(None, map(task_hub.parse, recipe.tasks.names)):
        yield f"task {name}: keys from lm-eval, documents from the hub at commit {commit[:12]}"
    for name, command in recipe.tasks.commands.items():
        yield f"{name} is scored by {shlex.join(command.argv)!r}, which runs only with `optpipe build --allow-commands`"


def case_of(recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate) -> Case:
    """The candidate as the compatibility checks see it; versions only of what optpipe itself would install."""
    versions = {}
    for role, package in VERSIONS:
        lock = ROLES[role]["cuda" if hardware.gpus else "cpu"]
        own = recipe.toolchains.get(role) or recipe.toolchains.get(lock)
        if own is None or own.kind == "managed":
            versions[package] = locked_version(role, package, cuda=bool(hardware.gpus)) or ""
    rows = recipe.calibration
    calibrated = (rows.samples, rows.sequence_length) if rows else (0, 0)
    own_code = recipe.model.trust_remote_code
    return Case(facts, candidate.scheme, candidate.engine, hardware, versions, calibrated, own_code)


def explain(recipe: Recipe, facts: ModelFacts, hardware: Hardware, name: str) -> Explained:
    """Every check that is made for one candidate; InputError for a name that the recipe does not make."""
    check_against_model(recipe, facts)
    candidates = {candidate.name: candidate for candidate in expand(recipe)}
    if name not in candidates:
        hint = did_you_mean(name, list(candidates))
        raise InputError(f"{name!r} is no candidate of this recipe", place="--why", hint=hint)
    candidate = candidates[name]
    own = backend_findings(recipe, facts, hardware, candidate)
    found = (*own, *findings(case_of(recipe, facts, hardware, candidate)))
    return Explained(name, hardware.name, all(one.outcome != "no" for one in found), found)


def backend_findings(
    recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate
) -> Iterator[Finding]:
    """What the backends themselves know of a candidate; what this machine lacks only where it is planned for."""
    if scheme := recipe.checkpoints.get(candidate.checkpoint):
        what = f"{scheme.method} on {facts.architecture}"
        reason = LIBRARIES[scheme.library].unmapped(scheme, facts.architecture)
        yield told("method on architecture", what, reason, "method: gptq")
    target = recipe.targets[candidate.target]
    if hardware.name == HERE:
        for check, value, reason, nearest in ENGINES[target.engine].here(target, hardware):
            yield told(check, value, reason, nearest)


def told(check: str, value: str, reason: str | None, nearest: str) -> Finding:
    return Finding(check, value, "no", reason, nearest) if reason else Finding(check, value, "ok")


def disk_shortage(plan: Plan, free: int, where: str) -> str | None:
    """What lacks where the artifacts would lie on this disk, with downloads; None where there is room."""
    needed = plan.disk_bytes.value + plan.downloads_bytes.value
    if needed <= free:
        return None
    what = f"{memory.show(needed)} of disk are needed (estimated), {memory.show(free)} are free in {where}"
    return f"{what}: put them elsewhere with `optpipe build --artifacts DIR`, or take fewer candidates"


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


def estimate(
    recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate, notes: tuple[str, ...]
) -> CandidatePlan:
    length = recipe.load.input_tokens + recipe.load.output_tokens
    sequences = recipe.load.concurrency or 1
    engine = candidate.engine
    serving = memory.serving_memory(facts, candidate.scheme, engine, hardware, sequences, length).estimated()
    needed = serving
    if candidate.scheme is not None and recipe.calibration is not None:
        rows = recipe.calibration
        quantizing = memory.quantize_memory(facts, candidate.scheme, rows.samples, rows.sequence_length)
        needed = max(serving, quantizing, key=lambda e: e.value)
    return CandidatePlan(
        candidate=candidate,
        bytes=memory.checkpoint_bytes(facts, candidate.scheme),
        bits_per_weight=memory.bits_per_weight(facts, candidate.scheme),
        memory_bytes=needed,
        disk_bytes=memory.disk_bytes(facts, candidate.scheme),
        seconds=candidate_seconds(recipe, facts, hardware, candidate),
        notes=notes,
    )


def candidate_seconds(recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate) -> Estimated:
    """Quantize, score and one engine session, from floating point operations and this machine's peak."""
    rate = sustained(hardware, recipe.threads)
    scored = len(recipe.texts) * recipe.scoring.units * recipe.scoring.unit_tokens
    work = 2.0 * facts.parameters * scored
    if candidate.scheme is not None and recipe.calibration is not None:
        rows = recipe.calibration
        work += facts.parameters * roofline.calibration_operations(candidate.scheme, rows.samples, rows.sequence_length)
    served = recipe.load.requests * (recipe.load.input_tokens + recipe.load.output_tokens)
    seconds = work / rate + START_S + 2.0 * facts.parameters * served / rate
    return Estimated(seconds, "s", f"operations at {rate / 1e9:.0f} GFLOPS, and {START_S:.0f} s to start the engine")


def sustained(hardware: Hardware, threads: int) -> float:
    """Floating point operations a second that one job keeps up: half the peak of what it runs on."""
    peak = peaks(hardware)
    whole = roofline.operations(peak, None) if peak else FALLBACK_FLOPS * hardware.cores
    return ATTAINED * whole * (1.0 if hardware.gpus else min(1.0, threads / hardware.cores))


def total_seconds(recipe: Recipe, hardware: Hardware, feasible: list[CandidatePlan]) -> Estimated:
    """Candidates share the cores while nothing is measured; sessions, trials and the confirmation do not."""
    side_by_side = max(1, min(hardware.cores // recipe.threads, 4))
    alone = sum(c.seconds.value for c in feasible)
    per_session = alone / max(1, len(feasible))
    total = alone / side_by_side + per_session * (recipe.tune.trials + 1) / 2
    return Estimated(total, "s", f"{side_by_side} jobs side by side, then {recipe.tune.trials} trials")


def logits_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """The base's logits in bf16 on every scored token."""
    return 2 * facts.vocabulary * len(recipe.texts) * recipe.scoring.units * (recipe.scoring.unit_tokens - 1)
