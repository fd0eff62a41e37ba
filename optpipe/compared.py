"""Estimates beside what was measured: for every candidate and every quantity, with the error in per cent.

The estimates are the plan's. What was measured comes from the records of jobs (seconds and peak memory as their
supervisor saw them, an engine's peak beside the jobs that ran against it) and from the files themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from optpipe.records import CandidatePlan, Checkpoint, Compared, Estimated, Evaluation, Plan, Serving
from optpipe.rundir import JobStore, RunFolder, folder_bytes

AIMS = {"bytes": 2.0, "quantize memory": 15.0, "score memory": 15.0, "engine memory": 15.0}
"""Per cent that an estimate may be off; seconds and disk have no aim, they are told."""

WHOLE = "build"
"""What the rows are called that are of no single candidate."""


@dataclass(frozen=True)
class Made:
    """What is known of one candidate at a build's end."""

    plan: CandidatePlan
    checkpoint: Checkpoint | None = None
    evaluation: Evaluation | None = None
    serving: Serving | None = None


@dataclass(frozen=True)
class Spent:
    """What a whole build took; None where it is not a figure of the whole, e.g. because jobs were kept."""

    seconds: float | None = None
    disk_bytes: int | None = None


def compared(plan: Plan, made: Iterable[Made], spent: Spent, store: JobStore) -> tuple[Compared, ...]:
    """Every estimate that has a measured figure beside it; checkpoints once, whatever number of targets they have."""
    rows = [row for one in made for row in of_candidate(one, store)]
    rows += pair(WHOLE, "seconds", plan.seconds, spent.seconds)
    rows += pair(WHOLE, "disk", plan.disk_bytes, spent.disk_bytes)
    return tuple({(row.of, row.quantity): row for row in rows}.values())


def of_candidate(one: Made, store: JobStore) -> Iterator[Compared]:
    """Bytes and jobs belong to the checkpoint, the engine to the candidate."""
    plan, checkpoint, name = one.plan, one.checkpoint, one.plan.candidate.checkpoint
    quantized = checkpoint if plan.candidate.scheme is not None else None
    if checkpoint:
        yield from pair(name, "bytes", plan.bytes, checkpoint.bytes)
    if quantized:
        yield from pair(name, "quantize memory", plan.quantize_memory, quantized.peak_memory_bytes)
    if score := store.get(job) if (job := score_job(one)) else None:
        yield from pair(name, "score memory", plan.score_memory, score.peak_memory_bytes)
        took = score.seconds + (quantized.seconds if quantized else 0.0)
        yield from pair(name, "seconds of jobs", plan.job_seconds, took)
    peaks = [int(seen["peak_memory_bytes"]) for job in served_jobs(one) if (seen := store.beside(job, "engine"))]
    yield from pair(plan.candidate.name, "engine memory", plan.engine_memory, max(peaks, default=None))


def score_job(one: Made) -> str | None:
    """The first look's job: an evaluation names the base's before the candidate's own."""
    jobs = one.evaluation.jobs if one.evaluation else ()
    own = jobs if one.plan.candidate.scheme is None else jobs[1:]
    return own[0] if own else None


def served_jobs(one: Made) -> tuple[str, ...]:
    """Jobs that may have run against the engine of its default settings."""
    load = one.serving.job if one.serving else None
    return (*(one.evaluation.jobs if one.evaluation else ()), *((load,) if load else ()))


def disk_used(folder: RunFolder, jobs: Iterable[str], shipped: Iterable[Path]) -> int:
    """Bytes of a run, of the jobs that it used, and of what it published in folders."""
    places = [folder.path, *(folder.store.folder(job) for job in jobs), *shipped]
    return sum(folder_bytes(place) for place in places if place.is_dir())


def pair(of: str, quantity: str, estimated: Estimated | None, measured: float | None) -> Iterator[Compared]:
    """One row, where there are both."""
    if estimated is None or not measured:
        return
    error = 100.0 * (estimated.value / measured - 1.0)
    yield Compared(of, quantity, estimated.value, float(measured), estimated.unit, error, AIMS.get(quantity))
