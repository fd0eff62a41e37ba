"""What a quantization scheme makes of each linear layer, in bytes, as compressed-tensors stores it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from optpipe.errors import InputError, did_you_mean
from optpipe.model.selectors import matched
from optpipe.records import Json, ModelFacts

WEIGHT_ONLY = ("gptq", "awq", "rtn")
"""Methods with `bits` and `group_size` whose activations stay as they are."""

EIGHT_BIT: dict[str, Literal["int", "float"]] = {"smoothquant": "int", "int8": "int", "fp8": "float"}
"""Methods with 8-bit weights per output channel and 8-bit activations per token."""

PLAIN_BYTES = 2
"""Bytes of one weight that stays: quantizers load the base in bf16, whatever it is stored in."""

SCALE_BYTES = 2
SHAPE_BYTES = 16
"""`weight_shape`: two int64 beside each packed weight."""


@dataclass(frozen=True)
class Layout:
    """How one linear layer is stored; `group` is None for one scale per output channel."""

    bits: int
    kind: Literal["int", "float"]
    activation_bits: int
    group: int | None
    symmetric: bool

    @property
    def label(self) -> str:
        """In the field's words, e.g. `W4A16 g64 asymmetric`, `W8A8 INT8`."""
        if self.activation_bits == 8:
            return "FP8 W8A8" if self.kind == "float" else "INT8 W8A8"
        group = f"g{self.group}" if self.group else "per channel"
        return f"W{self.bits}A16 {group} {'symmetric' if self.symmetric else 'asymmetric'}"


def layout_of(scheme: Mapping[str, Any]) -> Layout:
    """The layout that a scheme gives to every layer that it quantizes."""
    method = str(scheme.get("method"))
    if method in EIGHT_BIT:
        return Layout(8, EIGHT_BIT[method], 8, None, True)
    if method not in WEIGHT_ONLY:
        known = [*WEIGHT_ONLY, *EIGHT_BIT]
        raise InputError(f"method: {method!r} is not known", hint=did_you_mean(method, known))
    group = int(scheme.get("group_size", 128))
    symmetric = bool(scheme.get("symmetric", True))
    return Layout(int(scheme.get("bits", 4)), "int", 16, group if group > 0 else None, symmetric)


def selected(facts: ModelFacts, scheme: Json | None) -> tuple[tuple[str, int, int], ...]:
    """The linear layers that the scheme quantizes; none for the base model."""
    if scheme is None:
        return ()
    kept = set(matched(scheme.get("ignore", ("lm_head",)), [name for name, _, _ in facts.linears]))
    return tuple(linear for linear in facts.linears if linear[0] not in kept)


def quantizes_head(scheme: Json | None) -> bool:
    """Whether the scheme would quantize lm_head (llm-compressor leaves it only where it is ignored)."""
    return scheme is not None and not matched(scheme.get("ignore", ("lm_head",)), ["lm_head"])


def linear_bytes(layout: Layout, out: int, inputs: int) -> int:
    """Bytes of one layer's weight with all that is needed to read it.

    Packed: `weight_packed` int32 [out, ceil(in * bits / 32)], `weight_scale` bf16 [out, groups],
    `weight_shape`, and if asymmetric `weight_zero_point` int32 [ceil(out * bits / 32), groups].
    W8A8: one byte a weight and one bf16 scale per output channel.
    """
    if layout.activation_bits == 8:
        return out * inputs + SCALE_BYTES * out
    groups = ceil(inputs / layout.group) if layout.group else 1
    packed = 4 * out * ceil(inputs * layout.bits / 32)
    zero_points = 0 if layout.symmetric else 4 * ceil(out * layout.bits / 32) * groups
    return packed + SCALE_BYTES * out * groups + zero_points + SHAPE_BYTES


def weight_bytes(facts: ModelFacts, scheme: Json | None) -> int:
    """Bytes of all tensors of a checkpoint: quantized layers, and the rest as it is."""
    if scheme is None:
        return facts.weight_bytes
    layout, linears = layout_of(scheme), selected(facts, scheme)
    rest = facts.parameters - sum(out * inputs for _, out, inputs in linears)
    return rest * PLAIN_BYTES + sum(linear_bytes(layout, out, inputs) for _, out, inputs in linears)
