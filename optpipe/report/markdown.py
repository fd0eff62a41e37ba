"""The report for a terminal or a pull request: the verdict, one table, and where the rest is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from optpipe.report import bounds, estimates, figures, tasks, words
from optpipe.report.data import ReportData, Row, rows
from optpipe.report.summary import goodput, summarize, throughput, worst_text


def markdown(data: ReportData) -> str:
    """A page of Markdown; records are named, not linked."""
    top = summarize(data)
    blocks = [
        f"# {cell(data.name)}: {cell(top.title)}",
        cell(top.why),
        "\n".join(f"- **{tile.label} {tile.value}** ({tile.detail})" for tile in top.tiles),
        "\n".join(f"> - {cell(note)}" for note in words.notes(data)),
        candidates(rows(data)),
        *scored(rows(data)),
        *compiled(rows(data)),
        *latency(rows(data)),
        *offline(rows(data)),
        *against_bounds(data),
        *tuning(rows(data)),
        *(cell(f"Champion {words.champion(found)}") for found in data.challenges if found.checks),
        *estimated(data),
        f"{words.load(data)}. {words.slo(data)}. On {cell(data.hardware.cpu)}, {data.hardware.cores} cores"
        + (f", {data.hardware.gpus} × {cell(data.hardware.gpu)}" if data.hardware.gpu else "") + ".",
        f"Figures are `value [95 % interval] n`; `about` marks an estimate. "
        f"Records: `{data.records or './'}`. Reproduce: `{data.command}`",
    ]  # fmt: skip
    return "\n\n".join(block for block in blocks if block) + "\n"


def candidates(table: Sequence[Row]) -> str:
    """Every candidate with status, figures and reasons."""
    header = ("Candidate", "Status", "Size", "Perplexity, worst text", "Output", "Goodput", "Why")
    return grid(header, (_candidate(row) for row in table))


def _candidate(row: Row) -> tuple[str, ...]:
    text = worst_text(row)
    size = figures.size(row.bytes) if row.bytes is not None else ""
    rise = figures.whole(text.change_pct, sign=True) if text else ""
    return (
        f"**{row.name}**" if row.winner else row.name,
        row.status,
        size or (figures.estimate(row.plan.bytes) if row.plan else ""),
        "the reference" if row.is_reference else rise,
        figures.whole(throughput(row)) if row.serving else "",
        figures.whole(goodput(row)) + (" tuned" if row.tuning else "") if row.serving else "",
        "; ".join(row.reasons),
    )


def scored(table: Sequence[Row]) -> list[str]:
    """Tasks, item by item against the base, where any were scored; and why one was not."""
    told = [
        (f"**{x.candidate}**" if x.winner else x.candidate, x.task, x.accuracy, x.change, x.flips, x.engine)
        for x in tasks.lines(table)
    ]
    return ([grid(tasks.HEADER, told)] if told else []) + [f"> {cell(text)}" for text in tasks.failures(table)]


def compiled(table: Sequence[Row]) -> list[str]:
    """What was built for an engine, where anything was."""
    built = words.all_compiled(table)
    return [grid(words.COMPILED, built)] if built else []


def latency(table: Sequence[Row]) -> list[str]:
    """Percentiles of the winner, or of the base where nothing won."""
    served = [row for row in table if row.serving and row.serving.figures]
    row = next((row for row in served if row.winner), None) or next(iter(served), None)
    if row is None or row.serving is None or row.serving.figures is None:
        return []
    header = (f"Latency of {row.name}", *(p.upper() for p in figures.PERCENTILES), "n")
    lines = []
    for name, told in words.LATENCIES:
        found = getattr(row.serving.figures, name)
        lines.append((told, *(figures.at(found, p) for p in figures.PERCENTILES), f"{found.n:,}"))
    return [grid(header, lines)]


def offline(table: Sequence[Row]) -> list[str]:
    """What engines' own benchmarks found without a server, where any has one."""
    told = words.all_offline(table)
    return [grid(words.OFFLINE, told), words.OFFLINE_CAPTION] if told else []


def against_bounds(data: ReportData) -> list[str]:
    """What was served beside what the hardware allows, where its peaks are known."""
    told = [(x.candidate, x.figure, x.measured, x.bound, x.share) for x in bounds.lines(data, rows(data))]
    return [grid(bounds.HEADER, told), bounds.CAPTION] if told else []


def estimated(data: ReportData) -> list[str]:
    """The plan's estimates beside what was measured; an error beyond its aim is bold."""
    told = [
        (x.of, x.quantity, x.estimated, x.measured, f"**{x.error}**" if x.beyond else x.error)
        for x in estimates.lines(data)
    ]
    return [grid(estimates.HEADER, told), estimates.CAPTION] if told else []


def tuning(table: Sequence[Row]) -> list[str]:
    """One line per tuned candidate."""
    return [
        f"Tuning of {row.name}: default {figures.whole(row.tuning.default_goodput)}, "
        f"tuned {figures.whole(row.tuning.tuned_goodput)} in {len(row.tuning.trials)} trials, with "
        + (words.settings(row.tuning.config) or "the engine's own settings")
        for row in table
        if row.tuning
    ]


def grid(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what would break a cell is escaped."""
    body = [header, ["---"] * len(header), *lines]
    return "\n".join("| " + " | ".join(cell(item) for item in line) + " |" for line in body)


def cell(text: str) -> str:
    """Text on one line that holds no markup of its own."""
    flat = " ".join(str(text).split())
    return flat.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")
