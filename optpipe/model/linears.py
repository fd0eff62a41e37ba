"""Finds the linear layers in a list of tensors, in plain and in quantized checkpoints."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod

from optpipe.records import TensorFact

HEAD = re.compile(r"(^output|(^|\.)(lm_head|embed_out))$")
"""The module that turns hidden states into logits."""

NOT_LINEAR = re.compile(
    r"(^|\.)(embed_(?!out)\w*|\w*embeddings?|wte|wpe|\w*norm\w*|ln_\w+|rotary_emb|relative_attention_bias|conv1d"
    r"|router(\.layer)?|gate|shared_expert_gate)$"
)
"""Modules whose 2-D weight is no linear layer, or (routers of experts) one that nobody quantizes."""

OTHER_PARTS = re.compile(r"(^|\.)(\w*vision\w*|visual|\w*audio\w*|\w*projector|image_newline|talker|mtp)(\.|$)")
"""The parts of a multimodal model that are not its text model."""

EXPERTS = re.compile(r"(^|\.)(\w*experts|\w*moe)\.")
"""What a mixture of experts is called: `mlp.experts.down_proj` (GPT-OSS), `block_sparse_moe.input_linear` (Granite)."""

CONV1D = ("gpt2", "openai-gpt", "imagegpt")
"""Model types that keep their weights transposed: [in, out]."""

COMPANIONS = (
    "weight_scale",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "weight_global_scale",
    "weight_scale_inv",
    "weight_scale_2",
    "input_scale",
    "input_global_scale",
    "input_zero_point",
    "pre_quant_scale",
    "qzeros",
    "scales",
    "g_idx",
    "k_scale",
    "v_scale",
    "absmax",
    "quant_map",
    "nested_absmax",
    "nested_quant_map",
    "SCB",
)
"""Tensors that only help to read a quantized weight."""


@dataclass(frozen=True)
class Weight:
    """One parameter tensor as the model sees it, however it is stored."""

    module: str
    kind: str
    shape: tuple[int, ...]
    """Without packing: [out, in] for a linear layer."""
    nbytes: int
    dtype: str

    @property
    def elements(self) -> int:
        return prod(self.shape)


def split_name(name: str) -> tuple[str, str]:
    """`model.layers.0.mlp.up_proj.weight` -> (module, `weight`)."""
    module, _, kind = name.rpartition(".")
    return module, kind


def is_companion(name: str) -> bool:
    return split_name(name)[1] in COMPANIONS or ".weight.quant_state" in name or ".weight.absmax" in name


def weights_of(tensors: Iterable[TensorFact], bits: int | None, method: str, conv1d: bool) -> list[Weight]:
    """The parameters among the tensors, packed ones with the shape that they stand for."""
    found = []
    for fact in tensors:
        if is_companion(fact.name):
            continue
        module, kind = split_name(fact.name)
        shape = unpacked(fact, kind, bits, method)
        if conv1d and len(shape) == 2 and kind == "weight" and not NOT_LINEAR.search(module) and not is_head(module):
            shape = (shape[1], shape[0])
        found.append(Weight(module, kind, shape, fact.nbytes, fact.dtype))
    return found


def unpacked(fact: TensorFact, kind: str, bits: int | None, method: str) -> tuple[int, ...]:
    """The shape that a packed tensor stands for: GPTQ packs rows of [in, out], AWQ columns of it;
    in bytes, ModelOpt's INT4 packs rows of [out, in] and 4-bit floats columns of it."""
    if len(fact.shape) != 2:
        return fact.shape
    rows, columns = fact.shape
    width = bits or 4
    if kind == "weight_packed":
        return rows, columns * 32 // width
    if kind == "qweight":
        return (columns * 32 // width, rows) if method == "awq" else (columns, rows * 32 // width)
    if kind == "weight" and fact.dtype == "U8":
        return (rows * 2, columns) if method == "modelopt" and bits else (rows, columns * 2)
    return fact.shape


def is_head(module: str) -> bool:
    return bool(HEAD.search(module))


def is_other_part(module: str) -> bool:
    return bool(OTHER_PARTS.search(module))


def quantizable(module: str) -> bool:
    """Whether a linear module of this name is one that quantizers may touch: no router, no part beside the text."""
    return not NOT_LINEAR.search(module) and not is_other_part(module)


def linears_of(weights: Sequence[Weight], tied: bool) -> tuple[tuple[str, int, int], ...]:
    """(module, out, in) of each quantizable linear layer; a tied head is no layer of its own."""
    found = []
    for weight in weights:
        if weight.kind not in ("weight", "qweight", "weight_packed") or len(weight.shape) != 2:
            continue
        if not quantizable(weight.module) or (is_head(weight.module) and tied):
            continue
        found.append((weight.module, weight.shape[0], weight.shape[1]))
    return tuple(sorted(found, key=lambda linear: natural(linear[0])))


def natural(name: str) -> tuple[tuple[int, str], ...]:
    """A sort key that puts layers.2 before layers.10, whatever the order in the shards."""
    return tuple((int(part), "") if part.isdigit() else (-1, part) for part in name.split("."))


def stacked_experts(weights: Sequence[Weight]) -> int:
    """How many weights hold all experts of a layer in one tensor of three dimensions (a packed one has four)."""
    return sum(len(one.shape) > 2 and bool(EXPERTS.search(f"{one.module}.{one.kind}")) for one in weights)
