"""Two versions side by side from their records: paired where both have results per item, else refused or unpaired.

Nothing is measured here. A refusal is per figure and says what differs; the axis under test (`changed`) is exempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from optpipe import drift, stats
from optpipe.records import Hardware, Json, LoadFigures, Measured, TaskQuality, TextQuality
from optpipe.report import figures
from optpipe.report.data import Row
from optpipe.report.markdown import cell, grid
from optpipe.report.side import Side

Axis = Literal["model", "engine", "driver", "hardware"]
Outcome = Literal["better", "worse", "no difference seen", "the same", "not compared", "told only"]
APART = "unpaired, measured at different times"


@dataclass(frozen=True)
class Line:
    """One figure of both. `change`: of B against A, in `change.unit`; None where there is no pairing."""

    figure: str
    values: tuple[str, str]
    """Of A and of B, as they are read; empty where it was not measured."""
    outcome: Outcome
    change: Measured | None = None
    how: str = ""
    """Paired or not, or why the two cannot be compared."""
    more_is_better: bool = True


@dataclass(frozen=True)
class Comparison:
    """Every figure of two versions, and a sentence."""

    a: str
    b: str
    lines: tuple[Line, ...]
    sentence: str
    changed: Axis | None = None
    differs: Json = field(default_factory=dict)
    """What is not the same of the two: {axis: [of A, of B]}."""


# ---------------------------------------------------------------- what is compared


def compare(a: Side, b: Side, changed: Axis | None = None) -> Comparison:
    """B against A, figure by figure."""
    differs = differences(a, b)
    lines = (
        *quality(a.row, b.row),
        *task_lines(a.row, b.row),
        *serving(a, b, refusal(differs, changed)),
        *sizes(a.row, b.row),
    )
    found = Comparison(a.label, b.label, lines, "", changed, differs)
    return replace(found, sentence=sentence(found))


def differences(a: Side, b: Side) -> Json:
    """What serving figures depend on beside the model, where it is not the same."""
    sides = [about(one) for one in (a, b)]
    return {axis: [one[axis] for one in sides] for axis in sides[0] if sides[0][axis] != sides[1][axis]}


def about(side: Side) -> dict[str, Any]:
    compiled, data = side.row.compiled, side.data
    return {
        "hardware": machine(data.hardware),
        "driver": data.hardware.driver,
        "engine": f"{compiled.engine} {compiled.engine_version}" if compiled else None,
        "load": data.recipe.get("load"),
        "slo": data.recipe.get("slo"),
    }


def machine(hardware: Hardware) -> str:
    gpu = f", {hardware.gpus} x {hardware.gpu}" if hardware.gpu else ""
    return f"{hardware.cpu}, {hardware.cores} cores{gpu}"


def refusal(differs: Json, changed: Axis | None) -> str | None:
    """Why serving figures are not comparable; None where only the axis under test differs."""
    exempt = {"hardware": ("hardware", "driver")}.get(str(changed), (changed,))
    other = [axis for axis in differs if axis not in exempt]
    return f"not the same {' and '.join(other)}" if other else None


# ---------------------------------------------------------------- quality


def quality(a: Row, b: Row) -> Iterator[Line]:
    """Perplexity on each text that either was scored on."""
    ours, theirs = ({text.text: text for text in row.evaluation.texts} if row.evaluation else {} for row in (a, b))
    for name in sorted({*ours, *theirs}):
        yield perplexity(name, ours.get(name), theirs.get(name))


def perplexity(name: str, a: TextQuality | None, b: TextQuality | None) -> Line:
    title, values = f"perplexity, {name}", both(f"{x.perplexity:.3f}" if x else "" for x in (a, b))
    if a is None or b is None:
        return Line(title, values, "not compared", how=f"not scored for {'A' if a is None else 'B'}")
    if not (a.units and b.units):
        return Line(title, values, "not compared", how="a build of before results were kept per unit")
    common = sum(1 for one, other in zip(a.sample, b.sample) if one == other)
    if not common or a.sample[:common] != b.sample[:common]:
        return Line(title, values, "not compared", how="not the same tokens: other text, sample or tokenizer")
    one, other = ([{"tokens": tokens, "nll": nll} for tokens, nll in text.units] for text in (a, b))
    n = min(len(one), len(other))
    change = drift.paired_change(one[:n], other[:n])
    return judged(title, values, change, f"paired, {n} units", more_is_better=False)


def both(values: Iterable[str]) -> tuple[str, str]:
    one, other = values
    return one, other


def judged(
    title: str, values: tuple[str, str], change: Measured | None, how: str, *, more_is_better: bool = True
) -> Line:
    """The line of a figure whose change is known with its interval."""
    if change is None or change.ci95 is None:
        return Line(title, values, "not compared", change, f"{how}: too few for an interval", more_is_better)
    low, high = change.ci95
    if low == high == 0.0:
        return Line(title, values, "the same", change, how, more_is_better)
    better = low > 0 if more_is_better else high < 0
    worse = high < 0 if more_is_better else low > 0
    outcome: Outcome = "better" if better else "worse" if worse else "no difference seen"
    return Line(title, values, outcome, change, how, more_is_better)


def task_lines(a: Row, b: Row) -> Iterator[Line]:
    """Accuracy on each task that both were asked, item by item."""
    ours, theirs = ({task.task: task for task in row.evaluation.tasks} if row.evaluation else {} for row in (a, b))
    for name in sorted({*ours, *theirs}):
        yield task_line(name, ours.get(name), theirs.get(name))


def task_line(name: str, a: TaskQuality | None, b: TaskQuality | None) -> Line:
    values = both(f"{100 * task.accuracy.value:.1f} %" if task else "" for task in (a, b))
    if a is None or b is None:
        return Line(name, values, "not compared", how=f"not asked of {'A' if a is None else 'B'}")
    if (a.version, a.metric) != (b.version, b.metric):
        how = f"not the same task: version {a.version}, {a.metric} and version {b.version}, {b.metric}"
        return Line(name, values, "not compared", how=how)
    common = [item for item in a.items if item in set(b.items)]
    if not common:
        return Line(name, values, "not compared", how="no item was asked of both")
    one, other = ([dict(zip(task.items, task.correct))[item] for item in common] for task in (a, b))
    lost, won = stats.flips(one, other)
    change = stats.paired_accuracy([(one, other)])
    return judged(name, values, change, f"paired, {len(common)} items, {len(lost)} lost, {len(won)} won")


# ---------------------------------------------------------------- serving and size


def serving(a: Side, b: Side, refused: str | None) -> Iterator[Line]:
    """Rates with the interval of their difference in per cent of A's; latencies as they are."""
    one, other = served(a), served(b)
    for key, title in (("goodput_per_s", "goodput"), ("output_tokens_per_s", "output tokens")):
        values = both(figures.whole(getattr(found, key)) if found else "" for found in (one, other))
        if one is None or other is None:
            yield Line(title, values, "not compared", how=f"not measured for {'A' if one is None else 'B'}")
        elif refused:
            yield Line(title, values, "not compared", how=refused)
        else:
            yield at_other_times(judged(title, values, in_per_cent(one, other, key), APART))
    for key, title in (("ttft_ms", "TTFT"), ("tpot_ms", "TPOT")):
        for percentile in ("p50", "p90"):
            values = both(figures.at(getattr(found, key), percentile) if found else "" for found in (one, other))
            how = refused or "no interval"
            yield Line(f"{title} {percentile.upper()}", values, "told only", how=how, more_is_better=False)


def at_other_times(line: Line) -> Line:
    """The same without a claim: how a machine differs from one hour to the next is not in the batches of one load."""
    if line.outcome not in ("better", "worse"):
        return line
    return replace(line, outcome="told only", how=f"{line.how}; `optpipe gate` measures both by turns")


def served(side: Side) -> LoadFigures | None:
    """The confirmed figures where the candidate won, else those of its benchmark."""
    if side.row.winner and side.data.confirmation and side.data.confirmation.figures:
        return side.data.confirmation.figures
    return side.row.serving.figures if side.row.serving else None


def in_per_cent(a: LoadFigures, b: LoadFigures, key: str) -> Measured | None:
    """B's rate less A's in per cent of A's."""
    change, base = stats.difference(b, a, key), getattr(a, key).value
    if change is None or base <= 0:
        return None

    def scaled(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if ends is None else (100 * ends[0] / base, 100 * ends[1] / base)

    value = 100 * change.value / base
    return replace(change, value=value, ci95=scaled(change.ci95), bounds95=scaled(change.bounds95), unit="%")


def sizes(a: Row, b: Row) -> Iterator[Line]:
    one, other = a.checkpoint, b.checkpoint
    if one is None or other is None:
        return
    outcome: Outcome = "the same" if one.bytes == other.bytes else "better" if other.bytes < one.bytes else "worse"
    values = both(figures.size(found.bytes) for found in (one, other))
    yield Line("bytes", values, outcome, how="counted", more_is_better=False)


# ---------------------------------------------------------------- told


def sentence(found: Comparison) -> str:
    """What differs, in one sentence."""
    told = []
    for outcome in ("better", "worse", "no difference seen", "the same", "not compared"):
        names = [in_words(line) for line in found.lines if line.outcome == outcome]
        if names:
            told.append(f"{outcome}: {', '.join(names)}")
    if apart := [line for line in found.lines if line.outcome == "told only" and line.change]:
        told.append(f"apart, at different times: {', '.join(in_words(x) + ' ' + change_told(x.change) for x in apart)}")
    tested = f" (under test: {found.changed})" if found.changed else ""
    return f"B against A{tested}: {'; '.join(told) or 'nothing to compare'}."


def in_words(line: Line) -> str:
    """A figure's name where several stand in one list."""
    return line.figure.replace(", ", " on ")


def markdown(found: Comparison) -> str:
    """A table and a sentence."""
    header = ("Figure", f"A: {found.a}", f"B: {found.b}", "B against A", "", "How")
    lines = [(x.figure, *x.values, change_told(x.change), x.outcome, x.how) for x in found.lines]
    blocks = [cell(found.sentence), grid(header, lines)]
    blocks += [cell(f"Not the same {axis}: {one} and {other}.") for axis, (one, other) in found.differs.items()]
    return "\n\n".join(blocks) + "\n"


def change_told(change: Measured | None) -> str:
    if change is None:
        return ""
    unit = " %" if change.unit == "%" else f" {change.unit}"
    ends = f" [{change.ci95[0]:+.1f}, {change.ci95[1]:+.1f}]" if change.ci95 else ""
    return f"{change.value:+.1f}{ends}{unit}"
