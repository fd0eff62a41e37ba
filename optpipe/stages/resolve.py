"""resolve: the base model here, fully audited, as one folder of safetensors with a content digest."""

from __future__ import annotations

from dataclasses import dataclass

from optpipe.errors import InputError, InputProblems
from optpipe.model import sources, texts
from optpipe.model.audit import audit
from optpipe.model.memory import measured_bits_per_weight
from optpipe.recipe.schema import Recipe, Text
from optpipe.records import Artifact, Checkpoint, Job, ModelFacts
from optpipe.run import Run
from optpipe.rundir import folder_bytes, optpipe_home

OVERLAP_LIMIT = 0.01
"""Share of a scored text that may stand in the calibration text too: short stock phrases."""


@dataclass(frozen=True)
class Texts:
    """The texts as documents: those that are scored, by name, and the one to calibrate on."""

    scored: dict[str, texts.ResolvedText]
    calibration: texts.ResolvedText | None


def resolve(run: Run, recipe: Recipe, facts: ModelFacts) -> tuple[Checkpoint, Texts]:
    """Fetch, convert where it is a GGUF file, audit; InputProblems names every fault at once."""
    found = resolve_texts(run, recipe)
    run.folder.event("texts", scored=found.scored, calibration=found.calibration)
    return run.record("03-resolve.json", resolve_base(run, recipe, facts)), found


def resolve_base(run: Run, recipe: Recipe, facts: ModelFacts) -> Checkpoint:
    source = sources.parse(recipe.model.source, run.recipe_folder)
    fetched = sources.fetch(source, optpipe_home(), run.talk.say, trust_remote_code=recipe.model.trust_remote_code)
    path, digest, job, seconds, peak = fetched.path, fetched.digest, None, 0.0, 0
    if fetched.gguf:
        done = run.executor.run(
            Job(
                "gguf",
                "base: GGUF to bf16",
                "quantize",
                {},
                {"gguf": Artifact(path, digest)},
                threads=recipe.threads,
            )
        )
        path, digest, job = done.files.path, done.files.digest, done.key
        seconds, peak = done.seconds, done.peak_memory_bytes
    if problems := audit(path, trust_remote_code=recipe.model.trust_remote_code):
        raise InputProblems(tuple(problems))
    bits = measured_bits_per_weight(path, facts, None)
    return Checkpoint("base", path, digest, folder_bytes(path), bits, None, seconds, peak, job)


def resolve_texts(run: Run, recipe: Recipe) -> Texts:
    """Every text as documents; calibration text that is also scored is an error."""

    def here(text: Text, place: str) -> texts.ResolvedText:
        source = texts.parse_text(text.source, run.recipe_folder, place=f"{place}.source")
        return texts.resolve_text(source, text.part, text.column, optpipe_home(), run.talk.say)

    scored = {name: here(text, f"texts.{name}") for name, text in recipe.texts.items()}
    if recipe.calibration is None:
        return Texts(scored, None)
    calibration = here(recipe.calibration.text, "calibration.text")
    for name, text in scored.items():
        check_overlap(name, calibration, text)
    return Texts(scored, calibration)


def check_overlap(name: str, calibration: Artifact, scored: Artifact) -> None:
    share = texts.overlap(calibration.path, scored.path)
    if share > OVERLAP_LIMIT:
        raise InputError(
            f"{100 * share:.1f} % of this text is also calibrated on, so its score would flatter",
            place=f"texts.{name}",
            hint="give both the same source with `part: calibrate` and `part: score`",
        )
