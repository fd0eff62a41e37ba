"""resolve: the base model here, fully audited, as one folder of safetensors with a content digest."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from optpipe.backends.registries.publishing import puller
from optpipe.errors import InputError, InputProblems
from optpipe.model import fetching, sources, texts
from optpipe.model.audit import audit, audit_notes
from optpipe.model.audit_tokenizer import templates
from optpipe.model.licence import licence_of
from optpipe.model.memory import measured_bits_per_weight
from optpipe.model.paragraphs import overlap
from optpipe.recipe.schema import Recipe, Text
from optpipe.records import Artifact, Checkpoint, Job, Json, ModelFacts
from optpipe.run import Run
from optpipe.rundir import LICENCES, digest_json, folder_bytes, optpipe_home, write_atomic

AUDIT = 2
"""Raised when the audit looks for more in the values of weights: what passed before is read again."""
WHOLE = 32_000_000
"""Bytes of text up to which a plan reads all of it, in about a second."""
OVERLAP_LIMIT = 0.01
"""Share of a scored text that may stand in the calibration text too: short stock phrases."""


@dataclass(frozen=True)
class Texts:
    """The texts as documents: those that are scored, by name, and the one to calibrate on."""

    scored: dict[str, texts.ResolvedText]
    calibration: texts.ResolvedText | None

    def told(self, recipe: Recipe) -> Json:
        """Source, digest and number of documents of each, by its place in the recipe, for the run's record."""
        found = {f"texts.{name}": (recipe.texts[name], text) for name, text in self.scored.items()}
        if recipe.calibration and self.calibration:
            found["calibration.text"] = (recipe.calibration.text, self.calibration)
        return {
            place: {"source": text.source, "digest": here.digest, "documents": here.documents}
            for place, (text, here) in found.items()
        }


def check_inputs(run: Run, recipe: Recipe) -> Texts:
    """What can be wrong with a model that is here, the texts and the signer, before anything is begun or installed.

    Every weight of a local folder is read. Raises InputProblems with all of its faults.
    """
    source = sources.parse(recipe.model.source, run.recipe_folder)
    if isinstance(source, sources.Folder):
        fetched = fetching.fetch(source, optpipe_home(), run.talk.say)
        audited(fetched.path, fetched.digest, recipe)
    found = resolve_texts(recipe, run.recipe_folder, run.talk.say)
    if recipe.publish:
        run.notary.ready()
    return found


def check_local_texts(recipe: Recipe, recipe_folder: Path, say: sources.Say) -> None:
    """What a plan can say of the texts: of those that are here, and of the first documents alone where one is large."""
    named = {f"texts.{name}": text for name, text in recipe.texts.items()}
    if recipe.calibration is not None:
        named["calibration.text"] = recipe.calibration.text
    small = True
    for place, text in named.items():
        source = texts.parse_text(text.source, recipe_folder, place=f"{place}.source")
        if not isinstance(source, texts.TextPath | texts.PythonDocs):
            small = False
        elif texts.size(source) > WHOLE:
            texts.first_documents(source, text.column, optpipe_home(), say)
            small = False
    if small:
        resolve_texts(recipe, recipe_folder, say)


def resolve(run: Run, recipe: Recipe, facts: ModelFacts) -> Checkpoint:
    """Fetch, convert where it is a GGUF file, audit; InputProblems names every fault at once."""
    source = sources.parse(recipe.model.source, run.recipe_folder)
    pull = puller(run.folder.registry, run.talk.say)
    trusted = recipe.model.trust_remote_code
    fetched = fetching.fetch(source, optpipe_home(), run.talk.say, pull=pull, trust_remote_code=trusted)
    path, digest, job, seconds, peak = fetched.path, fetched.digest, None, 0.0, 0
    if fetched.gguf:
        inputs = {"gguf": Artifact(path, digest)}
        done = run.executor.run(Job("gguf", "base: GGUF to bf16", "quantize", {}, inputs, threads=recipe.threads))
        path, digest, job = run.executor.present(done.files).path, done.files.digest, done.key
        seconds, peak = done.seconds, done.peak_memory_bytes
    audited(path, digest, recipe)
    notes = audit_notes(path)
    for note in notes:
        run.talk.say(f"note: {note}")
    bits = measured_bits_per_weight(path, facts, None)
    licence, owed = licence_of(fetched.path)
    for name, text in owed.items():
        write_atomic(run.folder.path / LICENCES / name, text.read_bytes())
    details = {"notes": notes, "licence": licence | {"files": sorted(owed)}}
    base = Checkpoint("base", path, digest, folder_bytes(path), bits, None, seconds, peak, job, details)
    return run.record("03-resolve.json", base)


def audited(path: Path, digest: str, recipe: Recipe) -> None:
    """Audit a folder; the weights of one whose content passed before are not read again."""
    marker = optpipe_home() / "audited" / digest_json([AUDIT, digest]).removeprefix("sha256:")
    if problems := audit(path, trust_remote_code=recipe.model.trust_remote_code, values=not marker.exists()):
        raise InputProblems(problems)
    write_atomic(marker, b"")


def resolve_texts(recipe: Recipe, recipe_folder: Path, say: sources.Say) -> Texts:
    """Every text as documents; calibration text that is also scored is an error."""
    model = sources.parse(recipe.model.source, recipe_folder)
    folder = model.path if isinstance(model, sources.Folder) else None

    def here(text: Text, place: str, rows: int, length: int) -> texts.ResolvedText:
        source = texts.parse_text(text.source, recipe_folder, place=f"{place}.source")
        found = texts.resolve_text(source, text.part, text.column, optpipe_home(), say)
        texts.check_length(found, place, rows, length)
        if folder is not None and not templates(folder) and texts.has_chats(found):
            hint = f"add chat_template.jinja to {folder.name}, or write the chats as plain text"
            raise InputError("these are chats, and the model has no chat template", place=place, hint=hint)
        return found

    scoring, calibrated = recipe.scoring, recipe.calibration
    scored = {
        name: here(text, f"texts.{name}", scoring.units, scoring.unit_tokens) for name, text in recipe.texts.items()
    }
    if calibrated is None:
        return Texts(scored, None)
    calibration = here(calibrated.text, "calibration.text", calibrated.samples, calibrated.sequence_length)
    for name, text in scored.items():
        check_overlap(name, calibration, text)
    return Texts(scored, calibration)


def check_overlap(name: str, calibration: Artifact, scored: Artifact) -> None:
    share = overlap(calibration.path, scored.path)
    if share > OVERLAP_LIMIT:
        raise InputError(
            f"{100 * share:.1f} % of this text is also calibrated on, so its score would flatter",
            place=f"texts.{name}",
            hint="give both the same source with `part: calibrate` and `part: score`",
        )
