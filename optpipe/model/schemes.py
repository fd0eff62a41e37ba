"""What a quantization scheme makes of each linear layer, in bytes, as compressed-tensors stores it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

from optpipe.errors import InputError, did_you_mean
from optpipe.model.selectors import matched
from optpipe.records import Json, ModelFacts

WEIGHT_ONLY = ("gptq", "awq", "rtn", "awq-gptq", "autoround", "spinquant", "mixed")
"""Methods with `bits` and `group_size` whose activations stay as they are (mixed: in most layers)."""

EIGHT_BIT: dict[str, Literal["int", "float"]] = {"smoothquant": "int", "int8": "int", "fp8": "float"}
"""Methods with 8-bit weights per output channel and 8-bit activations per token."""

FOUR_BIT_FLOAT = {"nvfp4": 16, "mxfp4": 32}
"""Methods with 4-bit floats for weights and activations: how many share a scale."""

DATA_FREE = ("int8", "fp8", "rtn", "mxfp4")
"""Methods of llm-compressor that look at no calibration text; other libraries fix the activations' scales by it."""

FORMATS = {"gptqmodel": "gptq", "autogptq": "gptq", "autoawq": "awq", "modelopt": "modelopt"}
"""Whose format a library writes, where it is not compressed-tensors."""

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
    format: str = "compressed-tensors"

    @property
    def label(self) -> str:
        """In the field's words, e.g. `W4A16 g64 asymmetric`, `W8A8 INT8`."""
        if self.activation_bits == 8:
            return "FP8 W8A8" if self.kind == "float" else "INT8 W8A8"
        if self.activation_bits == 4:
            return "NVFP4 W4A4" if self.group == FOUR_BIT_FLOAT["nvfp4"] else "MXFP4 W4A4"
        group = f"g{self.group}" if self.group else "per channel"
        return f"W{self.bits}A16 {group} {'symmetric' if self.symmetric else 'asymmetric'}"


KINDS = ("w2a16", "w3a16", "w4a16", "w8a16", "int8", "fp8", "w4a8", "nvfp4", "mxfp4", "mixed")
"""The words for what a scheme makes of a layer, whoever makes it; `base` for a model as it is."""

BITS, GROUP = re.compile(r"[1-9]\d?-bit", re.ASCII), re.compile(r"g\d{1,6}", re.ASCII)

NATIVE = {"fp8": "fp8", "fbgemm_fp8": "fp8", "mxfp4": "mxfp4", "gpt_oss_mxfp4": "mxfp4"}
"""Methods of a `quantization_config` that name what they make."""


@dataclass(frozen=True)
class Stored:
    """What a checkpoint is stored as: `kind` is one of KINDS (or a word that no table knows), `format` whose it is."""

    kind: str = "base"
    format: str = "plain"
    bits: int = 16
    group: int | None = None
    symmetric: bool = True

    @property
    def layout(self) -> Layout | None:
        """As a layout, where it is weight-only."""
        if self.kind not in ("w2a16", "w3a16", "w4a16", "w8a16"):
            return None
        return Layout(self.bits, "int", 16, self.group, self.symmetric)


def kind_of(scheme: Json | None) -> str:
    """The word for what a scheme makes: base, w4a16, w8a16, int8, fp8 ..."""
    if scheme is None:
        return "base"
    if scheme.get("method") in ("mixed", *FOUR_BIT_FLOAT):
        return str(scheme["method"])
    layout = layout_of(scheme)
    if layout.activation_bits == 8:
        return "fp8" if layout.kind == "float" else "int8"
    return f"w{layout.bits}a16"


def stored_as(quantized: str | None) -> Stored:
    """What `ModelFacts.quantized` says, e.g. `gptq 4-bit g128 asymmetric`, `compressed-tensors 8-bit int8`."""
    if not quantized:
        return Stored()
    method, *words = quantized.split()
    bits = next((int(w[:-4]) for w in words if BITS.fullmatch(w)), 0)
    group = next((int(w[1:]) for w in words if GROUP.fullmatch(w)), None)
    plain = f"w{bits}a16" if bits else NATIVE.get(method, method)
    kind = next((word for word in words if word in KINDS), plain)
    return Stored(kind, method, bits or 16, group, "asymmetric" not in words)


INT8 = Layout(8, "int", 8, None, True)

Linear = tuple[str, int, int]


def layout_of(scheme: Mapping[str, Any]) -> Layout:
    """The layout that a scheme gives to every layer that it quantizes; mixed: to most of them."""
    method = str(scheme.get("method"))
    form = FORMATS.get(str(scheme.get("library")), "compressed-tensors")
    if method in EIGHT_BIT:
        return Layout(8, EIGHT_BIT[method], 8, None, True, form)
    if method in FOUR_BIT_FLOAT:
        return Layout(4, "float", 4, FOUR_BIT_FLOAT[method], True)
    if method not in WEIGHT_ONLY:
        known = [*WEIGHT_ONLY, *EIGHT_BIT, *FOUR_BIT_FLOAT]
        raise InputError(f"method: {method!r} is not known", hint=did_you_mean(method, known))
    group = int(scheme.get("group_size", 128))
    symmetric = bool(scheme.get("symmetric", True))
    return Layout(int(scheme.get("bits", 4)), "int", 16, group if group > 0 else None, symmetric, form)


def data_free(scheme: Mapping[str, Any]) -> bool:
    """Whether a scheme looks at no calibration text."""
    return scheme.get("method") in DATA_FREE and scheme.get("library", "llmcompressor") == "llmcompressor"


def selected(facts: ModelFacts, scheme: Json | None) -> tuple[Linear, ...]:
    """The linear layers that the scheme quantizes; none for the base model."""
    if scheme is None:
        return ()
    kept = set(matched(scheme.get("ignore", ("lm_head",)), [name for name, _, _ in facts.linears]))
    return tuple(linear for linear in facts.linears if linear[0] not in kept)


def parts(facts: ModelFacts, scheme: Json | None) -> tuple[tuple[Layout, tuple[Linear, ...]], ...]:
    """Each layout of a scheme with the layers that have it; one, but for mixed schemes."""
    linears = selected(facts, scheme)
    if scheme is None or not linears:
        return ()
    eight = set(matched(scheme.get("int8", ()), [name for name, _, _ in linears]))
    found = (
        (layout_of(scheme), tuple(linear for linear in linears if linear[0] not in eight)),
        (INT8, tuple(linear for linear in linears if linear[0] in eight)),
    )
    return tuple(part for part in found if part[1])


def untied_bytes(facts: ModelFacts, scheme: Json | None) -> int:
    """What a checkpoint grows by where rotations make two tables of tied embeddings."""
    unties = scheme is not None and scheme.get("method") == "spinquant" and facts.tied_embeddings
    return PLAIN_BYTES * facts.vocabulary * facts.hidden_size if unties else 0


def quantizes_head(scheme: Json | None) -> bool:
    """Whether the scheme would quantize lm_head (llm-compressor leaves it only where it is ignored)."""
    return scheme is not None and not matched(scheme.get("ignore", ("lm_head",)), ["lm_head"])


def linear_bytes(layout: Layout, out: int, inputs: int) -> int:
    """Bytes of one layer's weight with all that is needed to read it.

    Packed: `weight_packed` int32 [out, ceil(in * bits / 32)], `weight_scale` bf16 [out, groups],
    `weight_shape`, and if asymmetric `weight_zero_point` int32 [ceil(out * bits / 32), groups].
    W8A8: one byte a weight and one bf16 scale per output channel. 4-bit floats: two weights and one scale a
    byte; NVFP4 has two float32 more, `weight_global_scale` and `input_global_scale`.
    """
    if layout.format != "compressed-tensors":
        return foreign_bytes(layout, out, inputs)
    if layout.activation_bits == 8:
        return out * inputs + SCALE_BYTES * out
    if layout.kind == "float":
        shared = 8 if layout.group == FOUR_BIT_FLOAT["nvfp4"] else 0
        return out * (inputs // 2 + inputs // (layout.group or inputs)) + shared
    groups = ceil(inputs / layout.group) if layout.group else 1
    packed = 4 * out * ceil(inputs * layout.bits / 32)
    zero_points = 0 if layout.symmetric else 4 * ceil(out * layout.bits / 32) * groups
    return packed + SCALE_BYTES * out * groups + zero_points + SHAPE_BYTES


def foreign_bytes(layout: Layout, out: int, inputs: int) -> int:
    """The same for the other libraries' formats.

    GPTQ: `qweight` int32 [ceil(in * bits / 32), out], `scales` 16-bit [groups, out], `qzeros` int32 [groups,
    ceil(out * bits / 32)], `g_idx` int32 [in]. AWQ: packed along `out`, without `g_idx`. ModelOpt: codes, two to a
    byte in 4 bits, and float32 scales per group, per channel (INT8) or one (FP8); what it keeps for the inputs
    (`input_scale`, `pre_quant_scale`) is not counted.
    """
    groups = ceil(inputs / layout.group) if layout.group else 1
    if layout.format == "modelopt":
        scales = groups * out if layout.kind == "int" else 1
        return out * inputs * layout.bits // 8 + 4 * scales
    zero_points, scales = 4 * groups * ceil(out * layout.bits / 32), SCALE_BYTES * groups * out
    if layout.format == "awq":
        return 4 * inputs * ceil(out * layout.bits / 32) + zero_points + scales
    return 4 * out * ceil(inputs * layout.bits / 32) + zero_points + scales + 4 * inputs


def weight_bytes(facts: ModelFacts, scheme: Json | None) -> int:
    """Bytes of all tensors of a checkpoint: quantized layers, and the rest as it is."""
    if scheme is None:
        return facts.weight_bytes
    each = parts(facts, scheme)
    rest = facts.parameters - sum(out * inputs for _, linears in each for _, out, inputs in linears)
    packed = sum(linear_bytes(layout, out, inputs) for layout, linears in each for _, out, inputs in linears)
    return rest * PLAIN_BYTES + packed + untied_bytes(facts, scheme)
