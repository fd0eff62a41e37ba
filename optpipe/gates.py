"""Gates as data: presets, what a recipe may replace, and the numbers that hold for one candidate."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Literal

from optpipe.errors import InputError, did_you_mean
from optpipe.records import Json


@dataclass(frozen=True)
class GateSettings:
    """`gates:` of a recipe: a preset and the numbers that replace its own (None: the preset's)."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012  (read by pydantic, not a field)

    preset: Literal["default", "strict"] = "default"
    """default: what most services accept. strict: for a model that is close to its quality limit."""
    perplexity_increase_pct: float | None = None
    """Largest rise of perplexity over the base, in per cent, on each text."""
    kl_divergence: float | None = None
    """Largest mean divergence KL(base || candidate) in nats per token, on each text."""
    top1_agreement: float | None = None
    """Smallest share of positions where base and candidate prefer the same token, on each text."""
    bits_per_weight_tolerance_pct: float | None = None
    """How far the artifact's bits per weight may lie from what the recipe asks for."""
    parity_factor: float | None = None
    """How many times the base's own disagreement between engine and transformers is allowed."""
    parity_mean_floor: float | None = None
    """Mean |difference of log-probability| that always passes, in nats: below it is rounding."""
    parity_p99_floor: float | None = None
    """99th percentile of it that always passes, in nats."""
    parity_mean_ceiling: float | None = None
    """Mean that never passes, however much the base itself disagrees, in nats."""
    parity_p99_ceiling: float | None = None
    """99th percentile that never passes, in nats."""
    load_failures_pct: float | None = None
    """Failure budget of a load test, in per cent of its requests."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name != "preset" and value is not None and not (math.isfinite(value) and value >= 0):
                raise ValueError(f"gates.{name}: {value} is not a number from 0 on")


@dataclass(frozen=True)
class Gates:
    """The limits for one candidate, every number set; see GateSettings for what each means."""

    preset: str
    perplexity_increase_pct: float
    kl_divergence: float
    top1_agreement: float
    bits_per_weight_tolerance_pct: float
    parity_factor: float
    parity_mean_floor: float
    parity_p99_floor: float
    parity_mean_ceiling: float
    parity_p99_ceiling: float
    load_failures_pct: float


PRESETS: dict[str, dict[str, float]] = {
    "default": {
        "perplexity_increase_pct": 5.0,
        "bits_per_weight_tolerance_pct": 5.0,
        "parity_factor": 3.0,
        "parity_mean_floor": 0.03,
        "parity_p99_floor": 0.25,
        "parity_mean_ceiling": 0.2,
        "parity_p99_ceiling": 1.5,
        "load_failures_pct": 1.0,
    }
}
PRESETS["strict"] = PRESETS["default"] | {"perplexity_increase_pct": 1.0, "load_failures_pct": 0.1}
BY_BITS: dict[str, dict[int, tuple[float, float]]] = {
    "default": {16: (0.02, 0.93), 8: (0.06, 0.85), 4: (0.25, 0.70)},
    "strict": {16: (0.005, 0.97), 8: (0.02, 0.92), 4: (0.08, 0.82)},
}
"""Per preset and bits of the weights: (largest KL divergence, smallest top-1 agreement).

Set from SmolLM2-135M, the hard end (larger models drift less): rounded INT8 has 0.005 and 0.956, 6-bit
0.025 and 0.905, GPTQ 4-bit 0.06 to 0.13, rounded 4-bit 0.34 and 0.67, which also costs +48 % perplexity.
"""


def resolve(settings: GateSettings | str = "default", bits: float = 16.0) -> Gates:
    """The preset's numbers for weights of `bits` (the nearest of 16, 8, 4), overridden by the settings."""
    asked = {"preset": settings} if isinstance(settings, str) else asdict(settings)
    preset = asked["preset"]
    if preset not in PRESETS:
        raise InputError(
            f"{preset!r} is no preset", place="gates.preset", hint=did_you_mean(preset, [*PRESETS])
        )
    table = BY_BITS[preset]
    divergence, agreement = table[min(table, key=lambda known: (abs(known - bits), known))]
    numbers = PRESETS[preset] | {"kl_divergence": divergence, "top1_agreement": agreement}
    given = {name: float(value) for name, value in asked.items() if name in numbers and value is not None}
    return Gates(preset=preset, **(numbers | given))


ROUNDS_ACTIVATIONS = ("smoothquant", "int8", "fp8", "mixed", "nvfp4", "mxfp4")
ACTIVATION_SLACK = 10 / 3
"""How much wider engine and transformers may lie apart where activations are rounded too.

Rounding amplifies what differs in the last bit of bf16, and each implementation rounds by itself: two good
ones lie as far apart as the rounding costs. Seen on SmolLM2-135M (510 tokens), as multiples of the base's own
mean 0.042 and P99 0.22 nats: SmoothQuant 3.0 and 2.8, plain INT8 4.7 and 6.7. With the slack the factor is 10.
"""


def for_scheme(settings: GateSettings, scheme: Json | None) -> Gates:
    """The limits for one checkpoint: by the bits of its weights, and wider parity where activations are rounded."""
    found = resolve(settings, bits_of(scheme))
    if (scheme or {}).get("method") not in ROUNDS_ACTIVATIONS:
        return found
    wider = ("parity_factor", "parity_mean_ceiling", "parity_p99_ceiling")
    own = {name for name, value in asdict(settings).items() if value is not None}
    return replace(found, **{name: getattr(found, name) * ACTIVATION_SLACK for name in wider if name not in own})


def bits_of(scheme: Json | None) -> float:
    """The quantized weights' own bits, for the gates: 16 for the base, 8 where a method has no other choice.

    Not an artifact's bits per weight: embeddings that stay in bf16 make 4-bit weights of a small model
    come to more than 6, which would put them under the limits of 8.
    """
    if scheme is None:
        return 16.0
    return float(scheme.get("bits", 4 if scheme.get("method") in ("nvfp4", "mxfp4") else 8))
