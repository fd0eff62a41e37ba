"""What a build will take: bytes, memory, disk and seconds of each candidate and of the whole, before anything runs.

Pure arithmetic on recipe, facts and hardware. `optpipe.compared` sets it beside what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from optpipe.backends.engines import ENGINES
from optpipe.model import job_memory, memory, roofline, task_work
from optpipe.model.hardware import peaks
from optpipe.recipe.schema import Recipe
from optpipe.records import Candidate, CandidatePlan, Estimated, Hardware, ModelFacts

ATTAINED, SERVED = 0.5, 0.23
"""Share of the peak that quantizing and scoring keep up, and the load. Seen on 2 cores (AVX-512 BF16) that did nothing
else, SmolLM2-135M, one thread a job: scoring 4.4e12 operations 20 s, GPTQ 7.7e12 in 33 s, 48 requests of 160 tokens
17 to 23 s (benchmarks/results/by_hand.raw.json). A machine that does something else as well may take twice that."""
FALLBACK_FLOPS = 2e10
"""Per core, where nothing is known of the processor."""

JOB_START_S = 6.0
"""Imports and loading of one quantize or score job: INT8 of SmolLM2-135M, next to no work, took 6.3 s there."""
ENGINE_START_S = 20.0
"""Until an engine is ready on a CPU, mostly imports; there 17 to 19 s, 30 to 50 s beside other work."""
CHECKS_S = 3.0
"""Canary and agreement with transformers there: 1.1 to 1.6 s and 0.7 to 1.1 s."""
PREPARE_S = 35.0
"""Converting a GGUF file (16 s) and tokenizing three texts (5 s each) there."""

TASK_READ_S, TASK_WRITTEN_S = 0.0016, 0.003
"""Of each token of a task that vLLM on one thread reads and writes, at least; larger models take their operations. 200
documents of ARC-Easy and PIQA were 19,368 tokens and took 31 s; 16 of GSM8K, 12,700 read and 1,400 written, 25 s
beside other work."""
TASK_WRITTEN_ALONE_S = 0.19
"""Of each token that transformers writes, one text after another: 420 of GSM8K took 79 s beside other work."""
TASKS_BYTES = 400_000_000
"""What an engine on a CPU held more after 601 requests for log-probabilities at once (base 360 MB, INT8 490 MB)."""
TASK_START_S = 10.0
"""lm-eval's own start for the verdict on one candidate's answers: 10.4 and 10.6 s."""


def estimate(
    recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate, notes: tuple[str, ...]
) -> CandidatePlan:
    """One candidate's bytes, peaks of memory, disk and seconds."""
    scheme, rows = candidate.scheme, recipe.calibration
    shape = (rows.samples, rows.sequence_length) if rows else (0, 0)
    quantizing = job_memory.quantize_memory(facts, scheme, *shape) if scheme else None
    tokens = scored_tokens(recipe)
    scoring = job_memory.score_memory(facts, scheme, tokens, recipe.scoring.unit_tokens)
    engine = engine_memory(recipe, facts, hardware, candidate)
    jobs = job_seconds(recipe, facts, hardware, candidate)
    serving = session_seconds(recipe, facts, hardware)
    size = memory.checkpoint_bytes(facts, scheme)
    return CandidatePlan(
        candidate=candidate,
        bytes=size,
        bits_per_weight=memory.bits_per_weight(facts, scheme),
        memory_bytes=max((one for one in (quantizing, scoring, engine) if one), key=lambda one: one.value),
        disk_bytes=size if scheme else Estimated(0, "bytes", "the base is used where it lies, or converted once"),
        seconds=Estimated(jobs.value + serving.value, "s", f"{jobs.how}; {serving.how}"),
        notes=notes,
        quantize_memory=quantizing,
        score_memory=scoring,
        engine_memory=engine,
        job_seconds=jobs,
    )


def engine_memory(recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate) -> Estimated:
    """Of the engine while it is judged and measured: the log-probabilities of a scored block and of tasks count."""
    length = recipe.load.input_tokens + recipe.load.output_tokens
    sequences = recipe.load.concurrency or 1
    served = memory.serving_memory(
        facts, candidate.scheme, candidate.engine, hardware, sequences, length, recipe.scoring.unit_tokens
    )
    if hardware.gpus or not recipe.tasks.names:
        return served.estimated()
    return replace(served, activations=served.activations + TASKS_BYTES).estimated()


# ---------------------------------------------------------------- seconds


def job_seconds(recipe: Recipe, facts: ModelFacts, hardware: Hardware, candidate: Candidate) -> Estimated:
    """Quantize and score, from floating point operations and this machine's peak."""
    rate = sustained(hardware, recipe.threads)
    tokens = len(recipe.texts) * recipe.scoring.units * recipe.scoring.unit_tokens
    work, starts = 2.0 * tokens, 1
    if candidate.scheme is not None:
        rows = recipe.calibration
        shape = (rows.samples, rows.sequence_length) if rows else (0, 0)
        work, starts = work + roofline.calibration_operations(candidate.scheme, *shape), 2
    seconds = starts * JOB_START_S + facts.parameters * work / rate
    how = f"{work * facts.parameters:.3g} operations at {rate / 1e9:.0f} GFLOPS in {starts} jobs"
    return Estimated(seconds, "s", how)


def session_seconds(recipe: Recipe, facts: ModelFacts, hardware: Hardware) -> Estimated:
    """One engine: its start, its checks, one load."""
    served = recipe.load.requests * (recipe.load.input_tokens + recipe.load.output_tokens)
    load = 2.0 * facts.parameters * served / sustained(hardware, recipe.engine_threads, SERVED)
    how = f"{ENGINE_START_S:.0f} s to start the engine, {CHECKS_S:.0f} s of checks, {load:.0f} s of load"
    return Estimated(ENGINE_START_S + CHECKS_S + load, "s", how)


def task_seconds(recipe: Recipe, facts: ModelFacts, hardware: Hardware, targets: int) -> float:
    """The base of each target and the finalists on every task; how long a command takes nobody knows."""
    if not recipe.tasks.names:
        return 0.0
    documents = {name: recipe.tasks.documents_for(task_work.called(name)) for name in recipe.tasks.names}
    token = 2.0 * facts.parameters / sustained(hardware, recipe.engine_threads, SERVED)
    least = (0.0, 0.0, 0.0) if hardware.gpus else (TASK_READ_S, TASK_WRITTEN_S, TASK_WRITTEN_ALONE_S)
    read, written, alone = (max(token, seconds) for seconds in least)
    seconds = task_work.work(documents).seconds(read, written)
    if recipe.tasks.transformers:
        seconds += task_work.by_transformers(documents).seconds(2 * read, alone)
    return (targets + recipe.tune.finalists) * (seconds + TASK_START_S)


def sustained(hardware: Hardware, threads: int, share: float = ATTAINED) -> float:
    """Floating point operations a second that one job keeps up: a share of the peak of what it runs on."""
    peak = peaks(hardware)
    whole = roofline.operations(peak, None) if peak else FALLBACK_FLOPS * hardware.cores
    return share * whole * (1.0 if hardware.gpus else min(1.0, threads / hardware.cores))


def total_seconds(
    recipe: Recipe, facts: ModelFacts, hardware: Hardware, feasible: Iterable[CandidatePlan]
) -> Estimated:
    """Jobs share the cores; sessions, trials and the confirmation measure, so each has the machine alone."""
    side_by_side = max(1, min(hardware.cores // recipe.threads, 4))
    plans, session = tuple(feasible), session_seconds(recipe, facts, hardware).value
    jobs = sum(plan.job_seconds.value for plan in plans if plan.job_seconds) + PREPARE_S
    trials = recipe.tune.trials * recipe.tune.finalists
    tasks = task_seconds(recipe, facts, hardware, len(recipe.targets))
    alone = sum(ENGINES[recipe.targets[plan.candidate.target].engine].OFFLINE is not None for plan in plans)
    loads = trials + (alone if recipe.load.concurrency else 0)
    total = jobs / side_by_side + (len(plans) + 1) * session + loads * (session - CHECKS_S) + tasks
    how = f"{side_by_side} jobs side by side, {len(plans) + 1} engines, {trials} trials"
    how += f", {alone} loads without a server" if loads > trials else ""
    return Estimated(total, "s", how + (f", {tasks:.0f} s of tasks" if tasks else ""))


# ---------------------------------------------------------------- disk


def disk(recipe: Recipe, facts: ModelFacts, feasible: Iterable[CandidatePlan]) -> Estimated:
    """What lies on the disk at a build's fullest moment: it keeps every checkpoint until one is chosen."""
    sizes = {plan.candidate.checkpoint: plan.disk_bytes.value for plan in feasible}
    base = memory.checkpoint_bytes(facts, None).value
    converted = base if facts.kind in ("gguf", "wheel") else 0.0
    shipped = max([*sizes.values(), base if "base" in sizes else 0.0], default=0.0)
    copies = 1 + len(recipe.publish)
    logits = logits_bytes(recipe, facts)
    parts = (
        f"checkpoints {memory.show(sum(sizes.values()))}",
        f"converted base {memory.show(converted)}",
        f"the base's logits {memory.show(logits)}",
        f"bundle and registry {memory.show(copies * shipped)} at most",
    )
    return Estimated(sum(sizes.values()) + converted + logits + copies * shipped, "bytes", ", ".join(parts))


def logits_bytes(recipe: Recipe, facts: ModelFacts) -> int:
    """The base's logits in bf16 on every scored token of the first look; each further look adds its own."""
    return 2 * facts.vocabulary * scored_tokens(recipe)


def scored_tokens(recipe: Recipe) -> int:
    """Tokens with a log-probability in the first look: all but the first of each block."""
    return len(recipe.texts) * recipe.scoring.units * (recipe.scoring.unit_tokens - 1)
