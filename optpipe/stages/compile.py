"""compile: what an engine needs built before it serves a checkpoint, bound to engine, version and hardware.

The key of the job holds all of that, so another engine version, driver or GPU compiles again. Where nothing is
built ahead (vLLM), the record says so and the checkpoint itself is served; of an engine that compiles when it starts
it says under which key the code is kept, and how the starts went that were seen.
"""

from __future__ import annotations

from dataclasses import replace

from optpipe.backends import engines
from optpipe.recipe.schema import Recipe
from optpipe.records import Candidate, Checkpoint, Compiled, Compiling, Job, JobResult, Json, KeptCode, Needs, bound_to
from optpipe.run import Run
from optpipe.rundir import folder_bytes

COPIES, RUNTIME = 6, 1_500_000_000
"""Memory that a compiler takes: so many times its checkpoint's bytes, and its libraries."""


def compile_(run: Run, recipe: Recipe, candidate: Candidate, checkpoint: Checkpoint) -> Compiled:
    """What serves the candidate: a folder built for it, or its checkpoint. Candidates may share the job."""
    target = recipe.targets[candidate.target]
    engine = engines.ENGINES[target.engine]
    toolchain = engine.toolchain(run.hardware)
    chain = run.toolchains(toolchain)
    wanted = engine.compiling(engine.settled(target, chain), candidate.scheme, run.hardware)
    version = engines.version(engine, chain.versions)
    if wanted.kind is None:
        made = as_it_is(candidate, (target.engine, version, toolchain), wanted, checkpoint)
        if wanted.at_start:
            settled = engine.settled(target, chain)
            spec = engine.spec(candidate.name, settled, checkpoint.artifact, {}, run.hardware, recipe.engine_threads)
            key = run.executor.code_key(spec)
            assert key is not None, "an engine that compiles says what its code depends on"
            bound = bound_to(target.engine, version, run.hardware)
            made = replace(made, bound_to=bound, code=KeptCode(key))
    else:
        job = compile_job(run, recipe, candidate, wanted, checkpoint, toolchain)
        done = run.executor.run(job)
        made = Compiled(
            candidate=candidate.name,
            engine=target.engine,
            engine_version=version,
            built=True,
            how=wanted.how,
            path=done.files.path,
            digest=done.files.digest,
            bytes=run.folder.store.derived(done.key, "bytes", lambda files: sized(run, done))["bytes"],
            toolchain=toolchain,
            made_from=checkpoint.model_digest,
            bound_to=bound_to(target.engine, version, run.hardware),
            limits={**done.record.get("limits", {}), **wanted.limits},
            options=wanted.options,
            score=wanted.score,
            changes=wanted.changes,
            bits=wanted.bits,
            seconds=done.seconds,
            peak_memory_bytes=done.peak_memory_bytes,
            job=done.key,
            details=done.record,
        )
    return run.record(f"05-compile/{candidate.name}/record.json", made)


def sized(run: Run, done: JobResult) -> Json:
    return {"bytes": folder_bytes(run.executor.present(done.files).path)}


def as_it_is(candidate: Candidate, by: tuple[str, str, str], wanted: Compiling, checkpoint: Checkpoint) -> Compiled:
    """The record of a target that builds nothing. `by`: engine, its version, its toolchain."""
    engine, version, toolchain = by
    return Compiled(
        candidate=candidate.name,
        engine=engine,
        engine_version=version,
        built=False,
        how=wanted.how,
        path=checkpoint.path,
        digest=checkpoint.model_digest,
        bytes=checkpoint.bytes,
        toolchain=toolchain,
        made_from=checkpoint.model_digest,
        bound_to={},
        limits=wanted.limits,
        options=wanted.options,
    )


def compile_job(
    run: Run, recipe: Recipe, candidate: Candidate, wanted: Compiling, checkpoint: Checkpoint, toolchain: str
) -> Job:
    assert wanted.kind is not None, "asked for only where something is built"
    gpus = min(1, run.hardware.gpus)
    needs = Needs(cpus=recipe.threads, gpus=gpus, memory_bytes=COPIES * checkpoint.bytes + RUNTIME)
    return Job(
        kind=wanted.kind,
        title=f"{candidate.name}: compile",
        toolchain=toolchain,
        options=dict(wanted.options),
        inputs={"model": checkpoint.artifact},
        needs=needs,
        threads=recipe.threads,
        seed=recipe.seed,
        bound_to_hardware=True,
    )
