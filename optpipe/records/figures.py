"""Figures: measured ones and estimated ones are different types, so that a ranking never mixes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from optpipe.records.serialize import Json


@dataclass(frozen=True)
class Measured:
    """A measured figure over `n` independent units: `ci95` is two-sided, for reading; `bounds95` are the
    two one-sided 95 % bounds, each for itself, for gates."""

    value: float
    ci95: tuple[float, float] | None
    n: int
    unit: str
    method: str = ""
    bounds95: tuple[float, float] | None = None


@dataclass(frozen=True)
class Estimated:
    """A computed figure, with how it was computed."""

    value: float
    unit: str
    how: str


PERCENTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of one latency in milliseconds; None where `n` is under 10 / (1 - p)."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    n: int
    unit: str = "ms"


@dataclass(frozen=True)
class LoadFigures:
    """Serving figures under one declared load on one running engine; latencies in ms of successes only."""

    requests: int
    failures: int
    seconds: float
    concurrency: int | None
    requested_rate: float | None
    achieved_rate: float
    output_tokens_per_s: Measured
    requests_per_s: Measured
    goodput_per_s: Measured
    inside_slo: Measured
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    prefix_cache_hit_rate: float | None
    unique_prompts: bool
    client_limited: str | None
    """Why the load generator was the bottleneck, so that these are no figures of the engine; None where it was not."""
    batches: Json = field(default_factory=dict)
    """Per-batch rates (batch means), from which differences between candidates get their interval."""
