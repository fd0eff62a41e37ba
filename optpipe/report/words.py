"""Sentences that page, Markdown and model card share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from optpipe.judge import COMPILED_ON
from optpipe.records import Challenge, Compiled, Evaluation, Json, KeptCode, LoadFigures, Serving
from optpipe.report import figures
from optpipe.report.data import ReportData, Row

LATENCIES = (
    ("ttft_ms", "Time to first token (TTFT)"),
    ("tpot_ms", "Time per output token (TPOT)"),
    ("e2e_ms", "End to end"),
)


def plain(value: Any) -> str:
    """A setting as YAML would show it."""
    return value if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else json.dumps(value)


def load_told(found: LoadFigures) -> str:
    """What the load generator did, and whether its figures can be trusted."""
    parts = [f"{found.requests:,} requests, {found.failures} failed, {figures.duration(found.seconds)}"]
    if found.requested_rate is not None:
        asked, got = figures.number(found.requested_rate), figures.number(found.achieved_rate)
        parts.append(f"asked {asked} req/s, sent {got}")
    if found.prefix_cache_hit_rate is not None:
        parts.append(f"prefix cache hits {100 * found.prefix_cache_hit_rate:.0f} %")
    if not found.unique_prompts:
        parts.append("prompts were not unique")
    if found.client_limited:
        parts.append(f"the load generator was the limit: {found.client_limited}")
    return "; ".join(parts)


MOST_NOTES = 3
"""Of each checkpoint's quantizer, the weightiest first; all of them stand in its record."""


def notes(data: ReportData) -> list[str]:
    """What a reader must know wherever the figures are used."""
    found = list(data.checkpoints[0].details.get("notes", ())) if data.checkpoints else []
    for checkpoint in data.checkpoints[1:]:
        told = checkpoint.details.get("notes", ())
        found += [f"{checkpoint.name}: {note}" for note in told[:MOST_NOTES]]
        if len(told) > MOST_NOTES:
            found.append(f"{checkpoint.name}: {len(told) - MOST_NOTES} more notes in its record")
    of_plan = (f"{planned.candidate.name}: {note}" for planned in data.plan.feasible for note in planned.notes)
    return list(dict.fromkeys((*data.facts.notes, *data.plan.warnings, *found, *of_plan)))


def load(data: ReportData) -> str:
    """The declared load in a sentence."""
    declared = {key: value for key, value in data.recipe.get("load", {}).items() if value not in (None, 0)}
    told = ", ".join(f"{key.replace('_', ' ')} {plain(value)}" for key, value in declared.items())
    return f"Load: {told}" if told else "No load declared"


def slo(data: ReportData) -> str:
    """The service-level objective in a sentence."""
    limits = [
        f"{metric.removesuffix('_ms').upper()} {percentile.upper()} ≤ {figures.number(limit)} ms"
        for metric, per in data.recipe.get("slo", {}).items()
        if isinstance(per, dict)
        for percentile, limit in per.items()
        if limit is not None
    ]
    return f"SLO: {', '.join(limits)}" if limits else "No SLO declared"


def machine(data: ReportData) -> list[tuple[str, str]]:
    """The hardware and the versions that the figures belong to."""
    hardware = data.hardware
    told = [
        ("CPU", f"{hardware.cpu}, {hardware.cores} cores, {hardware.instruction_set}"),
        ("Memory", figures.size(hardware.memory_bytes)),
    ]
    if hardware.gpu:
        memory = figures.size(hardware.gpu_memory_bytes)
        told.append(("GPU", f"{hardware.gpus} × {hardware.gpu}, {memory}, driver {hardware.driver}"))
    return [*told, *versions(data)]


def versions(data: ReportData) -> list[tuple[str, str]]:
    """optpipe's own, then a line per toolchain."""
    own = {name: version for name, version in data.versions.items() if not isinstance(version, dict)}
    chains = {name: found for name, found in sorted(data.versions.items()) if isinstance(found, dict)}
    lines = [("Versions", own), *((f"Toolchain {name}", found) for name, found in chains.items())]
    return [(word, ", ".join(f"{name} {found[name]}" for name in sorted(found))) for word, found in lines]


def setup(data: ReportData) -> list[tuple[str, str]]:
    """Model, hardware, versions, load, time, and where it went."""
    facts = data.facts
    return [
        ("Base model", f"{facts.source} at {facts.revision}" if facts.revision else facts.source),
        ("Architecture", f"{facts.architecture}, {facts.parameters / 1e6:,.0f} M parameters, {facts.dtype}"),
        *machine(data),
        ("Load", load(data).removeprefix("Load: ")),
        ("SLO", slo(data).removeprefix("SLO: ")),
        *((f"Time to {name}", figures.duration(seconds)) for name, seconds in sorted(data.seconds.items())),
        *(
            ("Published", f"{found.name}@{found.digest} as {', '.join(found.aliases)} in {found.location}")
            for found in data.published
        ),
        *(("Champion", champion(challenge)) for challenge in data.challenges if challenge.checks),
    ]


COMPILED = ("Compiled", "How", "Perplexity from its checkpoint's", "Bound to", "At most", "Size", "Took")


OFFLINE = ("Without a server", "By", "Output", "Served", "TTFT P50", "TPOT P50", "n")
OFFLINE_CAPTION = "The same load by the engine's own benchmark, without HTTP and tokenizer: it ranks nothing."


def all_offline(table: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each candidate that its engine's own benchmark was run for."""
    return [offline(row.serving) for row in table if row.serving and row.serving.offline]


def offline(serving: Serving) -> tuple[str, ...]:
    """One line of the table of what the engine's own benchmark found, or why it found nothing."""
    found = serving.offline
    assert found is not None, "only what was measured without a server"
    served = figures.whole(serving.figures.output_tokens_per_s) if serving.figures else ""
    if found.figures is None:
        return serving.candidate, found.tool, f"none: {found.reason}", served, "", "", ""
    told = found.figures
    first, each = (figures.at(latency, "p50") for latency in (told.ttft_ms, told.tpot_ms))
    output = figures.whole(told.output_tokens_per_s)
    return serving.candidate, found.tool, output, served, first, each, f"{told.requests:,}"


def all_compiled(table: Sequence[Row]) -> list[tuple[str, ...]]:
    """A line for each candidate that anything was compiled for."""
    return [compiled(row.compiled, row.evaluation) for row in table if row.compiled and row.compiled.any]


def settings(config: Json) -> str:
    """Settings as Markdown has them."""
    return ", ".join(f"`{key}: {plain(value)}`" for key, value in sorted(config.items()))


def from_checkpoint(evaluation: Evaluation | None) -> str:
    """What compiling did to the perplexity of each text, where the artifact itself was scored."""
    checks = evaluation.checks if evaluation else ()
    found = [(c.name.removeprefix(COMPILED_ON), c.value) for c in checks if c.name.startswith(COMPILED_ON)]
    return ", ".join(f"{text} {value:+.2f} %" for text, value in found if value is not None) or "not scored by itself"


def compiled(found: Compiled, evaluation: Evaluation | None) -> tuple[str, ...]:
    """One line of the table of what was compiled."""
    return (
        found.candidate,
        found.how,
        from_checkpoint(evaluation),
        ", ".join(f"{name} {value}" for name, value in found.bound_to.items()),
        ", ".join(f"{name} {value}" for name, value in found.limits.items()),
        figures.size(found.bytes) if found.code is None else code_size(found.code),
        figures.duration(found.seconds) if found.code is None else starts(found.code),
    )


def code_size(code: KeptCode) -> str:
    """Of what an engine compiled and keeps."""
    return figures.size(code.starts[-1].bytes) if code.starts else "not started"


def starts(code: KeptCode) -> str:
    """Seconds until the engine answered: where it had to compile everything, and where it had to compile nothing."""
    words = [f"first start {figures.duration(code.cold.seconds)}"] if code.cold else []
    if took := [start.seconds for start in code.warm]:
        ends = dict.fromkeys((figures.duration(min(took)), figures.duration(max(took))))
        words.append(f"from what was kept {' to '.join(ends)} (n = {len(took)})")
    return ", ".join(words) or "not started"


def champion(found: Challenge) -> str:
    """Whether the version took the champion's place, and why."""
    holder = found.champion[:19] if found.champion else "nobody"
    return f"{holder} {'made way' if found.passed else 'stays'}: {'; '.join(check.reason for check in found.checks)}"
