"""Checks of how weights are stored against what the configuration says of their quantization."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from optpipe.errors import Problem
from optpipe.model.config import quantization_of, text_config
from optpipe.model.facts import SMALL
from optpipe.model.linears import split_name
from optpipe.model.reasons import fused_key
from optpipe.records import Json, TensorFact

WEIGHTS = ("weight", "qweight", "weight_packed")
NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "weight_packed": (("weight_scale",),),
    "qweight": (("scales",),),
    "weight": (("weight_scale", "weight_scale_inv", "weight_scales", "SCB", "weight.absmax"),),
}
"""Beside a quantized tensor, one of each: without it the weight cannot be read."""

PACKING = ("gptq", "awq", "compressed-tensors")
"""Methods whose checkpoints hold packed or 8-bit weights; others may be quantized while they are loaded."""

Facts = Mapping[str, TensorFact]


def stored_problems(facts: Facts, config: Json, folder: str) -> Iterator[Problem]:
    """Quantized weights without a word in the configuration, the reverse, and layers that are not whole."""
    small = [fact for fact in facts.values() if is_quantized(fact)]
    quantized = quantization_of(config)
    if small and quantized is None:
        first = small[0]
        text = f"{len(small)} weights are quantized ({first.name} is {first.dtype}), but config.json names no"
        hint = "take the config.json that was written with these weights, or the unquantized original"
        yield Problem(f"{folder}/{first.file}", f"{text} quantization_config", hint)
    elif not small and quantized and packs(config):
        text = f"quantization_config says {quantized}, but no weight is stored so"
        hint = "remove quantization_config, or fetch the quantized weights"
        yield Problem(f"{folder}/config.json", text, hint)
    yield from companion_problems(small, facts, folder)
    if small:
        yield from fused_problems(facts, folder)


def is_quantized(fact: TensorFact) -> bool:
    """A matrix of a linear layer in a dtype that only quantizing makes; masks and buffers have other names."""
    return split_name(fact.name)[1] in WEIGHTS and fact.dtype in SMALL and len(fact.shape) > 1


def packs(config: Json) -> bool:
    found = config.get("quantization_config") or text_config(config).get("quantization_config") or {}
    status = found.get("quantization_status", "compressed")
    return found.get("quant_method") in PACKING and status == "compressed" and found.get("format") != "dense"


def companion_problems(small: list[TensorFact], facts: Facts, folder: str) -> Iterator[Problem]:
    """Quantized weights without their scales."""
    for fact in small:
        module, kind = split_name(fact.name)
        for choices in NEEDED[kind]:
            if not any(f"{module}.{name}" in facts for name in choices):
                text = f"{fact.name} is {fact.dtype}, and {module}.{choices[0]} is missing"
                yield Problem(f"{folder}/{fact.file}", text, "the weights are not whole: fetch the model again")


def fused_problems(facts: Facts, folder: str) -> Iterator[Problem]:
    """Layers that engines load as one matrix and that are not stored alike."""
    groups: dict[str, dict[str, tuple[Any, ...]]] = {}
    for fact in facts.values():
        module, kind = split_name(fact.name)
        key = fused_key(module) if kind in WEIGHTS and ".experts." not in fact.name else None
        if key:
            scale = facts.get(f"{module}.weight_scale") or facts.get(f"{module}.scales")
            groups.setdefault(key, {})[module] = (kind, fact.dtype, groups_of(scale))
    for members in groups.values():
        if len(set(members.values())) > 1:
            shown = ", ".join(f"{name} {kind} {dtype}" for name, (kind, dtype, _) in members.items())
            hint = "engines load them as one: quantize all of them alike, or none"
            yield Problem(folder, f"layers that engines fuse are stored in different ways: {shown}", hint)


def groups_of(scale: TensorFact | None) -> int:
    """Scales along the input of a layer; AWQ and GPTQ keep them in rows, the others in columns."""
    if scale is None or len(scale.shape) < 2:
        return 0
    return scale.shape[0] if scale.name.endswith(".scales") else scale.shape[-1]
