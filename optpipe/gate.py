"""`optpipe gate`: a finished build against a published version, measured anew on this machine or from records.

A new model is judged as a build judges it before a champion makes way (versus.py). A new engine, driver or machine
cannot be measured beside the old one, so there the records of both are held against each other.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from optpipe import judge, serving
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.bundle import MANIFEST
from optpipe.console import Talk
from optpipe.errors import EnvironmentMissing, InputError
from optpipe.inuse import InUse
from optpipe.model import hardware
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import Check, Status, from_json
from optpipe.report.compare import Axis, Comparison, Line, change_told, compare
from optpipe.report.data import read
from optpipe.report.side import Side, side
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder, digest_file, read_json, readable
from optpipe.stages.evaluate import Scorer
from optpipe.stages.resolve import resolve_texts
from optpipe.versus import Challenger, Champion, versus

RECORD = "12-gate.json"
RATES = ("goodput", "output tokens")


@dataclass(frozen=True)
class Against:
    """The published version that a run is held against: its name, digest and files."""

    name: str
    digest: str
    folder: Path


@dataclass(frozen=True)
class Gated:
    """How a build did. `measured`: both anew and by turns on this machine; else from the records of each."""

    run: str
    candidate: str
    against: str
    digest: str
    status: Status
    checks: tuple[Check, ...]
    comparison: Comparison | None
    measured: bool
    changed: Axis | None = None


def gate(run: Path, against: Against, changed: Axis | None, threshold_pct: float, measure: bool) -> Gated:
    """Hold the run's winner against `against`; the record lies in the run's folder. Raises OptpipeError."""
    if (refused := without_winner(run, against, changed)) is not None:
        return refused
    mine, theirs = side(run, str(run)), side(against.folder, against.name)
    measured = measure and changed in (None, "model")
    same = packaged_digest(run) == against.digest
    comparison = None if same else compare(theirs, mine, changed)
    if same:
        checks: tuple[Check, ...] = (Check("same version", "passed", f"it is {against.name} itself"),)
    elif measured:
        checks = by_measuring(run, mine, against, threshold_pct)
    else:
        assert comparison is not None, "made where the two are not the same"
        checks = from_records(Recipe.model_validate(mine.data.recipe), comparison, threshold_pct)
    found = Gated(
        run.resolve().name, mine.row.name, against.name, against.digest, judge.combine(checks), checks, comparison,
        measured and not same, changed,
    )  # fmt: skip
    if (run / "run.json").is_file():
        RunFolder.opened(run).write(RECORD, found)
    return found


def require_record(run: Path) -> None:
    """EnvironmentMissing where the record of a gate could not be written: told before anything is fetched or measured.

    A bundle's folder keeps none.
    """
    if not (run / "run.json").is_file():
        return
    try:
        with tempfile.TemporaryFile(dir=run.resolve()):
            pass
    except OSError as error:
        what = f"the gate's record, {RECORD}, cannot be written here: {error.strerror}"
        hint = "gate it where the run may be written to, or a copy of the run's artifacts"
        raise EnvironmentMissing(what, place=str(run), hint=hint) from None


def without_winner(run: Path, against: Against, changed: Axis | None) -> Gated | None:
    """A run in which nothing was chosen is no better than its own verdict."""
    data = read(run) if (run / "run.json").is_file() else None
    if data is None or data.verdict in ("published", "selected"):
        return None
    status: Status = "inconclusive" if data.verdict == "inconclusive" else "rejected"
    check = Check("verdict", status, f"the run ended {data.verdict}: no candidate was chosen")
    return Gated(run.resolve().name, "", against.name, against.digest, status, (check,), None, False, changed)


def packaged_digest(run: Path) -> str | None:
    """The digest of the version that a run packaged, or that a bundle is."""
    path = next((p for p in (run / "package" / MANIFEST, run / MANIFEST) if p.is_file()), None)
    return digest_file(path) if path else None


# ---------------------------------------------------------------- by measuring


def by_measuring(path: Path, mine: Side, against: Against, loss_pct: float) -> tuple[Check, ...]:
    """Both versions on the same texts and loads, by turns; needs what the run packaged and its recipe's texts."""
    package = path.resolve() / "package"
    if not (package / MANIFEST).is_file():
        hint = "gate the run that packaged it, or take --recorded"
        raise InputError("this run has no package/ to measure", place=str(path), hint=hint)
    recipe = Recipe.model_validate(mine.data.recipe)
    with opened(path, recipe) as run:
        champion = Champion.read(against.digest, against.folder)
        texts = resolve_texts(recipe, run.recipe_folder, run.talk.say).scored
        serving.prepare(run, recipe)
        scorer = Scorer(run, recipe, champion.checkpoint, texts)
        return versus(run, recipe, scorer, challenger(run, recipe, mine, package, loss_pct), champion)


@contextmanager
def opened(path: Path, recipe: Recipe) -> Iterator[Run]:
    """The run's folder and cache with an executor of this machine."""
    folder, machine = RunFolder.opened(path), hardware.this_machine()
    with Talk() as talk, InUse(folder.store.root) as in_use:
        chains = Toolchains(recipe.toolchains, talk)
        logs = folder.path / "logs" / "gate"
        executor = LocalExecutor(folder.store, chains, Site.here(machine), logs, talk)
        recipe_folder = Path(str(folder.about.get("recipe_path", "recipe.yaml"))).parent
        try:
            yield Run(folder, executor, machine, talk, recipe_folder, chains, in_use)
        finally:
            executor.close()


def challenger(run: Run, recipe: Recipe, mine: Side, package: Path, loss_pct: float) -> Challenger:
    """The run's winner as it was packaged, with the engine configuration that was confirmed."""
    row, digest = mine.row, digest_file(package / MANIFEST)
    assert row.plan and row.checkpoint and row.compiled, "a winner was planned and made"
    checkpoint, compiled = replace(row.checkpoint, path=package), replace(row.compiled, path=package)
    entry = Entry(row.plan, checkpoint=checkpoint, compiled=compiled, tuning=row.tuning)
    base = next(found for found in mine.data.checkpoints if found.scheme is None)
    spec = serving.spec_of(run, recipe, entry, entry.settings)
    tasks = row.evaluation.tasks if row.evaluation else ()
    return Challenger(digest, entry.scored, base.model_digest, spec, loss_pct, tasks)


# ---------------------------------------------------------------- from records


def from_records(recipe: Recipe, found: Comparison, threshold_pct: float) -> tuple[Check, ...]:
    """Checks from what each version's own build measured; what cannot be compared is inconclusive."""
    from optpipe import gates

    limit = gates.resolve(recipe.gates).perplexity_increase_pct
    checks = []
    for line in found.lines:
        if line.figure.startswith("perplexity"):
            checks.append(recorded(line, limit, at_most=True))
        elif line.figure in RATES:
            checks.append(recorded(line, -threshold_pct, at_most=False))
    return tuple(checks)


def recorded(line: Line, limit: float, *, at_most: bool) -> Check:
    """One line of a comparison against its limit, in per cent."""
    if line.change is None or line.outcome == "not compared":
        return Check(line.figure, "inconclusive", f"{line.figure}: {line.how}", None, limit)
    status = "passed" if line.outcome == "the same" else judge.verdict(line.change, limit, at_most=at_most)
    told = f"{line.figure} {change_told(line.change)} ({line.how}; limit {limit:+g} %)"
    return Check(line.figure, status, told, line.change.value, limit)


def read_gated(path: Path) -> Gated | None:
    """The record of a run's last gate, if there was one."""
    record = path / RECORD
    if not record.is_file():
        return None
    with readable(record):
        return from_json(Gated, read_json(record))
