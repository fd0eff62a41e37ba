"""The report as one HTML file: no network, no script, no date; the same records give the same bytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.records import Check
from optpipe.report import bounds, estimates, figures, plots, summary, tasks, words
from optpipe.report.data import ReportData, Row, rows

if TYPE_CHECKING:
    from jinja2 import Environment

TEMPLATES = Path(__file__).parent / "templates"


def html(data: ReportData) -> str:
    """The whole page."""
    table = rows(data)
    pictures = (plots.quality_against_size(table, data), plots.throughput_against_latency(table, data))
    return (
        environment()
        .get_template("report.html.j2")
        .render(
            data=data,
            rows=table,
            summary=summary.summarize(data),
            plots=[plot for plot in pictures if plot],
            notes=words.notes(data),
            tasks=tasks.lines(table),
            task_header=tasks.HEADER,
            task_failures=tasks.failures(table),
            checked=checked(table, data),
            made=made(table),
            compiled=words.all_compiled(table),
            compiled_header=words.COMPILED,
            offline=words.all_offline(table),
            offline_header=words.OFFLINE,
            offline_caption=words.OFFLINE_CAPTION,
            bounds=bounds.lines(data, table),
            bound_header=bounds.HEADER,
            bound_caption=bounds.CAPTION,
            estimates=estimates.lines(data),
            estimate_header=estimates.HEADER,
            estimate_caption=estimates.CAPTION,
            setup=words.setup(data),
            load=words.load(data),
            slo=words.slo(data),
            latencies=words.LATENCIES,
            percentiles=figures.PERCENTILES,
            css=_css(),
        )
    )


@cache
def environment() -> Environment:
    """Autoescaping, and an unknown name is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for name in ("number", "value", "interval", "whole", "estimate", "size", "at", "duration"):
        made.filters[name] = getattr(figures, name)
    made.filters |= {
        "worst_text": summary.worst_text,
        "throughput": summary.throughput,
        "goodput": summary.goodput,
        "load_told": words.load_told,
        "plain": words.plain,
    }
    return made


def _css() -> Any:
    from markupsafe import Markup

    return Markup((TEMPLATES / "report.css").read_text(encoding="utf-8").rstrip())


def checked(table: tuple[Row, ...], data: ReportData) -> list[tuple[str, Check]]:
    """Every check in the order it was made, the confirmation's last."""
    found = [(row.name, check) for row in table if row.evaluation for check in row.evaluation.checks]
    if data.confirmation:
        found += [(f"{data.confirmation.candidate}, confirmation", check) for check in data.confirmation.checks]
    return found


def made(table: tuple[Row, ...]) -> list[Row]:
    """One row per quantized checkpoint."""
    by_checkpoint = {row.checkpoint.name: row for row in table if row.checkpoint and not row.is_base}
    return list(by_checkpoint.values())
