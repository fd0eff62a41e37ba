"""What torch.compile costs and gains in vLLM: eager against compiled, the same checkpoint, by turns.

SmolLM2-135M (the demo's model, bfloat16) behind one engine each, one thread. Starts: `STARTS` times an eager engine, a
compiled one that finds nothing kept, and one that finds what the last left. Loads: `ROUNDS` times each engine under
each of `LOADS`, every other round the other engine first, each round with prompts of its own.

    *_start_s              seconds from an engine's start to its first answer, median; spread: all of them
    *_ttft, *_tpot, *_tps  compiled / eager: median time to first token, median time per output token, output tokens
                           per second; geometric mean over rounds with its 95 % interval
    *_logprob_mean, _p99   |engine's log-probability - transformers'| on the same tokens, as the pipeline checks it
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import document
from optpipe import stats
from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.backends.executors.session import ENGINE, START
from optpipe.backends.loads.load import Load
from optpipe.console import Talk
from optpipe.inuse import InUse
from optpipe.model import hardware
from optpipe.recipe.load import load
from optpipe.recipe.schema import Recipe
from optpipe.records import Checkpoint, EngineSpec, Job, Json, Needs, to_json
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder
from optpipe.stages.evaluate import Scorer, parity_job
from optpipe.stages.inspect import inspect
from optpipe.stages.resolve import check_inputs, resolve

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"
ARTIFACTS = Path("artifacts") / "compiled"
STARTS, ROUNDS = 2, 4
LOADS = {"one": Load(concurrency=1, requests=8), "four": Load(concurrency=4, requests=24)}
"""Prompts of 128 tokens, answers of 32."""
FIGURES = (("ttft_ms", "ttft"), ("tpot_ms", "tpot"), ("tokens_per_s", "tps"))
MEMORY = 3 << 30
KINDS = ("eager", "compiled")


def measure(*changes: str) -> Json:
    """Finished jobs are kept under artifacts/, so a stopped run goes on. `changes` of the recipe, KEY=VALUE."""
    recipe = load(RECIPE, ("scoring.units=30", "scoring.max_units=30", *changes)).recipe
    with at_work(recipe) as run:
        base = resolve(run, recipe, inspect(recipe, run.recipe_folder, run.talk.say))
        specs = {kind: spec(base, run, kind) for kind in KINDS}
        texts = check_inputs(run, recipe)
        scorer = Scorer(run, recipe, base, texts.scored)
        rounds = [loaded(run, base, specs, number) for number in range(ROUNDS)]
        parity = {kind: agreed(run, scorer, base, specs[kind]) for kind in KINDS}
        run.executor.parking.clear()
        starts, versions = started(run, specs), run.toolchains.versions()
    return {"starts": starts, "rounds": rounds, "parity": parity, "toolchains": versions}


@contextmanager
def at_work(recipe: Recipe) -> Iterator[Run]:
    machine = hardware.this_machine()
    folder = RunFolder(ARTIFACTS, "compiled", {"hardware": dataclasses.asdict(machine)})
    with Talk() as talk, InUse(folder.store.root) as in_use:
        chains = Toolchains(recipe.toolchains, talk)
        executor = LocalExecutor(folder.store, chains, Site.here(machine), folder.path / "logs", talk)
        try:
            yield Run(folder, executor, machine, talk, RECIPE.parent, chains, in_use)
        finally:
            executor.close()


def spec(base: Checkpoint, run: Run, kind: str) -> EngineSpec:
    target = Vllm(enforce_eager=kind == "eager", max_model_len=512, kv_cache_memory_bytes=512 << 20)
    made = vllm.spec(kind, target, base.artifact, {}, run.hardware)
    return dataclasses.replace(made, needs=dataclasses.replace(made.needs, memory_bytes=MEMORY))


def started(run: Run, specs: dict[str, EngineSpec]) -> Json:
    """{eager, cold, warm: [{seconds, canary_s, how}]}: an engine each time, asked a few questions, and ended."""
    found: Json = {"eager": [], "cold": [], "warm": []}
    code = run.executor.code_key(specs["compiled"])
    assert code is not None, "it compiles"
    for number in range(STARTS):
        for kind in ("eager", "cold", "warm"):
            seed = {"eager": 1, "cold": 1, "warm": 2}[kind] + 10 * number
            options = {"prompts": ["The capital of France is"]}
            ask = Job("canary", f"{kind} start {number + 1}", "core", options, seed=seed)
            with run.executor.session(specs["eager" if kind == "eager" else "compiled"]) as engine:
                key = engine.key(ask)
                if kind == "cold" and run.folder.store.get(key) is None:
                    run.folder.store.code.drop(code)
                done = engine.run(ask)
            ready = (run.folder.store.beside(key, ENGINE) or {})["ready_s"]
            how = run.folder.store.beside(key, START)
            found[kind].append({"seconds": round(ready, 2), "canary_s": round(done.seconds, 2), "how": how})
    return found


def loaded(run: Run, base: Checkpoint, specs: dict[str, EngineSpec], number: int) -> Json:
    """{load: {kind: {ttft_ms, tpot_ms of each request, tokens_per_s}}} of one round."""
    found: Json = {name: {} for name in LOADS}
    for name, wish in LOADS.items():
        for kind in KINDS if number % 2 == 0 else KINDS[::-1]:
            title, options = f"{kind}: {name} at once, round {number + 1}", {**to_json(wish), "seed": 100 + number}
            inputs, needs = {"tokenizer": base.artifact}, Needs(exclusive=True)
            job = Job("load", title, "load", options, inputs, needs=needs, bound_to_hardware=True)
            with run.executor.session(specs[kind], park=True) as engine:
                rows = engine.run(job).record["rows"]
            assert all(row["ok"] for row in rows), f"{kind}: failed requests"
            seconds = max(row["end_s"] for row in rows) - min(row["start_s"] for row in rows)
            figures = {key: [round(row[key], 2) for row in rows] for key in ("ttft_ms", "tpot_ms")}
            tokens = sum(row["output_tokens"] for row in rows)
            found[name][kind] = {**figures, "tokens_per_s": round(tokens / seconds, 3)}
    return found


def agreed(run: Run, scorer: Scorer, base: Checkpoint, served: EngineSpec) -> Json:
    job = parity_job(scorer, served.title, base)
    with run.executor.session(served, park=True) as engine:
        return engine.run(job).record


# ---------------------------------------------------------------- figures


def figures(raw: Json) -> Json:
    found: Json = {}
    spread: Json = {}
    for kind, starts in raw["starts"].items():
        seconds = [start["seconds"] for start in starts]
        found[f"{kind}_start_s"], spread[f"{kind}_start_s"] = round(statistics.median(seconds), 1), seconds
    found["code_bytes"] = raw["starts"]["cold"][0]["how"]["bytes"]
    for name in LOADS:
        for key, short in FIGURES:
            eager, compiled = ([value(one[name][kind][key]) for one in raw["rounds"]] for kind in KINDS)
            mean = stats.rate([math.log(b / a) for a, b in zip(eager, compiled, strict=True)], "log ratio")
            found[f"{name}_{short}"] = round(math.exp(mean.value), 3)
            spread[f"{name}_{short}"] = [round(math.exp(end), 3) for end in mean.ci95 or ()]
            found[f"{name}_{short}_eager"] = round(statistics.median(eager), 1)
            found[f"{name}_{short}_compiled"] = round(statistics.median(compiled), 1)
    for kind, record in raw["parity"].items():
        found |= {f"{kind}_logprob_{key}": round(record[f"{key}_abs"], 5) for key in ("mean", "p99")}
    n = {"starts": STARTS, "rounds": len(raw["rounds"]), "logprobs": raw["parity"]["eager"]["n_tokens"]}
    return {"figures": found, "n": n, "spread": spread, "toolchains": raw["toolchains"]}


def value(found: float | list[float]) -> float:
    """Of one round: the median over requests, or the rate of all."""
    return statistics.median(found) if isinstance(found, list) else found


if __name__ == "__main__":
    document.main("compiled", measure, figures, ("numpy", "scipy"))
