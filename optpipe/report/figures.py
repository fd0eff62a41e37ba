"""How a figure is written, the same in HTML, Markdown and the model card: never without n and interval."""

from __future__ import annotations

import math

from optpipe.records import PERCENTILES as PERCENTILES
from optpipe.records import Estimated, Measured, Percentiles

SHARES = ("share", "fraction")
UNITS = {"nats/token": "nats", "tokens/s": "tok/s", "requests/s": "req/s", "1/s": "req/s", "%": "%"}
"""How units are printed."""


def number(value: float, places: int | None = None) -> str:
    """Three significant digits, or all digits before the point: 0.0131, 4.52, 83.1, 1,204."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    text = f"{value:,.{decimals(value) if places is None else places}f}"
    return text.replace("-", "\N{MINUS SIGN}")


def decimals(value: float) -> int:
    """Decimals that show three significant digits; an interval is written with those of its value."""
    return min(6, max(0, 2 - math.floor(math.log10(abs(value))))) if value else 2


def signed(value: float, places: int | None = None) -> str:
    return f"+{number(value, places)}" if value > 0 else number(value, places)


def value(figure: Measured, sign: bool = False) -> str:
    """`83.1 tok/s`; shares as per cent; `sign` shows + as well."""
    scale, unit = (100.0, "%") if figure.unit in SHARES else (1.0, UNITS.get(figure.unit, figure.unit))
    return f"{(signed if sign else number)(scale * figure.value)} {unit}".strip()


def interval(figure: Measured, sign: bool = False) -> str:
    """`[80.2, 86.0]`, or that there is none."""
    if figure.ci95 is None:
        return "no interval"
    scale = 100.0 if figure.unit in SHARES else 1.0
    places = decimals(scale * figure.value)
    low, high = ((signed if sign else number)(scale * end, places) for end in figure.ci95)
    return f"[{low}, {high}]"


def whole(figure: Measured | None, sign: bool = False) -> str:
    """`83.1 tok/s [80.2, 86.0] n=12`"""
    if figure is None:
        return "not measured"
    return f"{value(figure, sign)} {interval(figure, sign)} n={figure.n:,}"


def estimate(figure: Estimated) -> str:
    """`about 114 MB`; the caller says that it is an estimate."""
    return f"about {size(figure.value) if figure.unit == 'bytes' else number(figure.value) + ' ' + figure.unit}"


def size(count: float) -> str:
    """Decimal units, as disks and downloads are labelled."""
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= limit:
            return f"{number(count / limit)} {unit}"
    return f"{count:.0f} B"


def needed(percentile: str) -> int:
    """How many requests a percentile needs: 10 / (1 - p)."""
    return round(10.0 / (1.0 - int(percentile[1:]) / 100.0))


def at(latency: Percentiles, percentile: str) -> str:
    """`118 ms`, or how many requests there are of how many that it needs."""
    found = getattr(latency, percentile)
    if found is None:
        return f"n too small: {latency.n:,} of {needed(percentile):,}"
    return f"{number(found)} {latency.unit}"


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 5 min`."""
    if seconds < 1:
        return "under 1 s"
    whole_seconds = round(seconds)
    if whole_seconds < 60:
        return f"{number(seconds) if seconds < 10 else whole_seconds} s"
    minutes, rest = divmod(whole_seconds, 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((hours, "h"), (minutes, "min"), (rest if not hours else 0, "s"))
    return " ".join(f"{count} {unit}" for count, unit in parts if count)


def ratio(figure: Measured, base: Measured) -> tuple[float, tuple[float, float] | None] | None:
    """figure / base with the widest reading of their intervals: conservative if they are independent."""
    if base.value <= 0:
        return None
    if figure.ci95 is None or base.ci95 is None or base.ci95[0] <= 0:
        return figure.value / base.value, None
    return figure.value / base.value, (figure.ci95[0] / base.ci95[1], figure.ci95[1] / base.ci95[0])
