"""Scatter plots with error bars as inline SVG, coloured by the page's CSS: dark mode and print work.

Drawn here and not by a plotting library: the bytes of a report are part of a bundle's digest, so they must
not change with the library's version, and two scatter plots need no more than this.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from optpipe.records import Measured, Percentiles
from optpipe.report import figures
from optpipe.report.data import ReportData, Row
from optpipe.report.summary import throughput, worst_text

WIDTH, HEIGHT = 560.0, 340.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 16.0, 20.0, 46.0
LETTER, BOLD, LINE = 6.4, 7.8, 15.0
"""Rough width of a letter, thin and bold, and height of a line at 12 px: labels are placed, not measured."""

SLO_ORDER = (
    ("ttft_ms", "Time to first token"),
    ("tpot_ms", "Time per output token"),
    ("e2e_ms", "End to end"),
)


Box = tuple[float, float, float, float]
"""left, top, right, bottom in pixels."""


@dataclass(frozen=True)
class Point:
    """One candidate; `low` and `high` are the ends of its interval on y."""

    name: str
    status: str
    x: float
    y: float
    low: float | None
    high: float | None
    winner: bool
    told: str
    """What the point says when it is pointed at, and to a screen reader."""


@dataclass(frozen=True)
class Mark:
    """A point and its label in pixels."""

    point: Point
    x: float
    y: float
    low: float | None
    high: float | None
    label_x: float
    label_y: float
    anchor: str


@dataclass(frozen=True)
class Tick:
    at: float
    text: str


@dataclass(frozen=True)
class Plot:
    """Everything the template needs, in pixels."""

    ident: str
    title: str
    caption: str
    x_label: str
    y_label: str
    marks: tuple[Mark, ...]
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    x_line: Tick | None
    y_line: Tick | None
    description: str
    box: dict[str, float] = field(
        default_factory=lambda: {
            "width": WIDTH, "height": HEIGHT, "left": LEFT, "right": WIDTH - RIGHT,
            "top": TOP, "bottom": HEIGHT - BOTTOM,
        }
    )  # fmt: skip


@dataclass(frozen=True)
class Axes:
    """Labels, and the gate or SLO drawn as a line where there is one."""

    x_label: str
    y_label: str
    x_limit: tuple[float, str] | None = None
    y_limit: tuple[float, str] | None = None


def quality_against_size(table: Sequence[Row], data: ReportData) -> Plot | None:
    """Largest rise of perplexity over the texts against megabytes; None under two measured candidates."""
    points = []
    for row in table:
        text = worst_text(row)
        if text is None or row.bytes is None:
            continue
        megabytes = row.bytes / 1e6
        rise = f"{figures.whole(text.change_pct, sign=True)} on {text.text}"
        told = f"{figures.size(row.bytes)}, {rise}"
        points.append(_point(row, megabytes, text.change_pct, told))
    axes = Axes("Size of what is served, MB", "Perplexity against the base, %", y_limit=_gate(data))
    caption = "Lower left is better. Each point is the text that suffers most; bars are 95 % intervals."
    return _plot("quality", ("Quality against size", caption), axes, points)


def throughput_against_latency(table: Sequence[Row], data: ReportData) -> Plot | None:
    """Output tokens per second against the SLO's latency (P50 where its percentile has too few requests)."""
    measured = [(row, row.serving.figures) for row in table if row.serving and row.serving.figures]
    metric, title = next(((m, t) for m, t in SLO_ORDER if m in _slo(data)), SLO_ORDER[0])
    percentile, limit = next(iter(_slo(data).get(metric, {"p50": None}).items()))
    latencies: list[Percentiles] = [getattr(found, metric) for _, found in measured]
    if percentile not in figures.PERCENTILES or any(getattr(found, percentile) is None for found in latencies):
        percentile, limit = "p50", None
    points = []
    for (row, found), latency in zip(measured, latencies):
        x, y = getattr(latency, percentile), throughput(row)
        if x is not None and y is not None:
            late = f"{percentile.upper()} {figures.number(x)} ms of {found.requests} requests"
            told = f"{figures.whole(y)}, {late}"
            points.append(_point(row, x, y, told))
    line = (float(limit), f"SLO {_tick(limit)} ms") if limit else None
    axes = Axes(f"{title}, {percentile.upper()}, ms", "Output tokens per second", x_limit=line)
    caption = "Upper left is better. Default engine settings, the recipe's load; bars are 95 % intervals."
    return _plot("serving", ("Throughput against latency", caption), axes, points)


def _slo(data: ReportData) -> dict[str, dict[str, float]]:
    return {name: limits for name, limits in data.recipe.get("slo", {}).items() if limits}


def _gate(data: ReportData) -> tuple[float, str] | None:
    """The perplexity gate, where it was the same in every check."""
    limits = {
        check.limit
        for evaluation in data.evaluations
        for check in evaluation.checks
        if check.name.startswith("perplexity") and check.limit is not None
    }
    only = limits.pop() if len(limits) == 1 else None
    return (only, f"gate {_tick(only)} %") if only is not None else None


def _point(row: Row, x: float, y: Measured, told: str) -> Point:
    low, high = y.ci95 or (None, None)
    return Point(row.name, row.status, x, y.value, low, high, row.winner, f"{row.name}, {row.status}: {told}")


# ---------------------------------------------------------------- layout


def _plot(ident: str, words: tuple[str, str], axes: Axes, points: Sequence[Point]) -> Plot | None:
    if len(points) < 2:
        return None
    ends = [end for point in points for end in (point.low, point.high) if end is not None]
    x_limits = [axes.x_limit[0]] if axes.x_limit and _near(axes.x_limit[0], [p.x for p in points]) else []
    y_limits = [axes.y_limit[0]] if axes.y_limit else []
    xs = ticks([*(p.x for p in points), *x_limits])
    ys = ticks([*(p.y for p in points), *ends, *y_limits])
    x_of, y_of = _scale(xs, LEFT, WIDTH - RIGHT), _scale(ys, HEIGHT - BOTTOM, TOP)
    return Plot(
        ident=ident,
        title=words[0],
        caption=words[1],
        x_label=axes.x_label,
        y_label=axes.y_label,
        marks=_place(points, x_of, y_of, _lines(x_of, y_of, x_limits, y_limits)),
        x_ticks=tuple(Tick(x_of(x), _tick(x)) for x in xs),
        y_ticks=tuple(Tick(y_of(y), _tick(y)) for y in ys),
        x_line=Tick(x_of(x_limits[0]), axes.x_limit[1]) if axes.x_limit and x_limits else None,
        y_line=Tick(y_of(y_limits[0]), axes.y_limit[1]) if axes.y_limit else None,
        description="; ".join(point.told for point in points),
    )


def _near(limit: float, values: Sequence[float]) -> bool:
    """A limit far outside the data would press all points into a corner; it is left out."""
    return limit <= 3.0 * max(values)


def ticks(values: Sequence[float], about: int = 5) -> list[float]:
    """Round numbers that span the values with some air."""
    low, high = min(values), max(values)
    air = 0.08 * (high - low) or abs(high) * 0.1 or 1.0
    step = _round_step((high - low + 2 * air) / about)
    first, last = math.floor((low - air) / step), math.ceil((high + air) / step)
    if low >= 0.0:
        first = max(first, 0)
    return [round(number * step, 10) for number in range(first, last + 1)]


def _tick(value: float) -> str:
    return f"{value:,.10g}".replace("-", "\N{MINUS SIGN}")


def _round_step(wanted: float) -> float:
    power = 10.0 ** math.floor(math.log10(wanted))
    return next(power * factor for factor in (1.0, 2.0, 2.5, 5.0, 10.0) if power * factor >= wanted)


class _scale:
    """Data to pixels, rounded so that the same figures give the same bytes everywhere."""

    def __init__(self, span: Sequence[float], start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = span[0], span[-1], start, end

    def __call__(self, value: float) -> float:
        return round(self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start), 1)


def _lines(x_of: _scale, y_of: _scale, xs: Sequence[float], ys: Sequence[float]) -> list[Box]:
    """Where the gate or the SLO is drawn, with its words: labels keep clear of it."""
    upright = [(x_of(x) - 1, TOP, x_of(x) + 1, HEIGHT - BOTTOM) for x in xs]
    level = [(LEFT, y_of(y) - 1, WIDTH, y_of(y) + 1) for y in ys]
    return upright + level


def _place(points: Sequence[Point], x_of: _scale, y_of: _scale, lines: list[Box]) -> tuple[Mark, ...]:
    """Labels beside their points, the winner's first; the first of a few spots that is free is taken."""
    taken = [(x_of(p.x) - 6, y_of(p.y) - 6, x_of(p.x) + 6, y_of(p.y) + 6) for p in points] + lines
    marks = []
    for point in sorted(points, key=lambda p: (not p.winner, p.x, p.name)):
        x, y = x_of(point.x), y_of(point.y)
        gap, letter = (13, BOLD) if point.winner else (9, LETTER)
        label_x, label_y, anchor, box = _spot(x, y, gap, len(point.name) * letter, taken)
        taken.append(box)
        low = None if point.low is None else y_of(point.low)
        high = None if point.high is None else y_of(point.high)
        marks.append(Mark(point, x, y, low, high, label_x, label_y, anchor))
    return tuple(marks)


def _spot(x: float, y: float, gap: float, width: float, taken: Sequence[Box]) -> tuple[float, float, str, Box]:
    spots = [(side, drop) for drop in (0.0, -LINE, LINE, -2 * LINE, 2 * LINE) for side in (1, -1)]
    best = None
    for side, drop in spots:
        start = x + gap if side > 0 else x - gap - width
        box = (start, y + drop - LINE / 2, start + width, y + drop + LINE / 2)
        inside = box[0] >= LEFT and box[2] <= WIDTH and box[1] >= TOP - 8 and box[3] <= HEIGHT - BOTTOM
        found = (x + gap * side, round(y + drop + 4, 1), "start" if side > 0 else "end", box)
        if inside and not any(_overlap(box, other) for other in taken):
            return round(found[0], 1), *found[1:]
        best = best or (found if inside else None)
    found = best or found
    return round(found[0], 1), *found[1:]


def _overlap(a: Box, b: Box) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]
