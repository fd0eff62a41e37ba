"""What was served beside what the hardware allows: decoding beside bandwidth, TTFT beside the reading of one prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from optpipe.model.roofline import ATTAINABLE, decode_bound, prefill_bound
from optpipe.records import Candidate, Estimated, Hardware, LoadFigures
from optpipe.report import figures
from optpipe.report.data import ReportData, Row

HEADER = ("Candidate", "Figure", "Measured", "Bound", "Share of the bound")
CAPTION = (
    f"Bounds are computed, not measured: bytes over bandwidth, operations over peak. Well-tuned engines reach "
    f"{100 * ATTAINABLE[0]:.0f} to {100 * ATTAINABLE[1]:.0f} % of the decode bound. The TTFT bound is that of one "
    "prompt alone; under load a request also waits for others."
)


@dataclass(frozen=True)
class Line:
    """One row in words; `how` says how the bound was computed."""

    candidate: str
    figure: str
    measured: str
    bound: str
    share: str
    how: str
    winner: bool


def lines(data: ReportData, table: tuple[Row, ...]) -> list[Line]:
    """Two rows for each candidate that was served, where the hardware's peaks are known."""
    return [line for row in table for line in of_row(data, row)]


def of_row(data: ReportData, row: Row) -> Iterator[Line]:
    found = row.serving.figures if row.serving else None
    load = data.recipe.get("load", {})
    if found is None or row.candidate is None or not load:
        return
    if row.compiled and row.compiled.bits:  # weights that the compiler itself quantized are of another size
        return
    machine, prompt, answer = engine_machine(data), int(load["input_tokens"]), int(load["output_tokens"])
    yield from decoding(data, row.candidate, found, machine, prompt + answer // 2, row.winner)
    yield from reading(data, row.candidate, found, machine, prompt, row.winner)


def engine_machine(data: ReportData) -> Hardware:
    """The part of the machine that the engine may use: on a CPU so many cores as it has threads."""
    if data.hardware.gpus:
        return data.hardware
    return replace(data.hardware, cores=min(data.hardware.cores, int(data.recipe.get("engine_threads") or 1)))


def decoding(
    data: ReportData, one: Candidate, found: LoadFigures, machine: Hardware, length: int, winner: bool
) -> Iterator[Line]:
    """While it decodes: concurrent sequences over the median time per output token."""
    sequences, step = found.concurrency, found.tpot_ms.p50
    if not sequences or not step:
        return
    bound = decode_bound(data.facts, one.scheme, one.engine, machine, sequences, length)
    if bound:
        rate = 1000.0 * sequences / step
        told = f"{figures.number(rate)} tok/s (TPOT P50 {figures.number(step)} ms, {sequences} at once)"
        yield Line(one.name, "Decoding", told, bounded(bound), share(rate / bound.value), bound.how, winner)


def reading(
    data: ReportData, one: Candidate, found: LoadFigures, machine: Hardware, prompt: int, winner: bool
) -> Iterator[Line]:
    """TTFT is long where the bound is short, so its share is bound over measured."""
    bound, first = prefill_bound(data.facts, one.scheme, machine, prompt), found.ttft_ms.p50
    if bound and first:
        told = f"{figures.number(first)} ms (TTFT P50, n={found.ttft_ms.n:,})"
        yield Line(one.name, "First token", told, bounded(bound), share(bound.value / first), bound.how, winner)


def bounded(bound: Estimated) -> str:
    return figures.estimate(bound)


def share(part: float) -> str:
    """A bound that is beaten was computed for another machine than this."""
    return f"{100 * part:.0f} %" + (": the peaks assumed are not this machine's" if part > 1 else "")
