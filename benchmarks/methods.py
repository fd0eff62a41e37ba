"""What each quantization method costs and loses: every (library, method) of the recipe on a 3-layer cut.

The demo's model is cut to its first three layers (embeddings, norm and tokenizer stay), so every kernel and every
kind of layer is real and the text is poor: read costs as they are, and KL divergence as an order among methods.

    quantize_s          wall-clock seconds of the job, process start and imports included; --jobs of them a method
    peak_memory_bytes   the most that the job's processes held at once
    perplexity          change against the cut itself on the same tokens, two texts, with its interval
    loads               whether the engine (vLLM on this machine) serves it; else what it says

Jobs are kept in artifacts/benchmarks/methods, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from statistics import median

import yaml

from benchmarks import document
from optpipe import drift, serving
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.backends.executors.worker_run import WHOSE
from optpipe.build import resolved
from optpipe.console import Talk
from optpipe.costs import estimate
from optpipe.errors import BackendFailed, OptpipeError
from optpipe.inuse import InUse
from optpipe.model import hardware
from optpipe.outcome import Entry
from optpipe.recipe.load import Loaded, load
from optpipe.recipe.methods import methods
from optpipe.recipe.schema import Recipe
from optpipe.records import Artifact, CandidatePlan, Checkpoint, Json, ModelFacts, to_json
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder
from optpipe.stages.compile import compile_
from optpipe.stages.evaluate import Scorer, canary_job, parity_job
from optpipe.stages.inspect import inspect
from optpipe.stages.plan import expand
from optpipe.stages.quantize import calibration_tokens, quantize
from optpipe.stages.resolve import check_inputs, resolve
from tests.real.cuts import cut_layers

ROOT = Path(__file__).parents[1]
WORK = ROOT / "artifacts" / "benchmarks" / "methods"
LAYERS = 3
MODEL = f"SmolLM2-135M-Instruct (Q4_1 GGUF, converted to bf16), its first {LAYERS} layers"
SMALL = {"group_size": 64, "iterations": 10, "max_tokens": 4096, "grid": 10, "symmetric": False}
"""Values in place of defaults, for methods whose groups of 128 do not divide this model's 576 or that take hours."""


def recipe(folder: Path, only: list[str]) -> Path:
    """The demo's recipe with this model and every method (of those that `only` matches) in place of its four."""
    chosen: Json = {}
    for method in methods():
        name = f"{method.library}-{method.name}"
        if only and not any(fnmatch(name, pattern) for pattern in only):
            continue
        wide = method.fields.get("group_size", {}).get("default") == 128
        own = {key: value for key, value in SMALL.items() if wide and key in method.fields}
        if method.library != "llmcompressor":  # engines here take the others' formats symmetric only
            own.pop("symmetric", None)
        chosen[name] = {"method": method.name, "library": method.library, **own}
    document_: Json = {
        "version": 1,
        "extends": str(ROOT / "recipes" / "demo.yaml"),
        "name": "methods",
        "model": {"source": str(folder)},
        "calibration": {"samples": 16, "sequence_length": 256},
        "checkpoints": {"gptq-w4": None, "awq-w4": None, "sq-w8a8": None, "int8": None, **chosen},
        "on_inconclusive": "warn",
        "publish": [],
    }
    path = WORK / "methods.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump(document_, sort_keys=False), encoding="utf-8")
    return path


def cut() -> Path:
    """The demo's model, converted by the toolchain that the demo uses, with its first layers alone."""
    folder = WORK / f"cut{LAYERS}"
    if not (folder / "config.json").exists():
        demo = load(ROOT / "recipes" / "demo.yaml")
        with a_run(demo) as run:
            facts = inspect(demo.recipe, demo.path.parent, run.talk.say)
            cut_layers(resolve(run, demo.recipe, facts).path, folder, LAYERS)
    return folder


@contextmanager
def a_run(loaded: Loaded) -> Iterator[Run]:
    """A run of the executor in WORK, closed at its end."""
    machine = hardware.this_machine()
    about: Json = {"recipe_path": str(loaded.path), "recipe": resolved(loaded.recipe), "versions": {}}
    folder = RunFolder(WORK, loaded.recipe.name, {**about, "hardware": dataclasses.asdict(machine)})
    with Talk() as talk, InUse(folder.store.root) as in_use:
        chains = Toolchains(loaded.recipe.toolchains, talk)
        executor = LocalExecutor(folder.store, chains, Site.here(machine), folder.path / "logs", talk)
        try:
            yield Run(folder, executor, machine, talk, loaded.path.parent, chains, in_use)
        finally:
            executor.close()


@dataclass(frozen=True)
class Bench:
    """What all methods share: the run, the recipe, the cut as base, its scores."""

    run: Run
    recipe: Recipe
    facts: ModelFacts
    base: Checkpoint
    tokens: Artifact | None
    scorer: Scorer


def measure(jobs: int, only: list[str], engine: bool) -> Json:
    """One entry a method, the cut itself (`base`) first; `jobs` quantize jobs a method, each with its own seed."""
    loaded = load(recipe(cut(), only))
    with a_run(loaded) as run:
        chosen = loaded.recipe
        facts = inspect(chosen, run.recipe_folder, run.talk.say)
        texts = check_inputs(run, chosen)
        run.record("01-inspect.json", facts)
        base = resolve(run, chosen, facts)
        planned = [estimate(chosen, facts, run.hardware, candidate, ()) for candidate in expand(chosen)]
        tokens = calibration_tokens(run, chosen, base, texts.calibration, planned)
        bench = Bench(run, chosen, facts, base, tokens, Scorer(run, chosen, base, texts.scored))
        found = [entry for one in planned if (entry := measured(bench, one, jobs, engine))]
        executor = run.executor
        for entry in found:  # engines have ended by the end of their session
            beside = executor.store.beside(entry.pop("engine_job"), "engine") if "engine_job" in entry else None
            entry["engine_peak_memory_bytes"] = beside["peak_memory_bytes"] if beside else None
        versions = run.toolchains.versions()
    return {
        "model": MODEL,
        "calibration": to_json(resolved(chosen)["calibration"]),
        "methods": list({entry["candidate"]: entry for entry in (*others(only), *found)}.values()),
        "toolchains": versions,
    }


def others(only: list[str]) -> list[Json]:
    """What is kept of the methods that are not measured now."""
    kept = document.RESULTS / "methods.raw.json"
    return json.loads(kept.read_text(encoding="utf-8"))["methods"] if only and kept.exists() else []


def measured(bench: Bench, planned: CandidatePlan, count: int, engine: bool) -> Json | None:
    """Costs, losses and whether it is served; a method that cannot be made here has the reason alone."""
    candidate = planned.candidate
    told: Json = {"candidate": candidate.checkpoint, "scheme": candidate.scheme}
    jobs: list[Checkpoint] = []
    try:
        for seed in range(1, 1 + (count if candidate.scheme else 1)):
            seeded = bench.recipe.model_copy(update={"seed": seed})
            jobs.append(quantize(bench.run, seeded, bench.facts, bench.base, bench.tokens, candidate))
    except OptpipeError as error:
        return {**told, "failed": error.message.splitlines()[0]}
    checkpoint = jobs[0]
    told |= {
        "quantize_s": [job.seconds for job in jobs],
        "peak_memory_bytes": [job.peak_memory_bytes for job in jobs],
        "bytes": checkpoint.bytes,
        "bits_per_weight": checkpoint.bits_per_weight,
        "estimated": {"bytes": planned.bytes.value, "peak_memory_bytes": to_json(planned.quantize_memory)},
    }
    told["texts"] = losses(bench, checkpoint)
    return told | (served(bench, planned, checkpoint) if engine else {"loads": None})


def losses(bench: Bench, checkpoint: Checkpoint) -> Json:
    """Perplexity's change, divergence and agreement on each text, against the cut on the same tokens."""
    names, (first, rows) = tuple(sorted(bench.scorer.texts)), bench.scorer.rounds()[0]
    pairs = bench.scorer.pairs(bench.base, checkpoint, names, first, rows)
    return {text: to_json(drift.text_quality(text, base, mine)) for text, base, mine, _ in pairs}


def said(message: str) -> str:
    """The line of an engine's last words that names the cause."""
    lines = [WHOSE.sub("", line.strip(" |")) for line in message.splitlines()]
    causes = [line for line in lines if "Value error, " in line] or [line for line in lines if "Error: " in line]
    return (causes or lines[-1:])[0].partition(" [type=")[0][:200]


def served(bench: Bench, planned: CandidatePlan, checkpoint: Checkpoint) -> Json:
    """Whether the engine here takes it: one greedy answer a prompt, then the same tokens as transformers."""
    compiled = compile_(bench.run, bench.recipe, planned.candidate, checkpoint)
    entry = Entry(planned, checkpoint=checkpoint, compiled=compiled)
    spec = serving.spec_of(bench.run, bench.recipe, entry, {})
    try:
        with bench.run.executor.session(spec) as engine:
            canary = engine.run(canary_job(bench.recipe, entry.name, None))
            parity = engine.run(parity_job(bench.scorer, entry.name, checkpoint))
    except BackendFailed as error:
        return {"loads": False, "says": said(error.message)}
    return {"loads": True, "parity_mean_abs": parity.record["mean_abs"], "engine_job": canary.key}


def figures(raw: Json) -> Json:
    """Per method: medians with the smallest and largest of its jobs; losses with their own intervals."""
    found = {entry["candidate"]: figure(entry) for entry in raw["methods"]}
    runs = [len(entry["quantize_s"]) for entry in raw["methods"] if entry["scheme"] and "quantize_s" in entry]
    return {
        "figures": found,
        "n": min(runs, default=0),
        "spread": {name: one["spread"] for name, one in found.items() if one.get("spread")},
        "unit": {"quantize_s": "s", "peak_memory_bytes": "bytes", "change_pct": "%", "kl": "nats/token"},
        "model": raw["model"],
        "calibration": {key: raw["calibration"][key] for key in ("samples", "sequence_length")},
        "toolchains": raw["toolchains"],
    }


def figure(entry: Json) -> Json:
    if "failed" in entry:
        return {"scheme": entry["scheme"], "failed": entry["failed"]}
    seconds, peaks = entry["quantize_s"], entry["peak_memory_bytes"]
    return {
        "scheme": entry["scheme"],
        "quantize_s": round(median(seconds), 1),
        "peak_memory_bytes": int(median(peaks)),
        "n": len(seconds),
        "spread": {
            "quantize_s": [round(min(seconds), 1), round(max(seconds), 1)],
            "peak_memory_bytes": [min(peaks), max(peaks)],
        },
        "bytes": entry["bytes"],
        "bits_per_weight": round(entry["bits_per_weight"], 3),
        "texts": {name: lost(text) for name, text in entry["texts"].items()},
        "loads": entry["loads"],
        "says": entry.get("says"),
        "engine_peak_memory_bytes": entry["engine_peak_memory_bytes"],
    }


def lost(text: Json) -> Json:
    change, kl = text["change_pct"], text["kl_divergence"]
    return {
        "change_pct": round(change["value"], 2),
        "ci95_pct": [round(end, 2) for end in change["ci95"]] if change["ci95"] else None,
        "kl": float(f"{kl['value']:.3g}"),
        "kl_ci95": [float(f"{end:.3g}") for end in kl["ci95"]] if kl["ci95"] else None,
        "n_units": text["n_units"],
        "n_tokens": text["n_tokens"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--jobs", type=int, default=3, help="quantize jobs a method")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PATTERN", help="of LIBRARY-METHOD; the others stay as they are"
    )
    parser.add_argument("--no-engine", action="store_true", help="do not try what the engine takes")
    mine, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    document.main("methods", lambda: measure(mine.jobs, mine.only, not mine.no_engine), figures, ("numpy",))


if __name__ == "__main__":
    main()
