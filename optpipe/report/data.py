"""All that a report, a model card and a bundle say comes from these records, and from nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from optpipe.errors import InputError
from optpipe.records import (
    Candidate,
    CandidatePlan,
    Challenge,
    Checkpoint,
    Compared,
    Compiled,
    Confirmation,
    Evaluation,
    Hardware,
    Json,
    ModelFacts,
    Plan,
    Published,
    Rank,
    Selection,
    Serving,
    Status,
    Tuning,
    from_json,
)
from optpipe.rundir import read_json, readable

ESTIMATES = "estimates.json"
"""The record of a run in which estimates stand beside what was measured."""

Verdict = Literal["published", "selected", "rejected", "inconclusive", "failed"]


@dataclass(frozen=True)
class ReportData:
    """The records of one build. `checkpoints` begins with the base; `run` is None inside a bundle."""

    name: str
    recipe: Json
    facts: ModelFacts
    plan: Plan
    hardware: Hardware
    versions: Json
    command: str
    checkpoints: tuple[Checkpoint, ...] = ()
    compiled: tuple[Compiled, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    servings: tuple[Serving, ...] = ()
    tunings: tuple[Tuning, ...] = ()
    selection: Selection | None = None
    confirmation: Confirmation | None = None
    challenges: tuple[Challenge, ...] = ()
    """How the version did against the champion of each registry."""
    published: tuple[Published, ...] = ()
    texts: Json = field(default_factory=dict)
    """By its place in the recipe: source of a text, digest of its documents, how many."""
    toolchains: Json = field(default_factory=dict)
    """Environments that were used: kind, fingerprint, lock, version of each package."""
    failures: Json = field(default_factory=dict)
    """Candidates that a backend failed for, with the reason."""
    compared: tuple[Compared, ...] = ()
    """Estimates beside what was measured."""
    seconds: Json = field(default_factory=dict)
    """Wall-clock seconds, `install` and `build`."""
    run: str | None = None
    records: str = ""
    """The folder of the records, seen from the report."""

    def for_bundle(self) -> ReportData:
        """What stays the same when the same records are packaged by another run."""
        command = "optpipe build recipe.resolved.yaml"
        own = replace(self, run=None, challenges=(), published=(), compared=(), seconds={})
        return replace(own, command=command, records="records/")

    @property
    def verdict(self) -> Verdict:
        """How the build ended: the word in `optpipe build --json`."""
        if self.selection and self.selection.winner:
            return "published" if self.published else "selected"
        statuses = {row.status for row in rows(self)}
        if "inconclusive" in statuses:
            return "inconclusive"
        return "rejected" if "rejected" in statuses else "failed"


@dataclass(frozen=True)
class Row:
    """One candidate with all that is known of it."""

    name: str
    status: Status
    reasons: tuple[str, ...]
    candidate: Candidate | None = None
    plan: CandidatePlan | None = None
    checkpoint: Checkpoint | None = None
    compiled: Compiled | None = None
    evaluation: Evaluation | None = None
    serving: Serving | None = None
    tuning: Tuning | None = None
    rank: Rank | None = None
    winner: bool = False

    @property
    def is_base(self) -> bool:
        return self.candidate is not None and self.candidate.scheme is None

    @property
    def is_reference(self) -> bool:
        """The base as it is: what was compiled from it drifts against it like any candidate."""
        return self.is_base and not (self.compiled and self.compiled.score)

    @property
    def bytes(self) -> int | None:
        """Of what is served: what was compiled, or the checkpoint."""
        made = self.compiled or self.checkpoint
        return made.bytes if made else None

    @property
    def bits_per_weight(self) -> float | None:
        """Of what is served: the compiler's own where it quantized, else the checkpoint's."""
        own = self.compiled.bits if self.compiled else None
        return own or (self.checkpoint.bits_per_weight if self.checkpoint else None)

    @property
    def model_digest(self) -> str | None:
        """Of what is served."""
        made = self.compiled if self.compiled and self.compiled.built else self.checkpoint
        return made.model_digest if made else None

    @property
    def target(self) -> str | None:
        return self.candidate.target if self.candidate else None


def rows(data: ReportData) -> tuple[Row, ...]:
    """Every candidate, the winner first, then as ranked, then what never ran, with its reason."""
    planned = [_row(data, plan) for plan in data.plan.feasible]
    order = [rank.candidate for rank in data.selection.ranks] if data.selection else []
    place = {name: number for number, name in enumerate(order)}
    planned.sort(key=lambda row: (not row.winner, place.get(row.name, len(order))))
    refused = [
        Row(refusal.candidate, "skipped", (_why(refusal.reason, refusal.nearest),)) for refusal in data.plan.refused
    ]
    return (*planned, *refused)


def _row(data: ReportData, plan: CandidatePlan) -> Row:
    name = plan.candidate.name
    evaluation = _of(data.evaluations, name)
    rank = _of(data.selection.ranks, name) if data.selection else None
    status, reasons = _status(data, name, evaluation, rank)
    return Row(
        name=name,
        status=status,
        reasons=reasons,
        candidate=plan.candidate,
        plan=plan,
        checkpoint=next((c for c in data.checkpoints if c.name == plan.candidate.checkpoint), None),
        compiled=_of(data.compiled, name),
        evaluation=evaluation,
        serving=_of(data.servings, name),
        tuning=_of(data.tunings, name),
        rank=rank,
        winner=bool(data.selection and data.selection.winner == name),
    )


def _status(
    data: ReportData, name: str, evaluation: Evaluation | None, rank: Rank | None
) -> tuple[Status, tuple[str, ...]]:
    if rank is not None:
        return rank.status, rank.reasons
    if name in data.failures:
        return "failed", (str(data.failures[name]),)
    if evaluation is not None:
        bad = tuple(check.reason for check in evaluation.checks if check.status != "passed")
        return evaluation.status, (evaluation.failure,) if evaluation.failure else bad
    return "skipped", ("was not run",)


def _of(records: tuple[Any, ...], candidate: str) -> Any:
    return next((record for record in records if record.candidate == candidate), None)


def _why(reason: str, nearest: str | None) -> str:
    return f"{reason}; the nearest that works: {nearest}" if nearest else reason


# ---------------------------------------------------------------- on disk


def layout(data: ReportData) -> dict[str, Any]:
    """Each numbered record by its path in a run folder, and in the `records/` of a bundle."""
    files: dict[str, Any] = {"01-inspect.json": data.facts, "02-plan.json": data.plan}
    for checkpoint in data.checkpoints:
        name = f"04-quantize/{checkpoint.name}/record.json"
        files["03-resolve.json" if checkpoint.scheme is None else name] = checkpoint
    files |= {f"05-compile/{record.candidate}/record.json": record for record in data.compiled}
    files |= {f"06-evaluate/{record.candidate}.json": record for record in data.evaluations}
    files |= {f"07-benchmark/{record.candidate}.json": record for record in data.servings}
    files |= {f"08-tune/{record.candidate}.json": record for record in data.tunings}
    if data.selection:
        files["09-select.json"] = data.selection
    if data.confirmation:
        files["10-confirm.json"] = data.confirmation
    return files


def read(folder: Path, about: Json | None = None) -> ReportData:
    """The records of a run folder; what the run did not get to is left out. `about`: in place of its run.json."""
    run = about or _load(folder / "run.json")
    if run is None:
        hint = "`optpipe build RECIPE` makes artifacts/latest; others are in artifacts/runs"
        found = "holds no run.json" if folder.is_dir() else "there is no such run's folder"
        raise InputError(found, place=str(folder), hint=hint)
    if not (folder / "02-plan.json").exists():
        raise InputError("the run ended before its plan, so there is nothing to report", place=str(folder))
    if not (folder / "01-inspect.json").exists():
        raise InputError(
            "is missing", place=str(folder / "01-inspect.json"), hint="build it anew; nothing done is redone"
        )
    with readable(folder / "run.json"):
        return _read(folder, run)


def _read(folder: Path, run: Json) -> ReportData:
    base = [Checkpoint] if (folder / "03-resolve.json").exists() else []
    return ReportData(
        name=run["recipe"]["name"],
        recipe=run["recipe"],
        facts=_one(ModelFacts, folder / "01-inspect.json"),
        plan=_one(Plan, folder / "02-plan.json"),
        hardware=from_json(Hardware, run["hardware"]),
        versions=run["versions"],
        command=run.get("command", f"optpipe build {run.get('recipe_path', 'recipe.yaml')}"),
        checkpoints=(
            *(_one(kind, folder / "03-resolve.json") for kind in base),
            *_all(Checkpoint, folder, "04-quantize/*/record.json"),
        ),
        compiled=_all(Compiled, folder, "05-compile/*/record.json"),
        evaluations=_all(Evaluation, folder, "06-evaluate/*.json"),
        servings=_all(Serving, folder, "07-benchmark/*.json"),
        tunings=_all(Tuning, folder, "08-tune/*.json"),
        selection=_one(Selection, folder / "09-select.json"),
        confirmation=_one(Confirmation, folder / "10-confirm.json"),
        challenges=_list(Challenge, folder / "11-challenge.json"),
        published=_list(Published, folder / "publish.json", "published"),
        texts=run.get("texts", {}),
        toolchains=run.get("toolchains", {}),
        failures=run.get("failures", {}),
        compared=_list(Compared, folder / ESTIMATES),
        seconds=run.get("seconds", {}),
        run=folder.name,
    )


def _load(path: Path) -> Any:
    if not path.is_file():
        return None
    with readable(path):
        return read_json(path)


def _one(kind: type[Any], path: Path) -> Any:
    with readable(path):
        value = _load(path)
        return None if value is None else from_json(kind, value)


def _all(kind: type[Any], folder: Path, pattern: str) -> tuple[Any, ...]:
    return tuple(_one(kind, path) for path in sorted(folder.glob(pattern)))


def _list(kind: type[Any], path: Path, key: str | None = None) -> tuple[Any, ...]:
    """The records of a file that holds several, below `key` where it holds more than these."""
    with readable(path):
        found = _load(path) or {}
        return tuple(from_json(kind, item) for item in (found if key is None else found.get(key, ())))
