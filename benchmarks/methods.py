"""What each quantization method costs and loses: every (library, method) of the recipe on a 3-layer cut.

The demo's model is cut to its first three layers (embeddings, norm and tokenizer stay), so every kernel and every
kind of layer is real and the text is poor: read costs as they are and losses as an order among methods.

    quantize_s          wall-clock seconds of the job, process start and imports included; `seeds` jobs each
    peak_memory_bytes   the most that the job's processes held at once
    perplexity          change against the cut itself on the same tokens, two texts, with its interval
    loads               whether the engine (vLLM on this machine) serves it; else what it says

Jobs are kept in artifacts/benchmarks/methods, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import yaml

from benchmarks import document
from optpipe import serving, stats
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.build import resolved
from optpipe.console import Talk
from optpipe.errors import BackendFailed, OptpipeError
from optpipe.inuse import InUse
from optpipe.model import hardware
from optpipe.outcome import Entry
from optpipe.recipe.load import Loaded, load
from optpipe.recipe.methods import methods
from optpipe.records import CandidatePlan, Checkpoint, Json, ModelFacts, to_json
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder
from optpipe.stages.evaluate import Scorer, canary_job, parity_job
from optpipe.stages.inspect import inspect
from optpipe.stages.plan import estimate, expand
from optpipe.stages.quantize import calibration_tokens, quantize
from optpipe.stages.resolve import check_inputs, resolve
from tests.real.cuts import cut_layers

ROOT = Path(__file__).parents[1]
WORK = ROOT / "artifacts" / "benchmarks" / "methods"
LAYERS = 3
SEEDS = (1, 2, 3)
SMALL = {"group_size": 64, "iterations": 20, "max_tokens": 4096, "grid": 10, "symmetric": False}
"""Values in place of defaults that fit no group of this model or take hours; a method without the field ignores it."""


def recipe(folder: Path) -> Path:
    """The demo's recipe with this model and every method in place of its four."""
    chosen: Json = {}
    for method in methods():
        own = {key: value for key, value in SMALL.items() if key in method.fields}
        chosen[f"{method.library}-{method.name}"] = {"method": method.name, "library": method.library, **own}
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


class a_run:  # noqa: N801  (a context manager, used as one)
    """A run of the executor in WORK, closed at its end."""

    def __init__(self, loaded: Loaded) -> None:
        machine = hardware.this_machine()
        about = {"recipe_path": str(loaded.path), "recipe": resolved(loaded.recipe)}
        folder = RunFolder(WORK, loaded.recipe.name, {**about, "hardware": dataclasses.asdict(machine), "versions": {}})
        self.talk, self.in_use = Talk(), InUse(folder.store.root)
        chains = Toolchains(loaded.recipe.toolchains, self.talk)
        self.executor = LocalExecutor(folder.store, chains, Site.here(machine), folder.path / "logs", self.talk)
        self.run = Run(folder, self.executor, machine, self.talk, loaded.path.parent, chains, self.in_use)

    def __enter__(self) -> Run:
        self.talk.__enter__()
        self.in_use.__enter__()
        return self.run

    def __exit__(self, *what: object) -> None:
        self.executor.close()
        self.in_use.__exit__(None, None, None)
        self.talk.__exit__(None, None, None)
