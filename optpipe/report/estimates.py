"""The plan's estimates beside what was measured, as lines that page and Markdown share."""

from __future__ import annotations

from dataclasses import dataclass

from optpipe.records import Compared
from optpipe.report import figures
from optpipe.report.data import ReportData

HEADER = ("Of", "What", "Estimated", "Measured", "Error")
CAPTION = (
    "One measurement each (n=1, no interval). Aims: bytes within 2 %, peak memory within 15 %; seconds and disk have "
    "none, and are compared where the build made everything itself, none of it kept from before."
)


@dataclass(frozen=True)
class Line:
    """One row in words."""

    of: str
    quantity: str
    estimated: str
    measured: str
    error: str
    beyond: bool


def lines(data: ReportData) -> list[Line]:
    return [line(row) for row in data.compared]


def line(row: Compared) -> Line:
    error = f"{figures.signed(row.error_pct)} %"
    if row.beyond:
        error += f", beyond {row.aim_pct:g} %"
    estimated, measured = (amount(value, row.unit) for value in (row.estimated, row.measured))
    return Line(row.of, row.quantity, estimated, measured, error, row.beyond)


def amount(value: float, unit: str) -> str:
    return figures.size(value) if unit == "bytes" else figures.duration(value)
