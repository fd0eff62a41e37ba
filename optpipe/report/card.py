"""The model card of a bundle: YAML front matter, measured figures, how to serve, what to know."""

from __future__ import annotations

from optpipe.records import Json
from optpipe.report import figures, tasks, words
from optpipe.report.data import ReportData, Row, rows
from optpipe.report.markdown import cell, grid, latency
from optpipe.report.summary import goodput, summarize, throughput


def model_card(data: ReportData, artifact: Json) -> str:
    """README.md of the bundle; the same records give the same bytes. `artifact` is the content of optpipe.json."""
    winner = next(row for row in rows(data) if row.winner)
    blocks = [
        front_matter(data, artifact),
        f"# {cell(data.name)}, {cell(winner.name)}",
        f"{cell(data.facts.source)}, {scheme(artifact)}, measured and packaged by optpipe. "
        f"{cell(summarize(data).why)}",
        "\n".join(f"> - {cell(note)}" for note in (*data.facts.notes, *artifact.get("notes", ()))),
        serve(artifact),
        "## Measured",
        "Value, 95 % interval, n. Quality is paired with the base model on the same tokens.",
        quality(winner),
        on_tasks(winner),
        serving(winner),
        *latency([winner]),
        f"{words.load(data)}. {words.slo(data)}.",
        "Measured on: " + "; ".join(f"{word}: {cell(told)}" for word, told in words.machine(data)) + ".",
        f"Every figure: [report.html](report.html), [records](records/). Reproduce: `{data.command}`",
        "## Licence and attribution",
        licence(artifact["licence"]),
        "## Who made it, from what",
        "`optpipe verify .` checks every file against `manifest.json`, the signature in `model.sig` against the "
        "signers that you trust, and `provenance.json` (in-toto, SLSA) against recipe and files; without "
        "`model.sig` this bundle is **unsigned**, and checksums prove integrity, not origin. By hand: "
        "`model_signing verify key . --signature model.sig --public_key KEY`. `sbom.cdx.json` (CycloneDX) lists "
        "model, texts and every package. The version's digest is `sha256sum manifest.json`.",
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def front_matter(data: ReportData, artifact: Json) -> str:
    """What model hubs read."""
    import yaml

    tags = ["optpipe", str(artifact["target"]["engine"])]
    tags += [str(artifact[key]) for key in ("method", "format") if artifact[key]]
    head: Json = {"pipeline_tag": "text-generation", "tags": list(dict.fromkeys(tags))}
    if artifact["licence"]["name"]:
        head["license"] = artifact["licence"]["name"]
    if data.facts.kind == "hub":
        head["base_model"] = data.facts.source.removeprefix("hf:").split("@")[0]
        if artifact["method"]:
            head["base_model_relation"] = "quantized"
    return "---\n" + yaml.safe_dump(head, sort_keys=True, allow_unicode=True) + "---"


def licence(known: Json) -> str:
    """The base's licence as far as anybody said it; what is not known is said too."""
    name, files = known["name"], ", ".join(f"[{cell(name)}]({name})" for name in known["files"])
    said = "The base does not say under which licence it is."
    if name:
        said = f"The base is under `{cell(name)}`, says {known['said_by']}."
    texts = f" Texts that came with it go along: {files}." if files else " It came without the text of a licence."
    owed = "; ".join(f"{key.replace('_', ' ')}: {cell(value)}" for key, value in sorted(known["attribution"].items()))
    return said + texts + (f"\n\nOwed to: {owed}." if owed else "")


def scheme(artifact: Json) -> str:
    """`gptq, pack-quantized, group size 64`, or that nothing was quantized."""
    if not artifact["method"]:
        return "not quantized"
    group = f", group size {artifact['group_size']}" if artifact["group_size"] else ""
    return f"quantized by {artifact['method']} ({artifact['format']}{group})"


def serve(artifact: Json) -> str:
    target = artifact["target"]
    version = f" {target['version']}" if target["version"] else ""
    command = "env $(cat engine/vllm.env) vllm serve . --config engine/vllm.yaml"
    if target["engine"] != "vllm":
        command = "optpipe serve ."
    return f"## Serve\n\nWith {target['engine']}{version}, in this folder:\n\n```sh\n{command}\n```"


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
