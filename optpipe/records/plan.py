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
    quantize_memory: Estimated | None = None
    score_memory: Estimated | None = None
    engine_memory: Estimated | None = None
    """Peaks of the kinds of work, of which `memory_bytes` is the largest; None for what is not done."""
    job_seconds: Estimated | None = None
    """Quantizing and scoring: what `seconds` holds beside the engine."""


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


@dataclass(frozen=True)
class Compared:
    """One estimate beside what was measured; `of` is a checkpoint, a candidate, or `build` for the whole."""

    of: str
    quantity: str
    estimated: float
    measured: float
    unit: str
    error_pct: float
    aim_pct: float | None
    """What the error should stay within; None where there is no aim."""

    @property
    def beyond(self) -> bool:
        return self.aim_pct is not None and abs(self.error_pct) > self.aim_pct
