"""quantize: base and scheme in, a checkpoint in the engine's own format out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from optpipe.backends.quantizers.libraries import LIBRARIES
from optpipe.model.finite import nonfinite
from optpipe.model.folder import headers, tensors_of_folder, weight_files
from optpipe.model.job_memory import quantize_memory
from optpipe.model.linears import split_name
from optpipe.model.memory import measured_bits_per_weight, tail
from optpipe.model.schemes import selected
from optpipe.model.texts import check_rows
from optpipe.recipe.schema import Recipe
from optpipe.records import Artifact, Candidate, CandidatePlan, Checkpoint, Job, JobResult, Json, ModelFacts, Needs
from optpipe.report.words import MOST_NOTES
from optpipe.run import Run
from optpipe.rundir import folder_bytes


def quantize(
    run: Run,
    recipe: Recipe,
    facts: ModelFacts,
    base: Checkpoint,
    tokens: Artifact | None,
    candidate: Candidate,
) -> Checkpoint:
    """The candidate's checkpoint; candidates that share it share the job, the base is its own.

    `tokens`: what it calibrates on, from `calibration_tokens`.
    """
    if candidate.scheme is None:
        return base
    scheme = candidate.scheme
    gpus = min(1, run.hardware.gpus)
    memory = quantize_memory(facts, scheme, 0, 0)
    inputs, needs = {"model": base.artifact}, Needs(recipe.threads, gpus, int(memory.value))
    if recipe.checkpoints[candidate.checkpoint].needs_calibration:
        assert tokens is not None and recipe.calibration is not None, "the recipe's validation asks for it"
        inputs["tokens"] = tokens
        rows = recipe.calibration
        memory = quantize_memory(facts, scheme, rows.samples, rows.sequence_length)
        needs = replace(needs, memory_bytes=int(memory.value))
    title = f"{candidate.checkpoint}: quantize"
    library = LIBRARIES[recipe.checkpoints[candidate.checkpoint].library]
    done = run.executor.run(
        Job(
            library.JOB,
            title,
            library.TOOLCHAIN,
            scheme,
            inputs,
            needs=needs,
            threads=recipe.threads,
            seed=recipe.seed,
        )
    )
    size, layers = looked_at(run, facts, scheme, done)
    checkpoint = Checkpoint(
        name=candidate.checkpoint,
        path=done.files.path,
        model_digest=done.files.digest,
        bytes=size["bytes"],
        bits_per_weight=size["bits_per_weight"],
        scheme=scheme,
        seconds=done.seconds,
        peak_memory_bytes=done.peak_memory_bytes,
        job=done.key,
        details={**done.record, "not_finite": size["not_finite"], **layers},
    )
    for note in done.record.get("notes", ())[:MOST_NOTES]:
        run.talk.say(f"{candidate.checkpoint}: note: {note}")
    return run.record(f"04-quantize/{candidate.checkpoint}/record.json", checkpoint)


def looked_at(run: Run, facts: ModelFacts, scheme: Json, done: JobResult) -> tuple[Json, Json]:
    """What the files themselves say, kept beside the job: {bytes, bits_per_weight, not_finite}, {asked, left}."""

    def sizes(files: Path) -> Json:
        run.executor.present(done.files)
        bits = measured_bits_per_weight(files, facts, scheme)
        return {"bytes": folder_bytes(files), "bits_per_weight": bits, "not_finite": not_finite(files)}

    def coverage(files: Path) -> Json:
        run.executor.present(done.files)
        asked, found = [name for name, _, _ in selected(facts, scheme)], with_scales(files)
        return {"asked": len(asked), "left": [name for name in asked if tail(name) not in found]}

    store = run.folder.store
    return store.derived(done.key, "sizes", sizes), store.derived(done.key, "coverage", coverage)


def not_finite(folder: Path) -> list[str]:
    """Names of tensors with a NaN or an infinity in a checkpoint."""
    found = headers(weight_files(folder))
    return [fact.name for file, header in found.items() for fact, _, _ in nonfinite(folder / file, header)]


def with_scales(folder: Path) -> set[str]:
    """The modules that a checkpoint holds quantized, each by its name from the layer list on."""
    named = (split_name(fact.name) for fact in tensors_of_folder(folder))
    return {tail(module) for module, kind in named if kind in ("weight_scale", "scales")}


def calibration_tokens(
    run: Run, recipe: Recipe, base: Checkpoint, text: Artifact | None, candidates: Iterable[CandidatePlan]
) -> Artifact | None:
    """The exact token ids that every method calibrates on, packed to full rows; None where none needs any."""
    calibration, schemes = recipe.calibration, recipe.checkpoints
    chosen = [planned.candidate for planned in candidates]
    needy = [one for one in chosen if one.scheme and schemes[one.checkpoint].needs_calibration]
    if not needy or calibration is None or text is None:
        return None
    options = {
        "length": calibration.sequence_length,
        "first_row": 0,
        "rows": calibration.samples,
        "template": calibration.template,
        "min_rows": 0,
    }
    inputs = {"model": base.artifact, "text": text}
    done = run.executor.run(Job("tokens", "calibration: tokens", "quantize", options, inputs, seed=calibration.seed))
    check_rows(done.record, "calibration.text", calibration.samples, calibration.sequence_length)
    return done.files
