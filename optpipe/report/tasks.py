"""Scores on tasks for readers: one line per candidate and task, in HTML and Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from optpipe.records import Json, TaskQuality
from optpipe.report import figures
from optpipe.report.data import Row

ALPHA = 0.05
"""Of McNemar's test: below it the two are called different."""


@dataclass(frozen=True)
class Line:
    """What is told of one candidate on one task."""

    candidate: str
    winner: bool
    task: str
    accuracy: str
    change: str
    flips: str
    engine: str
    """How far the serving engine is from transformers on the same requests; empty where that was not asked."""


HEADER = ("Candidate", "Task", "Right", "Change against the base", "Items that changed", "Transformers")


def lines(table: Sequence[Row]) -> list[Line]:
    """Every candidate that tasks were scored for."""
    return [line(row, task) for row in table if row.evaluation for task in row.evaluation.tasks]


def line(row: Row, task: TaskQuality) -> Line:
    assert row.evaluation is not None, "a task's figures stand in an evaluation"
    change = task.change_points
    unpaired = "the reference" if row.is_base else "no base to pair with"
    by_transformers = row.evaluation.details.get("tasks", {}).get("transformers", {}).get(task.task)
    return Line(
        candidate=row.name,
        winner=row.winner,
        task=f"{task.task} {task.version}, {task.metric}",
        accuracy="; ".join((figures.whole(task.accuracy), *others(task))),
        change=figures.whole(change, sign=True) if change else unpaired,
        flips=flips(task) if change else "",
        engine=engine(by_transformers) if by_transformers else "",
    )


def others(task: TaskQuality) -> list[str]:
    """`acc 0.56`: what else the harness or the command says of the task."""
    told = sorted((name, value) for name, value in task.figures.items() if name != task.metric)
    return [f"{name} {figures.number(value)}" for name, value in told]


def flips(task: TaskQuality) -> str:
    """`3 lost, 2 won; not shown to differ (p = 1)`"""
    p = 1.0 if task.p_different is None else task.p_different
    word = "different" if p < ALPHA else "not shown to differ"
    return f"{len(task.lost)} lost, {len(task.won)} won; {word} (p = {p:.2g})"


def engine(found: Json) -> str:
    differ = len(found["items_that_differ"])
    told = f"{figures.number(100 * found['accuracy'])} % right of {found['items']}, {differ} other than on the engine, "
    if "same_texts" in found:
        return told + f"{found['same_texts']} of {found['items']} texts the same"
    return told + f"log-likelihoods {found['mean_abs']:.3f} nats apart in the mean"


def failures(table: Sequence[Row]) -> list[str]:
    """Why tasks were not scored; each names its candidate."""
    told = [row.evaluation.details.get("tasks", {}).get("failures", ()) for row in table if row.evaluation]
    return [f"not scored: {reason}" for reasons in told for reason in reasons]
