"""Gates to verdicts: pure functions of records that return checks with a sentence a person can act on.

A gate is passed when the one-sided 95 % bound lies on the good side of the limit, rejected when the
other bound lies on the bad side, else inconclusive. Quality gates, it does not rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from optpipe import stats
from optpipe.gates import Gates as Gates
from optpipe.gates import GateSettings as GateSettings
from optpipe.gates import resolve as resolve
from optpipe.records import Check, Checkpoint, Json, LoadFigures, Measured, Status, TaskQuality, TextQuality

Show = Callable[[float], str]
SEVERITY: tuple[Status, ...] = ("failed", "rejected", "inconclusive", "skipped", "passed")


# ---------------------------------------------------------------- verdicts


def verdict(figure: Measured, limit: float, *, at_most: bool = True) -> Status:
    """passed | rejected | inconclusive, from the one-sided 95 % bounds; not finite is failed."""
    if not math.isfinite(figure.value):
        return "failed"
    if figure.bounds95 is None:
        return "inconclusive"
    lower, upper = figure.bounds95
    good, bad = (upper < limit, lower > limit) if at_most else (lower > limit, upper < limit)
    return "passed" if good else "rejected" if bad else "inconclusive"


def combine(checks: Sequence[Check]) -> Status:
    """The worst of the checks: failed, then rejected, then inconclusive; nothing checked is skipped."""
    return min((check.status for check in checks), key=SEVERITY.index, default="skipped")


def text_checks(text: TextQuality, gates: Gates) -> tuple[Check, Check, Check]:
    """The three gates of one text."""
    return (
        gate(f"perplexity on {text.text}", text.change_pct, gates.perplexity_increase_pct, per_cent),
        gate(f"divergence on {text.text}", text.kl_divergence, gates.kl_divergence, nats),
        gate(f"top-1 agreement on {text.text}", text.top1_agreement, gates.top1_agreement, share, False),
    )


def gate(name: str, figure: Measured, limit: float, show: Show, at_most: bool = True) -> Check:
    """One gate with its sentence, e.g. "perplexity on wiki +8.8 % (95 % bound +7.9 %) is above the gate"."""
    status = verdict(figure, limit, at_most=at_most)
    value = f"{name} {show(figure.value)}"
    if status == "failed":
        return Check(name, status, f"{name} is {figure.value}: not a finite figure", None, limit)
    if figure.bounds95 is None:
        reason = f"{value} over {figure.n} units: a verdict needs at least {stats.MIN_UNITS}"
        return Check(name, status, reason, figure.value, limit)
    lower, upper = figure.bounds95
    above = (status == "rejected") == at_most
    if status == "inconclusive":
        needed = stats.units_needed(figure, limit)
        more = f"about {needed} units" if needed < 100 * figure.n else f"far more than {figure.n} units"
        reason = (
            f"{value} (95 % bounds {show(lower)} and {show(upper)}) is too close to the gate of "
            f"{show(limit)}: {more} would decide, {figure.n} are measured"
        )
    else:
        bound, side = (lower, "above") if above else (upper, "below")
        reason = f"{value} (95 % bound {show(bound)}) is {side} the gate of {show(limit)}"
    return Check(name, status, reason, figure.value, limit)


def tasks_against(
    champion: Sequence[TaskQuality], mine: Sequence[TaskQuality], allowed: float | None
) -> tuple[Check, ...]:
    """A new version against the champion on the same items, paired, where both have the answers to them.

    `allowed`: per cent points that may be lost in the mean over the tasks; None: the difference is told, and nothing
    depends on it.
    """
    theirs = {task.content: task for task in champion if task.content}
    both = [(theirs[own.content], own) for own in mine if own.content in theirs]
    pairs = [(old.correct, own.correct) for old, own in both if old.items == own.items]
    name = "accuracy on tasks against the champion's"
    if not pairs:
        reason = f"{name} is not known: no task was scored on the same items of both"
        return () if allowed is None else (Check(name, "inconclusive", reason, None, -allowed),)
    change = stats.paired_accuracy(pairs)
    if allowed is not None:
        return (gate(name, change, -allowed, points, at_most=False),)
    low, high = change.ci95 or (change.value, change.value)
    lost, won = (sum(map(len, ends)) for ends in zip(*(stats.flips(*pair) for pair in pairs)))
    reason = f"{name} {points(change.value)} [{low:+.1f}, {high:+.1f}], told and not judged"
    return (Check(name, "passed", f"{reason}: {lost} items lost, {won} won of {change.n}", change.value),)


# ---------------------------------------------------------------- the artifact


def artifact_checks(
    checkpoint: Checkpoint,
    base_bytes: int,
    planned_bits_per_weight: float,
    gates: Gates,
    not_finite: Sequence[str] = (),
) -> tuple[Check, ...]:
    """Finite, smaller than the base, and as many bits per weight as asked; the base itself only finite."""
    checks = [finite_check(not_finite)]
    if checkpoint.scheme is not None:
        checks.append(size_check(checkpoint.bytes, base_bytes))
        checks.append(bits_check(checkpoint.bits_per_weight, planned_bits_per_weight, gates))
    return tuple(checks)


def finite_check(not_finite: Sequence[str]) -> Check:
    if not not_finite:
        return Check("finite weights", "passed", "all weights are finite numbers")
    reason = f"{len(not_finite)} tensors hold NaN or infinity: {some(not_finite)}"
    return Check("finite weights", "failed", reason, float(len(not_finite)), 0.0)


def size_check(measured: int, base: int) -> Check:
    status: Status = "passed" if measured < base else "rejected"
    word = "smaller" if measured < base else "not smaller"
    reason = f"{megabytes(measured)} is {word} than the base's {megabytes(base)}"
    return Check("smaller than the base", status, reason, float(measured), float(base))


def bits_check(measured: float, planned: float, gates: Gates) -> Check:
    """An artifact whose weights were copied, or quantized otherwise than asked, shows here."""
    off = 100.0 * abs(measured - planned) / planned
    ok = off <= gates.bits_per_weight_tolerance_pct
    word = "as asked for" if ok else "not what was asked for"
    reason = (
        f"{measured:.2f} bits per weight are {word}: {planned:.2f} "
        f"within {gates.bits_per_weight_tolerance_pct:g} %"
    )
    return Check("bits per weight", "passed" if ok else "rejected", reason, measured, planned)


def coverage_check(asked: int, left: Sequence[str]) -> Check:
    """Every layer that the plan quantizes was quantized; `left` are those that were not."""
    if not left:
        return Check("coverage", "passed", f"all {asked} layers asked for are quantized")
    reason = f"{len(left)} of {asked} layers asked for were left as they were: {some(left)}"
    return Check("coverage", "rejected", reason, float(len(left)), 0.0)


COMPILED_ON = "compiled on "
"""The check of each text; its value is the change in per cent."""
COMPILED_TOLERANCE_PCT = 1.0
"""A compiled artifact's perplexity against its checkpoint's, where the target asks for no other numbers."""


def compiled_check(text: str, change: Measured, changes: str | None) -> Check:
    """Whether compiling left the numbers alone; where the target asks for other ones, that is the reason."""
    name, limit = f"{COMPILED_ON}{text}", COMPILED_TOLERANCE_PCT
    found = f"perplexity on {text} is {change.value:+.2f} % from its checkpoint's by transformers ({change.n} units)"
    if not math.isfinite(change.value):
        return Check(name, "failed", f"{name}: {change.value} is no finite figure", None, limit)
    if abs(change.value) <= limit:
        return Check(name, "passed", f"{found}, within {limit:g} %", change.value, limit)
    if changes:
        return Check(name, "passed", f"{found}, as the target asks for: {changes}", change.value, limit)
    reason = f"{found}: more than {limit:g} %, and the target asks for no other numbers"
    return Check(name, "rejected", reason, change.value, limit)


# ---------------------------------------------------------------- on the engine


def canary_check(record: Json) -> Check:
    """The `canary` job's record as a check: empty or repeated output rejects."""
    ok = record.get("passed") is True
    reason = str(record.get("reason") or ("answers look like language" if ok else "the canary did not pass"))
    return Check("canary", "passed" if ok else "rejected", reason)


def parity_check(
    record: Json, base: Json | None, gates: Gates, against: str = "transformers"
) -> tuple[Check, Check]:
    """Engine against transformers (or what else scored it) on the same ids, by the base's own disagreement there.

    `base`: the base's parity record, None for the base itself: then only the ceilings hold. The limit is
    factor * base, not under the floor (a perfect base must not fail everybody) and not over the ceiling.
    """
    parts = (
        ("mean", "mean_abs", gates.parity_mean_floor, gates.parity_mean_ceiling),
        ("P99", "p99_abs", gates.parity_p99_floor, gates.parity_p99_ceiling),
    )
    mean, p99 = (parity_part(record, base, gates.parity_factor, part, against) for part in parts)
    return mean, p99


def parity_part(
    record: Json, base: Json | None, factor: float, part: tuple[str, str, float, float], reference: str
) -> Check:
    word, key, floor, ceiling = part
    name, value = f"parity {word}", record.get(key)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return Check(name, "failed", f"{word} difference between engine and {reference} is {value}")
    limit = ceiling if base is None else min(ceiling, max(floor, factor * float(base[key])))
    ok = value <= limit
    against = "" if base is None else f" (base {base[key]:.3g})"
    reason = (
        f"engine and {reference} {'agree' if ok else 'disagree'} on {record.get('n_tokens', '?')} tokens: "
        f"{word} |difference| {value:.3g} nats{against}, limit {limit:.3g}"
    )
    return Check(name, "passed" if ok else "rejected", reason, float(value), limit)


def load_checks(figures: LoadFigures, gates: Gates) -> tuple[Check, ...]:
    """Whether a load test is a result: failure budget kept, prompts unique, the client not the limit."""
    pct = 100.0 * figures.failures / figures.requests if figures.requests else 100.0
    budget = gates.load_failures_pct
    ok = pct <= budget
    failed = f"{figures.failures} of {figures.requests} requests failed ({pct:.2g} %)"
    reason = f"{failed}, the budget is {budget:g} %"
    checks = [Check("failure budget", "passed" if ok else "rejected", reason, pct, budget)]
    if figures.client_limited:
        reason = f"the load generator was the limit: {figures.client_limited}"
        checks.append(Check("load reached", "inconclusive", reason, figures.achieved_rate))
    if not figures.unique_prompts:
        reason = "prompts repeat, so the prefix cache answers: not the figure of this load"
        checks.append(Check("unique prompts", "inconclusive", reason, figures.prefix_cache_hit_rate))
    return tuple(checks)


# ---------------------------------------------------------------- numbers for people


def per_cent(value: float) -> str:
    return f"{value:+.1f} %"


def points(value: float) -> str:
    return f"{value:+.1f} points"


def nats(value: float) -> str:
    return f"{value:.3g} nats"


def share(value: float) -> str:
    return f"{100.0 * value:.1f} %"


def megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def some(names: Sequence[str], most: int = 5) -> str:
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
