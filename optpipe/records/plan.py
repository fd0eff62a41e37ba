"""What plan leaves: every candidate, feasible with estimates or refused with a reason."""

from __future__ import annotations

from dataclasses import dataclass, field

from optpipe.records.facts import Hardware
from optpipe.records.figures import Estimated
from optpipe.records.serialize import Json


@dataclass(frozen=True)
class Candidate:
    """checkpoint x target, named `checkpoint@target`; `scheme` is None for the base model."""

    name: str
    checkpoint: str
    target: str
    scheme: Json | None
    engine: Json


@dataclass(frozen=True)
class Refusal:
    """Why a candidate is not feasible, and the nearest thing that works."""

    candidate: str
    reason: str
    nearest: str | None = None


@dataclass(frozen=True)
class CandidatePlan:
    """One feasible candidate with its estimates."""

    candidate: Candidate
    bytes: Estimated
    bits_per_weight: Estimated
    memory_bytes: Estimated
    disk_bytes: Estimated
    seconds: Estimated
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Every candidate, feasible with estimates or refused with a reason."""

    model: str
    hardware: Hardware
    feasible: tuple[CandidatePlan, ...]
    refused: tuple[Refusal, ...]
    seconds: Estimated
    disk_bytes: Estimated
    downloads_bytes: Estimated
    warnings: tuple[str, ...] = ()
    inputs: Json = field(default_factory=dict)
    """Digests of recipe, base, texts and toolchains: where they are the same, a build would find the same."""
