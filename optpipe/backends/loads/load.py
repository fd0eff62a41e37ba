"""The load that a recipe declares and the bounds that its answers must keep; which client sends it does not matter.

Standard library only: a worker reads them too.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar, Literal

from optpipe.records import PERCENTILES, Json


@dataclass(frozen=True)
class Load:
    """The load that the engine is measured under."""

    __pydantic_config__: ClassVar[Json] = {"extra": "forbid", "use_attribute_docstrings": True}

    scenario: Literal["steady", "rate"] = "steady"
    """`steady` keeps `concurrency` requests in flight; `rate` sends at random (Poisson) times."""
    concurrency: int | None = None
    """Requests in flight; for `steady` only."""
    request_rate: float | None = None
    """Mean arrivals per second; for `rate` only."""
    input_tokens: int = 128
    """Tokens of each prompt, the shared ones included."""
    output_tokens: int = 32
    """Tokens of each answer; the end token is ignored, so that every answer is as long."""
    requests: int = 100
    """Measured requests; a percentile p needs 10 / (1 - p) of them."""
    warmup: int | None = None
    """Requests before the measured ones, under the same load; by default one per request in flight."""
    shared_prefix_tokens: int = 0
    """Leading tokens that are the same in every prompt, as a system prompt is."""
    request_timeout_s: float = 300.0
    """A request that takes longer has failed; nothing answered for so long, and the engine hangs."""

    def __post_init__(self) -> None:
        mine, other = ("concurrency", "request_rate")[:: 1 if self.scenario == "steady" else -1]
        if getattr(self, mine) is None:
            raise ValueError(f"scenario {self.scenario!r} needs {mine}")
        if getattr(self, other) is not None:
            raise ValueError(f"{other} {getattr(self, other)} has no meaning in scenario {self.scenario!r}")
        for name in ("concurrency", "request_rate", "input_tokens", "output_tokens", "requests"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} {value} is not above 0")
        if not 0 <= self.shared_prefix_tokens < self.input_tokens:
            raise ValueError(
                f"shared_prefix_tokens {self.shared_prefix_tokens} is not below input_tokens {self.input_tokens}"
            )
        if (self.warmup or 0) < 0 or self.request_timeout_s <= 0:
            raise ValueError(f"warmup {self.warmup} or request_timeout_s {self.request_timeout_s} is too small")

    @property
    def warmup_requests(self) -> int:
        return (self.concurrency or 4) if self.warmup is None else self.warmup


@dataclass(frozen=True)
class Slo:
    """Bounds in milliseconds by percentile: `ttft_ms: {p90: 2000}` asks 90 % of requests for at most 2 s."""

    __pydantic_config__: ClassVar[Json] = {"extra": "forbid", "use_attribute_docstrings": True}

    ttft_ms: dict[str, float] | None = None
    """Time to first token."""
    tpot_ms: dict[str, float] | None = None
    """Time per output token after the first."""
    e2e_ms: dict[str, float] | None = None
    """The whole request."""

    def __post_init__(self) -> None:
        for metric in fields(self):
            for percentile, bound in (getattr(self, metric.name) or {}).items():
                if percentile not in PERCENTILES:
                    known = ", ".join(PERCENTILES)
                    raise ValueError(f"{metric.name}: {percentile!r} is none of {known}")
                if bound <= 0:
                    raise ValueError(f"{metric.name}.{percentile} {bound} is not above 0")

    def bounds(self) -> dict[str, dict[str, float]]:
        """The metrics that are bounded, each with its bounds."""
        return {field.name: bounds for field in fields(self) if (bounds := getattr(self, field.name))}
