"""Reference pages of the quantization methods: one a method, and a table of all beside what was measured of them.

Fields come from the recipe's schema, what loads from the compatibility table, figures from the committed results of
`benchmarks.methods`; only the sentences in `WHEN` are written by hand, and each says what it rests on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from optpipe.model.compat_table import Asked, first, tables
from optpipe.model.hardware import named
from optpipe.model.schemes import kind_of
from optpipe.recipe.methods import Method, methods, sentence
from optpipe.recipe.page import default_of, kind
from optpipe.records import Hardware, Json

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "methods.json"
MACHINES = {"CPU": "laptop-cpu", "A10": "a10", "L4": "l4", "H100": "h100", "B200": "b200"}
"""One machine for each kind of hardware that the compatibility table tells apart."""

HEAD = """\
# Quantization methods

Every `method` of every `library` that a recipe's `checkpoints:` may name; a page each, from the same source as the
recipe's check.
"""

WHEN = {
    "gptq": "4-bit weights where calibration may take its time: each column's rounding error is made up for on "
    "the text that you give it, so give it text like production's. Rests on the losses below against "
    "`rtn` and `awq`.",
    "awq": "4-bit weights, beside `gptq`, where memory is there for its search: it scales channels and rounds to "
    "nearest. Rests on the losses and the peak memory below.",
    "awq-gptq": "4-bit weights where neither `awq` nor `gptq` alone passes your gates: it takes the time of both. "
    "Rests on the losses and seconds below.",
    "smoothquant": "INT8 where plain `int8` loses too much and the hardware has INT8 kernels. Rests on the losses "
    "below against `int8`, and on what loads.",
    "int8": "First, where INT8 kernels are there: half the bytes, no calibration text, seconds of work. Rests on "
    "the seconds and losses below.",
    "fp8": "GPUs that compute in FP8: no calibration text. Rests on what loads where.",
    "rtn": "In 8 bits where an engine has a kernel for weights alone; in 4 bits as what other methods must beat. "
    "Rests on the losses below.",
    "mixed": "Where 4 bits everywhere lose too much and 8 bits everywhere are too large. Rests on the losses and "
    "bytes below.",
    "nvfp4": "GPUs that compute in it. Rests on what loads where; its speed has not been measured here.",
    "mxfp4": "Engines that take the OCP Microscaling format. Rests on what loads where, and on the losses below "
    "against `nvfp4`.",
    "autoround": "4-bit weights where hours are there for the last of the quality. Rests on its seconds below, taken "
    "with 10 steps of its default of 200, too few to judge its losses by.",
    "spinquant": "4-bit weights of a model with strong outliers and untied embeddings; tied ones become two "
    "tables. On the model measured below it is no better than `gptq` and larger.",
}
"""When to take a method, and what that rests on."""


def pages() -> dict[str, str]:
    """`methods.md`, and `methods/<method>.md` with a section for each library that makes it."""
    found, results = methods(), measured()
    names = dict.fromkeys(method.name for method in found)
    own = {name: [method for method in found if method.name == name] for name in names}
    return {"methods.md": index(own, results)} | {
        f"methods/{name}.md": page(name, made, results) for name, made in own.items()
    }


def measured() -> Json:
    """The committed result of the benchmark; empty where there is none."""
    return dict(json.loads(RESULTS.read_text(encoding="utf-8"))) if RESULTS.is_file() else {}


def of(results: Json, method: Method) -> Json:
    """The figures of one method of one library; empty where it was not measured."""
    return dict(results.get("figures", {}).get(f"{method.library}-{method.name}", {}))


# ---------------------------------------------------------------- the table of all


def index(own: dict[str, list[Method]], results: Json) -> str:
    libraries = list(dict.fromkeys(method.library for made in own.values() for method in made))
    rows = [[f"[{name}](methods/{name}.md)", *across(made, libraries)] for name, made in own.items()]
    parts = [HEAD, "## Methods and libraries", "", "What each makes by default.", ""]
    parts += [*grid(["method", *libraries], rows), "", "## Measured", "", *provenance(results), ""]
    columns = ["method", "library", "quantize", "peak memory", "bytes", "bits/weight", *texts_of(results)]
    every = [method for made in own.values() for method in made]
    lines = [[method.name, method.library, *costs(of(results, method)), *losses(results, method)] for method in every]
    columns += ["vLLM on a CPU"]
    parts += grid(columns, [[*line, served(of(results, method))] for line, method in zip(lines, every)])
    return "\n".join(parts) + "\n"


def across(made: Iterable[Method], libraries: list[str]) -> list[str]:
    by_library = {method.library: kind_of(defaults(method)) for method in made}
    return [by_library.get(library, "") for library in libraries]


def provenance(results: Json) -> Iterator[str]:
    """What was measured, on what, by which command."""
    if not results:
        yield "Not measured yet: `python -m benchmarks.methods --json --save`."
        return
    rows, machine = results["calibration"], results["hardware"]
    yield (
        f"{results['model']}; calibrated on {rows['samples']} rows of {rows['sequence_length']} tokens; on "
        f"{machine['cores']} cores ({machine['machine']}), no GPU, one thread a job. Seconds are wall-clock with "
        f"imports, the median of n jobs with the smallest and the largest, on a machine that did other work as well. "
        "Perplexity is the change against the same layers unquantized, on the same tokens, with its 95 % interval: a "
        "cut predicts so badly that rounding may even help it, so KL divergence from the unquantized cut gives the "
        "order among methods, and neither says what a whole model loses. "
        f"`{results['command']}`"
    )


# ---------------------------------------------------------------- one method


def page(name: str, made: list[Method], results: Json) -> str:
    parts = [f"# method: {name}", ""]
    if name in WHEN:
        parts += ["## When to take it", "", WHEN[name], ""]
    for method in made:
        parts += [f"## library: {method.library}", "", method.summary, "", method.what, ""]
        parts += ["### Fields", "", *fields(method), "", "### Who loads it", "", *loads(method), ""]
        parts += ["### What it costs", "", *cost(method, results), ""]
    return "\n".join(parts).rstrip() + "\n"


def fields(method: Method) -> list[str]:
    rows = [
        [f"`{key}`", plain(kind(value, method.schema)), default_of(value), sentence(value.get("description", ""))]
        for key, value in method.fields.items()
    ]
    return grid(["key", "what it takes", "default", "meaning"], rows)


def loads(method: Method) -> Iterator[str]:
    """Engine by hardware, for the method's default values."""
    scheme, found = defaults(method), tables()
    word = kind_of(scheme)
    wrote = first(found.writes, Asked("", named("laptop-cpu"), scheme=word, library=method.library))
    if wrote is None or wrote.status == "no":
        yield f"{method.library} does not make {word} checkpoints." if wrote else "Not in the compatibility table."
        return
    yield f"By default it makes {word} in {wrote.makes} format."
    yield ""
    asked = {"scheme": word, "library": method.library, "format": wrote.makes}
    asked["symmetric"] = bool(scheme.get("symmetric", True))  # type: ignore[assignment]
    machines = {label: named(machine) for label, machine in MACHINES.items()}
    notes: list[str] = []
    rows = [[engine, *(answer(engine, one, asked, notes) for one in machines.values())] for engine in found.engines]
    yield from grid(["engine", *machines], rows)
    yield ""
    yield from (f"{number}. {note}" for number, note in enumerate(notes, 1))


def answer(engine: str, hardware: Hardware, asked: Json, notes: list[str]) -> str:
    """ok, slow or no, with the number of the reason below."""
    row = first(tables().loads, Asked(engine, hardware, **asked))
    if row is None:
        return "unknown"
    if not row.reason:
        return row.status
    nearest = f"; nearest: {row.nearest}" if row.nearest else ""
    note = f"{row.reason}{nearest} ({row.source})"
    if note not in notes:
        notes.append(note)
    return f"{row.status} ({notes.index(note) + 1})"


def cost(method: Method, results: Json) -> Iterator[str]:
    found = of(results, method)
    if not found:
        yield "Not measured yet: `python -m benchmarks.methods --json --save`."
        return
    columns = ["quantize", "peak memory", "bytes", "bits/weight", *texts_of(results), "vLLM on a CPU"]
    yield from grid(columns, [[*costs(found), *losses(results, method), served(found)]])
    yield ""
    scheme = {key: value for key, value in found["scheme"].items() if key not in ("library", "ignore")}
    yield f"Measured with `{json.dumps(scheme)}`. " + "".join(provenance(results))


# ---------------------------------------------------------------- cells


def defaults(method: Method) -> Json:
    """The block of a recipe that names only the method."""
    own = {key: value["default"] for key, value in method.fields.items() if "default" in value}
    return {"library": method.library, "method": method.name, **own}


def texts_of(results: Json) -> list[str]:
    """A column for each text that was scored."""
    scored = (figure["texts"] for figure in results.get("figures", {}).values() if "texts" in figure)
    return [f"perplexity, KL on {name}" for name in next(scored, ())]


def costs(found: Json) -> list[str]:
    if "quantize_s" not in found:
        return [str(found.get("failed", "")), "", "", ""]
    low, high = found["spread"]["quantize_s"]
    seconds = f"{found['quantize_s']:.0f} s [{low:.0f}, {high:.0f}] n={found['n']}"
    low, high = (value / 1e6 for value in found["spread"]["peak_memory_bytes"])
    memory = f"{found['peak_memory_bytes'] / 1e6:.0f} MB [{low:.0f}, {high:.0f}]"
    return [seconds, memory, f"{found['bytes'] / 1e6:.1f} MB", f"{found['bits_per_weight']:.2f}"]


def losses(results: Json, method: Method) -> list[str]:
    names = [column.rpartition(" on ")[2] for column in texts_of(results)]
    return [lost(of(results, method).get("texts", {}).get(name)) for name in names]


def lost(text: Json | None) -> str:
    if text is None:
        return ""
    ends = text["ci95_pct"]
    interval = f" [{ends[0]:+.2f}, {ends[1]:+.2f}]" if ends else ""
    return f"{text['change_pct']:+.2f} %{interval} n={text['n_units']}; {text['kl']:.3g} nats"


def served(found: Json) -> str:
    if found.get("loads") is None:
        return "not tried" if found else ""
    return "yes" if found["loads"] else f"no: {found['says']}"


def grid(header: list[str], rows: Iterable[list[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines]


def plain(text: str) -> str:
    """A kind's words whose links lead to the recipe's page, where its blocks are described."""
    return text.replace("](#", "](../recipe.md#")
