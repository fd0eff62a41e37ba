"""One of two versions that are compared: the records of a run's folder or of a bundle, and the candidate meant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optpipe.errors import InputError, did_you_mean
from optpipe.records import Json
from optpipe.report.data import ReportData, Row, read, rows
from optpipe.rundir import read_json, read_yaml, readable

RUN, BUNDLE = "run.json", "optpipe.json"


@dataclass(frozen=True)
class Side:
    """One version: the records of its build, the candidate that is meant, and what to call it."""

    label: str
    data: ReportData
    row: Row


def side(path: Path, label: str, candidate: str | None = None) -> Side:
    """A run's folder or a bundle's; of a run its winner, or the candidate that is named."""
    data = read_either(path)
    table = rows(data)
    if candidate is not None:
        found = next((row for row in table if row.name == candidate), None)
        if found is None:
            raise InputError(f"no candidate {candidate!r}", place=label, hint=did_you_mean(candidate, names(table)))
        return Side(f"{label}:{candidate}", data, found)
    winner = next((row for row in table if row.winner), None)
    if winner is None:
        hint = f"name a candidate: {label}:NAME, one of {', '.join(names(table))}"
        raise InputError(f"the run ended {data.verdict}: nothing was chosen", place=label, hint=hint)
    return Side(label, data, winner)


def names(table: Sequence[Row]) -> list[str]:
    return [row.name for row in table]


def read_either(path: Path) -> ReportData:
    """The records of a run's folder or of a bundle's."""
    if (path / RUN).is_file():
        return read(path)
    if (path / BUNDLE).is_file():
        return read_bundle(path)
    hint = "name a run (artifacts/latest), a bundle's folder, or a published version (name@alias)"
    raise InputError("neither a run nor a bundle" if path.exists() else "is not there", place=str(path), hint=hint)


def read_bundle(folder: Path) -> ReportData:
    """A bundle's records; InputError where they are of another version of optpipe."""
    with readable(folder / BUNDLE):
        measured = read_json(folder / BUNDLE)["measured_on"]
    with readable(folder / "recipe.resolved.yaml"):
        recipe = read_yaml(folder / "recipe.resolved.yaml")
    known: Json = {"recipe": recipe, **measured, "command": "", "failures": {}}
    return read(folder / "records", known)
