"""select: gates first, then the objective, ties to the incumbent; a reason for everybody. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from optpipe import stats
from optpipe.records import Evaluation, Json, Measured, Rank, Selection, Serving, Status, Tuning

OBJECTIVES = ("goodput", "cost", "bytes")
ORDER: tuple[Status, ...] = ("passed", "inconclusive", "rejected", "failed", "skipped")


@dataclass(frozen=True)
class Contender:
    """What is measured of one candidate; `objective` is None where it cannot be ranked."""

    name: str
    status: Status
    reasons: tuple[str, ...]
    bytes: int
    drift: Measured | None
    goodput: Measured | None
    objective: Measured | None
    tuned: bool = False

    @property
    def is_base(self) -> bool:
        return self.name.split("@")[0] == "base"


def select(
    objective: str,
    evaluations: Sequence[Evaluation],
    servings: Sequence[Serving],
    tunings: Sequence[Tuning],
    sizes: Mapping[str, int],
    incumbent: str | None = None,
) -> Selection:
    """The winner among candidates that passed every gate and were measured under load.

    `sizes`: bytes by candidate. `incumbent`: who keeps its place in a tie, the base if None.
    Objectives: goodput (requests/s inside the SLO), cost (device-seconds per million output tokens), bytes.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} is not one of {', '.join(OBJECTIVES)}")
    served, tuned = {s.candidate: s for s in servings}, {t.candidate: t for t in tunings}
    field = [
        contender(objective, e, served.get(e.candidate), tuned.get(e.candidate), sizes[e.candidate])
        for e in sorted(evaluations, key=lambda e: e.candidate)
    ]
    ranked = [c for c in field if c.status == "passed"]
    if not ranked:
        ranks = tuple(rank(c, None, objective, False) for c in sorted(field, key=lambda c: place(c, objective)))
        return Selection(None, objective, ranks, nobody(field))
    best = min(ranked, key=lambda c: place(c, objective))
    tied = [c for c in ranked if c is best or is_tie(c, best)]
    winner = min(tied, key=lambda c: (not holds(c, incumbent), c.bytes, c.name))
    order = [winner] + sorted((c for c in field if c is not winner), key=lambda c: place(c, objective))
    ranks = tuple(rank(c, winner, objective, on_front(c, ranked)) for c in order)
    return Selection(winner.name, objective, ranks, why(winner, best, tied, incumbent, objective))


def decide(
    on_inconclusive: str,
    objective: str,
    evaluations: Sequence[Evaluation],
    servings: Sequence[Serving],
    tunings: Sequence[Tuning],
    sizes: Mapping[str, int],
) -> Selection:
    """The selection under the recipe's `on_inconclusive`.

    fail: nobody is chosen while any verdict is open. warn: where nobody passed, those whose verdicts are open
    compete; they stay "inconclusive", and the reason says what is open. Otherwise only what passed is chosen.
    """
    selection = select(objective, evaluations, servings, tunings, sizes)
    undecided = {rank.candidate: rank for rank in selection.ranks if rank.status == "inconclusive"}
    if on_inconclusive == "fail" and undecided and selection.winner:
        reason = f"nobody is chosen while {' and '.join(undecided)} may still pass (`on_inconclusive: fail`)"
        ranks = (replace(r, reasons=(reason,)) if r.status == "passed" else r for r in selection.ranks)
        return replace(selection, winner=None, ranks=tuple(ranks), reason=reason)
    if on_inconclusive != "warn" or not undecided or selection.winner:
        return selection
    supposed = select(objective, [closed(e) for e in evaluations], [closed(s) for s in servings], tunings, sizes)
    if supposed.winner is None:
        return selection
    ranks = (reopened(rank, undecided.get(rank.candidate)) for rank in supposed.ranks)
    left = "; ".join(undecided[supposed.winner].reasons)
    return replace(supposed, ranks=tuple(ranks), reason=f"{supposed.reason}; its verdict is open: {left}")


Judged = TypeVar("Judged", Evaluation, Serving)


def closed(record: Judged) -> Judged:
    """As if an open verdict had passed."""
    return replace(record, status="passed") if record.status == "inconclusive" else record


def reopened(rank: Rank, was: Rank | None) -> Rank:
    """A rank with its open verdict again, and what is open behind why it is where it is."""
    return rank if was is None else replace(rank, status=was.status, reasons=(*rank.reasons, *was.reasons))


def contender(
    objective: str, evaluation: Evaluation, serving: Serving | None, tuning: Tuning | None, size: int
) -> Contender:
    """One candidate's figures, the tuned ones where it was tuned; what stops it comes as reasons."""
    status, reasons = standing(evaluation, serving)
    drift = max((text.change_pct for text in evaluation.texts), key=lambda m: m.value, default=None)
    goodput, tokens, config = serving_figures(serving, tuning)
    figure: Measured | None
    if objective == "bytes":
        figure = Measured(float(size), (float(size), float(size)), 2, "bytes", "counted")
    elif objective == "cost":
        figure = None if tokens is None else cost(tokens, devices(config))
    else:
        figure = goodput
    if status == "passed" and figure is None:
        status, reasons = "inconclusive", (f"its {objective} was not measured",)
    tuned = tuning is not None and objective != "bytes"
    return Contender(evaluation.candidate, status, reasons, size, drift, goodput, figure, tuned)


def standing(evaluation: Evaluation, serving: Serving | None) -> tuple[Status, tuple[str, ...]]:
    """Quality first, then serving."""
    if evaluation.status != "passed":
        open_checks = tuple(c.reason for c in evaluation.checks if c.status not in ("passed", "skipped"))
        return evaluation.status, open_checks or (evaluation.failure or evaluation.status,)
    if serving is None:
        return "skipped", ("passed the quality gates but was not measured under load",)
    if serving.status != "passed":
        return serving.status, (serving.reason,)
    return "passed", ()


def serving_figures(serving: Serving | None, tuning: Tuning | None) -> tuple[Measured | None, Measured | None, Json]:
    """(goodput, output tokens per second, configuration) of what would ship."""
    if tuning is not None and tuning.tuned_goodput is not None:
        trial = next((t for t in tuning.trials if t.number == tuning.best), None)
        tokens = trial.output_tokens_per_s if trial else None
        if tokens is None and serving and serving.figures and tuning.config == serving.config:
            tokens = serving.figures.output_tokens_per_s
        return tuning.tuned_goodput, tokens, tuning.config
    if serving is None or serving.figures is None:
        return None, None, {}
    return serving.figures.goodput_per_s, serving.figures.output_tokens_per_s, serving.config


def devices(config: Json) -> int:
    """Devices that one replica of an engine configuration occupies."""
    count = 1
    for name in ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"):
        count *= int(config.get(name) or config.get(name.replace("-", "_")) or 1)
    return count


def cost(tokens_per_s: Measured, count: int) -> Measured | None:
    """Device-seconds per million output tokens; None where nothing came out."""
    if tokens_per_s.value <= 0.0:
        return None
    scale, ends = 1e6 * count, tokens_per_s.ci95
    ci95 = (scale / ends[1], scale / ends[0]) if ends and ends[0] > 0.0 else None
    return Measured(scale / tokens_per_s.value, ci95, tokens_per_s.n, "device-s/Mtoken", tokens_per_s.method)


# ---------------------------------------------------------------- order and ties


def place(c: Contender, objective: str) -> tuple[int, float, int, str]:
    value = 0.0 if c.objective is None else c.objective.value
    return ORDER.index(c.status), -value if objective == "goodput" else value, c.bytes, c.name


def is_tie(a: Contender, b: Contender) -> bool:
    """The difference's interval contains 0, or there is no interval to tell them apart."""
    return not apart(a.objective, b.objective)


def apart(a: Measured | None, b: Measured | None) -> bool:
    if a is None or b is None:
        return False
    gap = stats.difference_of(a, b)
    return gap is not None and gap.ci95 is not None and not gap.ci95[0] <= 0.0 <= gap.ci95[1]


def holds(c: Contender, incumbent: str | None) -> bool:
    return c.name == incumbent if incumbent is not None else c.is_base


def on_front(c: Contender, ranked: Sequence[Contender]) -> bool:
    """Nobody is as good on drift, bytes and goodput and surely better on one of them."""
    return c in ranked and not any(dominates(other, c) for other in ranked if other is not c)


def dominates(a: Contender, b: Contender) -> bool:
    if None in (a.drift, b.drift, a.goodput, b.goodput):
        return False
    assert a.drift and b.drift and a.goodput and b.goodput
    as_good = a.drift.value <= b.drift.value and a.bytes <= b.bytes and a.goodput.value >= b.goodput.value
    return as_good and (a.bytes < b.bytes or apart(a.drift, b.drift) or apart(a.goodput, b.goodput))


# ---------------------------------------------------------------- reasons


def rank(c: Contender, winner: Contender | None, objective: str, pareto: bool) -> Rank:
    reasons = c.reasons
    if winner is not None and c.status == "passed":
        reasons = ("selected",) if c is winner else (behind(c, winner, objective),)
    return Rank(c.name, c.status, reasons, c.objective, c.bytes, pareto)


def behind(c: Contender, winner: Contender, objective: str) -> str:
    """Why a candidate that passed lost to the winner, and where the two were not measured alike."""
    unlike = "; the winner's figure is tuned, this one is not: it was no finalist"
    return compared(c, winner, objective) + (unlike if winner.tuned and not c.tuned else "")


def compared(c: Contender, winner: Contender, objective: str) -> str:
    word = {"goodput": "slower", "cost": "dearer", "bytes": "larger"}[objective]
    assert c.objective is not None and winner.objective is not None
    gap = stats.difference_of(winner.objective, c.objective)
    if gap is None or gap.ci95 is None or winner.objective.value == 0.0:
        return f"cannot be told apart from {winner.name}, which has the place: no interval of the difference"
    scale = 100.0 / winner.objective.value
    low, high = sorted(abs(end) * scale for end in gap.ci95)
    if not is_tie(c, winner):
        if objective == "goodput" and c.objective.value == 0.0:
            carried = f"{winner.objective.value:,.4g} {winner.objective.unit}"
            return f"no request was inside the SLO, where {winner.name} carries {carried}"
        spread = "" if low == high else f" [{low:.0f}, {high:.0f}]"
        return f"{word} than {winner.name} by {abs(gap.value) * scale:.0f} %{spread}"
    ends = f"[{-gap.ci95[1] * scale:+.0f}, {-gap.ci95[0] * scale:+.0f}]"
    tie = f"tied with {winner.name} ({-gap.value * scale:+.0f} % {ends})"
    sizes = f"{c.bytes / 1e6:,.1f} MB against {winner.bytes / 1e6:,.1f} MB"
    return f"{tie}; a tie goes to the incumbent, then to fewer bytes ({sizes}), then to the name"


def why(winner: Contender, best: Contender, tied: Sequence[Contender], incumbent: str | None, objective: str) -> str:
    """One sentence for the winner; says so if the base wins and if nobody serves inside the SLO."""
    assert winner.objective is not None
    figure = f"{objective} {winner.objective.value:,.4g} {winner.objective.unit}"
    if objective == "goodput" and best.objective is not None and best.objective.value == 0.0:
        return f"nobody served a request inside the SLO, so goodput ranks nobody; {winner.name} is chosen"
    who = f"the base wins: {winner.name}" if winner.is_base else winner.name
    if len(tied) == 1:
        return f"{who} has the best {figure}"
    others = ", ".join(c.name for c in tied if c is not winner)
    if holds(winner, incumbent):
        held = "the incumbent" if incumbent is not None else "the base"
        return f"{who}: nobody is surely better than {held} ({figure}; tied: {others})"
    return f"{who}: tied on {figure} with {others}, and has the fewest bytes"


def nobody(field: Sequence[Contender]) -> str:
    if not field:
        return "there was no candidate"
    counts = ", ".join(
        f"{sum(c.status == status for c in field)} {status}"
        for status in ORDER
        if any(c.status == status for c in field)
    )
    return f"nothing passed: {counts}"
