"""The sentences at the top: what won, why, what it gains and what it costs, each with its interval."""

from __future__ import annotations

from dataclasses import dataclass

from optpipe.records import Measured, TextQuality
from optpipe.report import figures
from optpipe.report.data import ReportData, Row, rows


@dataclass(frozen=True)
class Tile:
    """One headline figure; `better` is None where it is neither gain nor cost."""

    label: str
    value: str
    detail: str
    better: bool | None = None


@dataclass(frozen=True)
class Summary:
    """The top of every report."""

    title: str
    why: str
    tiles: tuple[Tile, ...]


TITLES = {
    "rejected": "Nothing passed the gates",
    "inconclusive": "More measuring is needed to decide",
    "failed": "No candidate could be measured to the end",
}


def summarize(data: ReportData) -> Summary:
    """Winner, why, gains and costs against the base model."""
    table = rows(data)
    winner = next((row for row in table if row.winner), None)
    why = data.selection.reason if data.selection else "The build ended before the selection."
    if winner is None:
        return Summary(TITLES.get(data.verdict, TITLES["failed"]), why, ())
    base = next((row for row in table if row.is_base and row.target == winner.target), None)
    if winner.is_base:
        title = f"{winner.name}: the base model itself, with its engine settings"
        return Summary(title, why, _tiles(winner, None))
    return Summary(f"{winner.name} is the one to deploy", why, _tiles(winner, base))


def _tiles(row: Row, base: Row | None) -> tuple[Tile, ...]:
    tiles = [_size(row, base), _goodput(row, base), _throughput(row, base), _perplexity(row), _agreement(row)]
    return tuple(tile for tile in tiles if tile is not None)


def _size(row: Row, base: Row | None) -> Tile | None:
    if row.bits_per_weight is None or row.bytes is None:
        return None
    detail = f"{row.bits_per_weight:.2f} bits per weight"
    if base is None or base.bytes is None:
        return Tile("Size", figures.size(row.bytes), detail)
    share = 100.0 * row.bytes / base.bytes
    detail = f"{share:.0f} % of the base's {figures.size(base.bytes)}; {detail}"
    return Tile("Size", figures.size(row.bytes), detail, share < 100.0)


def _goodput(row: Row, base: Row | None) -> Tile | None:
    figure = goodput(row)
    label = "Goodput inside the SLO" + (", tuned" if row.tuning else "")
    if row.tuning and row.tuning.default_goodput:
        tile = _against(label, figure, row.tuning.default_goodput, "its default settings")
    else:
        tile = _against(label, figure, goodput(base) if base else None)
    return tile


def _throughput(row: Row, base: Row | None) -> Tile | None:
    return _against("Output throughput", throughput(row), throughput(base) if base else None)


def _against(label: str, figure: Measured | None, base: Measured | None, whose: str = "the base") -> Tile | None:
    """A figure, and how often it holds the base's; better or worse only where the interval leaves out 1."""
    if figure is None:
        return None
    detail = f"95 % {figures.interval(figure)}, n={figure.n:,}"
    times = figures.ratio(figure, base) if base else None
    if times is None:
        return Tile(label, figures.value(figure), detail)
    factor, ends = times
    detail += f"; {factor:.2f}× {whose}"
    if ends is None:
        return Tile(label, figures.value(figure), detail)
    better = True if ends[0] > 1.0 else False if ends[1] < 1.0 else None
    return Tile(label, figures.value(figure), f"{detail} [{ends[0]:.2f}, {ends[1]:.2f}]", better)


def _perplexity(row: Row) -> Tile | None:
    text = worst_text(row)
    if text is None or row.is_reference:
        return None
    change = text.change_pct
    detail = f"on {text.text}, 95 % {figures.interval(change, sign=True)}, n={change.n:,} units"
    ends = change.ci95
    better = None if ends is None or ends[0] <= 0.0 <= ends[1] else change.value < 0.0
    many = row.evaluation is not None and len(row.evaluation.texts) > 1
    return Tile("Perplexity" + (", worst text" if many else ""), figures.value(change, sign=True), detail, better)


def _agreement(row: Row) -> Tile | None:
    text = worst_text(row)
    if text is None or row.is_reference:
        return None
    figure = text.top1_agreement
    detail = f"same first choice as the base on {text.text}, 95 % {figures.interval(figure)}, n={figure.n:,} units"
    return Tile("Top-1 agreement", figures.value(figure), detail)


# ---------------------------------------------------------------- figures of a row


def worst_text(row: Row) -> TextQuality | None:
    """The text on which perplexity rises most."""
    texts = row.evaluation.texts if row.evaluation else ()
    return max(texts, key=lambda text: text.change_pct.value, default=None)


def throughput(row: Row) -> Measured | None:
    return row.serving.figures.output_tokens_per_s if row.serving and row.serving.figures else None


def goodput(row: Row) -> Measured | None:
    """Under the tuned settings where it was tuned, else under the default ones."""
    if row.tuning and row.tuning.tuned_goodput:
        return row.tuning.tuned_goodput
    return row.serving.figures.goodput_per_s if row.serving and row.serving.figures else None
