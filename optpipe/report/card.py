"""The model card of a bundle: YAML front matter, measured figures, how to serve, what to know."""

from __future__ import annotations

from dataclasses import dataclass

from optpipe.records import Json
from optpipe.report import figures, tasks, words
from optpipe.report.data import ReportData, Row, rows
from optpipe.report.markdown import cell, grid, latency
from optpipe.report.summary import goodput, summarize, throughput


@dataclass(frozen=True)
class CardFacts:
    """What the card says beside the records: the description of the artifact, and the base's licence."""

    artifact: Json
    """The content of optpipe.json."""
    licence: str | None = None
    """The base's own `license:`, as its card gives it."""


def model_card(data: ReportData, facts: CardFacts) -> str:
    """README.md of the bundle; the same records give the same bytes."""
    winner = next(row for row in rows(data) if row.winner)
    blocks = [
        front_matter(data, facts),
        f"# {cell(data.name)}, {cell(winner.name)}",
        f"{cell(data.facts.source)}, {scheme(facts.artifact)}, measured and packaged by optpipe. "
        f"{cell(summarize(data).why)}",
        "\n".join(f"> - {cell(note)}" for note in data.facts.notes),
        serve(facts.artifact),
        "## Measured",
        "Value, 95 % interval, n. Quality is paired with the base model on the same tokens.",
        quality(winner),
        on_tasks(winner),
        serving(winner),
        *latency([winner]),
        f"{words.load(data)}. {words.slo(data)}.",
        "Measured on: " + "; ".join(f"{word}: {cell(told)}" for word, told in words.machine(data)) + ".",
        f"Every figure: [report.html](report.html), [records](records/). Reproduce: `{data.command}`",
        "## Integrity",
        "This bundle is **unsigned**. `optpipe verify` checks every file against `manifest.json`; checksums "
        "prove integrity, not origin. The version's digest is `sha256sum manifest.json`.",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def front_matter(data: ReportData, facts: CardFacts) -> str:
    """What model hubs read."""
    import yaml

    tags = ["optpipe", str(facts.artifact["target"]["engine"])]
    tags += [str(facts.artifact[key]) for key in ("method", "format") if facts.artifact[key]]
    head: Json = {"pipeline_tag": "text-generation", "tags": list(dict.fromkeys(tags))}
    if facts.licence:
        head["license"] = facts.licence
    if data.facts.kind == "hub":
        head["base_model"] = data.facts.source.removeprefix("hf:").split("@")[0]
        if facts.artifact["method"]:
            head["base_model_relation"] = "quantized"
    return "---\n" + yaml.safe_dump(head, sort_keys=True, allow_unicode=True) + "---"


def scheme(artifact: Json) -> str:
    """`gptq, pack-quantized, group size 64`, or that nothing was quantized."""
    if not artifact["method"]:
        return "not quantized"
    group = f", group size {artifact['group_size']}" if artifact["group_size"] else ""
    return f"quantized by {artifact['method']} ({artifact['format']}{group})"


def serve(artifact: Json) -> str:
    target = artifact["target"]
    version = f" {target['version']}" if target["version"] else ""
    return (
        f"## Serve\n\nWith {target['engine']}{version}, in this folder:\n\n"
        "```sh\nenv $(cat engine/vllm.env) vllm serve . --config engine/vllm.yaml\n```"
    )


def quality(row: Row) -> str:
    if row.evaluation is None:
        return ""
    header = ("Text", "Perplexity", "Base", "Change", "KL divergence", "Top-1 agreement", "Tokens")
    lines = [
        (
            text.text,
            figures.number(text.perplexity),
            figures.number(text.base_perplexity),
            figures.whole(text.change_pct, sign=True),
            figures.whole(text.kl_divergence),
            figures.whole(text.top1_agreement),
            f"{text.n_tokens:,}",
        )
        for text in row.evaluation.texts
    ]
    return grid(header, lines)


def on_tasks(row: Row) -> str:
    """Accuracy on tasks, where any were scored."""
    told = [(one.task, one.accuracy, one.change, one.flips) for one in tasks.lines([row])]
    return grid(tasks.HEADER[1:5], told) if told else ""


def serving(row: Row) -> str:
    if row.serving is None or row.serving.figures is None:
        return ""
    lines = [("Output throughput", figures.whole(throughput(row)))]
    lines.append(("Goodput" + (", tuned" if row.tuning else ""), figures.whole(goodput(row))))
    lines.append(("Inside the SLO", figures.whole(row.serving.figures.inside_slo)))
    return grid(("Serving", "Value"), lines)
