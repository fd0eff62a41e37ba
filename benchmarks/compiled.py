"""What torch.compile costs and gains in vLLM: eager against compiled, the same checkpoint, by turns.

SmolLM2-135M (the demo's model, bfloat16) behind one engine each, one thread, both up at once and asked by turns: in
each of `ROUNDS` one request and then four at once to either engine, every other round the other engine first, with
prompts of 128 tokens of the round's own and answers of 32. So what else the machine does meets both alike. Starts:
`STARTS` times an eager engine, a compiled one that finds nothing kept, and one that finds what the last left.

    *_start_s              seconds from an engine's start to its first answer, median; spread: all of them
    *_ttft, *_tpot, *_tps  compiled / eager: median time to first token, median time per output token, output tokens
                           per second; geometric mean over rounds with its 95 % interval
    *_logprob_mean, _p99   |engine's log-probability - transformers'| on the same tokens, as the pipeline checks it
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import document, streams
from optpipe import stats
from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.backends.executors.session import ENGINE, START
from optpipe.console import Talk
from optpipe.inuse import InUse
from optpipe.model import hardware
from optpipe.recipe.load import load
from optpipe.recipe.schema import Recipe
from optpipe.records import Checkpoint, EngineSpec, Job, Json
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder
from optpipe.stages.evaluate import Scorer, parity_job
from optpipe.stages.inspect import inspect
from optpipe.stages.resolve import check_inputs, resolve

RECIPE = Path(__file__).parents[1] / "recipes" / "demo.yaml"
ARTIFACTS = Path("artifacts") / "compiled"
STARTS, ROUNDS = 2, 45
LOADS = {"one": 1, "four": 4}
"""Requests at once."""
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
        rounds = by_turns(run, specs)
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
            ask = question(f"{kind} start {number + 1}", seed)
            with run.executor.session(specs["eager" if kind == "eager" else "compiled"]) as engine:
                key = engine.key(ask)
                if kind == "cold" and run.folder.store.get(key) is None:
                    run.folder.store.code.drop(code)
                done = engine.run(ask)
            ready = (run.folder.store.beside(key, ENGINE) or {})["ready_s"]
            how = run.folder.store.beside(key, START)
            found[kind].append({"seconds": round(ready, 2), "canary_s": round(done.seconds, 2), "how": how})
    return found


def by_turns(run: Run, specs: dict[str, EngineSpec]) -> list[Json]:
    """[{load: {kind: {ttft_ms, tpot_ms of each request, tokens_per_s}}}], one for each round."""
    with run.executor.session(specs["eager"], park=True) as a, run.executor.session(specs["compiled"], park=True) as b:
        engines = dict(zip(KINDS, (a, b), strict=True))
        for engine in engines.values():
            engine.run(question("getting up", time.time_ns()))
        urls = {kind: engine.url or "" for kind, engine in engines.items()}
        for warm_up in range(2):
            one_round(urls, -1 - warm_up)
        return [one_round(urls, number) for number in range(ROUNDS)]


def one_round(urls: dict[str, str], number: int) -> Json:
    kinds = KINDS if number % 2 == 0 else KINDS[::-1]
    return {
        name: {kind: streams.asked(urls[kind], kind, at_once, number) for kind in kinds}
        for name, at_once in LOADS.items()
    }


def question(title: str, seed: int) -> Job:
    return Job("canary", title, "core", {"prompts": ["The capital of France is"]}, seed=seed)


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
