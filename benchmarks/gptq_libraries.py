"""Whether three libraries' GPTQ agree: the same bits, groups, symmetry and token ids, side by side, and why not.

Each of `CASES` quantizes SmolLM2-135M (the demo's model) to 4 bits in symmetric groups of 64 on 32 rows of 256
tokens of the demo's calibration text; each is scored on 32 units of 256 tokens of both of the demo's texts, paired
with the base and with one another. The cases after the first three change one setting each, to find what a
difference comes from; `codes` counts the 4-bit codes that two checkpoints share, layer by layer.

    *_change_pct   perplexity against the base's, per cent; of a pair `a_b`: a's against b's
    *_kl           nats per token from the base; of a pair: a's less b's
    *_same_codes   share of equal 4-bit codes in all layers; `_first`: in the first layer's q_proj, whose inputs
                   are the same for all libraries
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from benchmarks import document
from benchmarks.gptq_codes import same_codes
from optpipe import drift, stats
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.console import Talk
from optpipe.inuse import InUse
from optpipe.model import hardware
from optpipe.recipe.load import load
from optpipe.records import Artifact, Checkpoint, Job, Json, Needs
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder
from optpipe.stages.evaluate import Scorer
from optpipe.stages.inspect import inspect
from optpipe.stages.resolve import check_inputs, resolve

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"
ARTIFACTS = Path("artifacts") / "gptq_libraries"
SAMPLES, LENGTH, UNITS, SEED = 32, 256, 32, 1

GPTQ = {"method": "gptq", "bits": 4, "group_size": 64, "dampening": 0.01}
CASES: dict[str, tuple[str, str, Json]] = {
    "llmcompressor": ("quantize", "quantize", {**GPTQ, "symmetric": True}),
    "gptqmodel": ("quantize-gptqmodel", "gptqmodel", {"library": "gptqmodel", **GPTQ}),
    "autogptq": ("quantize-autogptq", "legacy", {"library": "autogptq", **GPTQ}),
    "autogptq_one_pass": (
        "quantize-autogptq", "legacy", {"library": "autogptq", **GPTQ, "true_sequential": False},
    ),
}  # fmt: skip
"""(kind of job, toolchain, scheme) by name."""

PAIRS = (
    ("autogptq", "llmcompressor"),
    ("gptqmodel", "llmcompressor"),
    ("gptqmodel", "autogptq"),
    ("autogptq", "autogptq_one_pass"),
    ("autogptq_one_pass", "llmcompressor"),
)


def measure() -> Json:
    """Quantizes and scores every case; finished jobs are kept under artifacts/, so a stopped run goes on."""
    recipe = load(RECIPE, (f"scoring.units={UNITS}", f"scoring.max_units={UNITS}")).recipe
    machine = hardware.this_machine()
    folder = RunFolder(ARTIFACTS, "gptq-libraries", {"hardware": dataclasses.asdict(machine)})
    with Talk() as talk, InUse(folder.store.root) as in_use:
        chains = Toolchains(recipe.toolchains, talk)
        executor = LocalExecutor(folder.store, chains, Site.here(machine), folder.path / "logs", talk)
        run = Run(folder, executor, machine, talk, RECIPE.parent, chains, in_use)
        try:
            base = resolve(run, recipe, inspect(recipe, run.recipe_folder, talk.say))
            texts = check_inputs(run, recipe)
            assert texts.calibration is not None, "the demo calibrates"
            scorer = Scorer(run, recipe, base, texts.scored)
            rows = calibration(run, base, texts.calibration)
            made = {name: checkpoint(run, base, rows, name) for name in CASES}
            scores = {name: scored(scorer, made[name]) for name in CASES}
            scores["base"] = scored(scorer, base)
        finally:
            executor.close()
    codes = {f"{a}_{b}": same_codes(made[a].path, made[b].path) for a, b in PAIRS}
    seconds = {name: round(model.seconds, 1) for name, model in made.items()}
    return {"texts": scores, "codes": codes, "seconds": seconds, "toolchains": chains.versions()}


def calibration(run: Run, base: Checkpoint, text: Artifact) -> Artifact:
    options = {"length": LENGTH, "first_row": 0, "rows": SAMPLES, "template": True, "min_rows": SAMPLES}
    inputs = {"model": base.artifact, "text": text}
    return run.executor.run(Job("tokens", "calibration: tokens", "quantize", options, inputs, seed=SEED)).files


def checkpoint(run: Run, base: Checkpoint, rows: Artifact, name: str) -> Checkpoint:
    kind, toolchain, options = CASES[name]
    inputs = {"model": base.artifact, "tokens": rows}
    needs = Needs(cpus=1, memory_bytes=6 * base.bytes)
    job = Job(kind, f"{name}: quantize", toolchain, options, inputs, needs=needs, threads=1, seed=SEED)
    done = run.executor.run(job)
    path = run.executor.present(done.files).path
    return Checkpoint(name, path, done.files.digest, 0, 4.0, options, done.seconds, done.peak_memory_bytes, done.key)


def scored(scorer: Scorer, model: Checkpoint) -> Json:
    """{text: units}."""
    texts = tuple(sorted(scorer.texts))
    units = scorer.score(model, texts, 0, UNITS).record["units"]
    return {text: units[at * UNITS : (at + 1) * UNITS] for at, text in enumerate(texts)}


def figures(raw: Json) -> Json:
    """Each case against the base, each pair against each other, with paired intervals over the units."""
    found: Json = {}
    spread: Json = {}
    base = raw["texts"]["base"]

    def put(name: str, value: float, interval: tuple[float, float] | None) -> None:
        found[name] = round(value, 4)
        spread[name] = [round(end, 4) for end in interval or ()]

    for text in sorted(base):
        for name in CASES:
            mine = raw["texts"][name][text]
            quality = drift.text_quality(text, base[text], mine)
            put(f"{name}_{text}_change_pct", quality.change_pct.value, quality.change_pct.ci95)
            put(f"{name}_{text}_kl", quality.kl_divergence.value, quality.kl_divergence.ci95)
        for a, b in PAIRS:
            one, other = raw["texts"][a][text], raw["texts"][b][text]
            change = drift.paired_change(other, one)
            put(f"{a}_{b}_{text}_change_pct", change.value, change.ci95)
            less = [x["kl"] - y["kl"] for x, y in zip(one, other, strict=True)]
            kl = stats.ratio(less, [x["tokens"] for x in one]).measured("nats")
            put(f"{a}_{b}_{text}_kl", kl.value, kl.ci95)
    for pair, shares in raw["codes"].items():
        found[f"{pair}_same_codes"] = round(shares["all"], 4)
        found[f"{pair}_same_codes_first"] = round(shares["first"], 4)
    seconds = {f"{name}_s": value for name, value in raw["seconds"].items()}
    units = f"{UNITS} units of {LENGTH} tokens of each text; one checkpoint of each case"
    return {"figures": {**found, **seconds}, "n": units, "spread": spread, "toolchains": raw["toolchains"]}


if __name__ == "__main__":
    document.main("gptq_libraries", measure, figures, ("numpy", "scipy"))
