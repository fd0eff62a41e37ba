"""Why a scheme cannot work on a model, kernel or machine, by arithmetic; each reason says what would."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from optpipe.model.linears import split_name
from optpipe.model.schemes import Layout, parts, quantizes_head, selected
from optpipe.model.selectors import matched, selector_problems
from optpipe.records import Hardware, Json, ModelFacts

Linear = tuple[str, int, int]

KERNEL_GROUPS = (128, 64, 32)
"""Group sizes that GPU engines have kernels for; vLLM's CPU kernel takes any even one."""

ORT_GROUPS = (16, 32, 64, 128, 256)
"""Block sizes of ONNX Runtime's MatMulNBits."""

FUSED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
    ("q_a_proj", "kv_a_proj_with_mqa"),
)
"""Layers under one parent that engines load as one matrix: they must be quantized alike."""

CPU_STEP = 32
"""vLLM's 4-bit kernel for CPU takes matrices whose sizes are multiples of this."""

CPU_HEADS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes of vLLM 0.32's attention on a CPU (v1/attention/backends/cpu_attn.py); others fail at the first token."""


@dataclass(frozen=True)
class Reason:
    """Why a candidate cannot work, and the nearest thing that does."""

    reason: str
    nearest: str | None = None


# ---------------------------------------------------------------- the scheme on the model


def base_reasons(facts: ModelFacts) -> Iterator[Reason]:
    """A base that is quantized already."""
    if facts.quantized:
        text = f"the base is quantized already ({facts.quantized})"
        yield Reason(text, "its unquantized original as model.source")


def head_reasons(facts: ModelFacts, scheme: Json) -> Iterator[Reason]:
    """A head that would be quantized although it is the input embedding too."""
    if quantizes_head(scheme) and facts.tied_embeddings:
        text = "lm_head shares its weights with the input embeddings: quantized, the checkpoint would grow"
        yield Reason(text, "ignore: [lm_head]")


def selection_reasons(facts: ModelFacts, scheme: Json) -> Iterator[Reason]:
    """Selectors that match nothing or not what they expect, or that leave nothing to quantize."""
    names = [name for name, _, _ in facts.linears]
    for problem in selector_problems(scheme.get("ignore", ("lm_head",)), names, "ignore"):
        yield Reason(f"{problem.place}: {problem.message}", problem.hint)
    if not selected(facts, scheme):
        yield Reason(f"ignore leaves none of {len(names)} linear layers to quantize", "ignore: [lm_head]")
    if "int8" in scheme:
        yield from mixed_reasons(scheme, [name for name, _, _ in selected(facts, scheme)])
    if scheme.get("method") == "spinquant" and facts.head_dim & (facts.head_dim - 1):
        text = f"spinquant's rotations need a head size that is a power of two, not {facts.head_dim}"
        yield Reason(text, "method: gptq")


def mixed_reasons(scheme: Json, names: Sequence[str]) -> Iterator[Reason]:
    """An `int8` of a mixed scheme that names no layer or all, some of what an engine fuses, or experts."""
    found = selector_problems(scheme["int8"], names, "int8")
    for problem in found:
        yield Reason(f"{problem.place}: {problem.message}", problem.hint)
    eight = set(matched(scheme["int8"], names))
    if found or not names:
        return
    if len(eight) == len(names):
        yield Reason(f"int8 leaves none of {len(names)} layers for {scheme['bits']} bits", "method: int8")
    if experts := [name for name in names if name in eight and ".experts." in name]:
        text = f"engines load all experts by one scheme, and int8 names {some(experts)}"
        yield Reason(text, "int8 without experts")
    for reason in fused_reasons(names, eight):
        text = reason.reason.replace("stay unquantized", f"have {scheme['bits']} bits")
        yield Reason(text, "int8: all of them or none")


def group_reasons(linears: Sequence[Linear], group: int | None) -> Iterator[Reason]:
    """A group size that does not divide the input size of every layer."""
    bad = [f"{name} ({inputs})" for name, _, inputs in linears if group and inputs % group]
    if bad:
        share = f"{len(bad)} of {len(linears)} layers"
        text = f"group_size {group} does not divide the input size of {share}: {some(bad)}"
        yield Reason(text, f"group_size: {nearest_group(linears, group or 0)}")


def layout_reasons(facts: ModelFacts, scheme: Json) -> Iterator[Reason]:
    """Groups that do not divide a layer's input size, for each layout of the scheme with its own layers."""
    for layout, linears in parts(facts, scheme):
        for found in group_reasons(linears, layout.group):
            text = found.reason.replace("group_size", f"{layout.label} in groups of")
            yield found if layout.kind == "int" else Reason(text, "method: int8")


def nearest_group(linears: Iterable[Linear], group: int) -> int:
    """The largest group that divides every layer and has kernels, else any that does; -1 is per channel."""
    common = gcd(*(inputs for _, _, inputs in linears))
    fitting = [size for size in (*KERNEL_GROUPS, *range(common, 7, -1)) if size <= group and common % size == 0]
    return next((size for size in fitting if size % 8 == 0), -1)


def fused_reasons(names: Sequence[str], chosen: set[str]) -> Iterator[Reason]:
    """Layers that an engine fuses of which only some would be quantized."""
    together: dict[str, list[str]] = {}
    for name in names:
        if key := fused_key(name):
            together.setdefault(key, []).append(name)
    split = {key: members for key, members in together.items() if 0 < len(chosen & set(members)) < len(members)}
    if split:
        members = next(iter(split.values()))
        kept = [name for name in members if name not in chosen]
        text = (
            f"engines fuse {some(members, 4)}, but only {some(kept)} would stay unquantized "
            f"({len(split)} such groups of layers)"
        )
        yield Reason(text, "ignore all of them or none")


def fused_key(name: str) -> str | None:
    """What layers that are fused with this one have in common; all experts of a layer are one matrix."""
    if ".experts." in name:
        return name.partition(".experts.")[0] + ".experts"
    parent, last = split_name(name)
    for group in FUSED:
        if last in group:
            return f"{parent}.{'+'.join(group)}"
    return None


# ---------------------------------------------------------------- engine and machine


def attention_reasons(facts: ModelFacts, hardware: Hardware) -> Iterator[Reason]:
    """A head size that vLLM's attention on a CPU has not; latent attention has its own, and another cache."""
    plain = facts.kv_bytes_per_token % (2 * facts.kv_heads * facts.head_dim) == 0
    if not hardware.gpus and plain and facts.head_dim not in CPU_HEADS:
        sizes = ", ".join(map(str, CPU_HEADS))
        yield Reason(f"vLLM on CPU has no attention for heads of {facts.head_dim}; it has {sizes}", "a GPU")


def kernel_reasons(facts: ModelFacts, scheme: Json, target: Mapping[str, Any], hardware: Hardware) -> Iterator[Reason]:
    """Sizes that the engine's kernel for this scheme does not take."""
    if target.get("engine") == "vllm":
        for layout, linears in parts(facts, scheme):
            yield from vllm_kernel_reasons(layout, linears, hardware)
    if target.get("engine") == "onnxruntime":
        for layout, linears in parts(facts, scheme):
            if layout.bits == 4 and layout.group not in ORT_GROUPS:
                sizes = ", ".join(map(str, ORT_GROUPS))
                text = f"ONNX Runtime's 4-bit kernel takes groups of {sizes}, not {layout.group or 'a whole row'}"
                yield Reason(text, f"group_size: {nearest_group(linears, 64)}")


def vllm_kernel_reasons(layout: Layout, linears: Sequence[Linear], hardware: Hardware) -> Iterator[Reason]:
    """Sizes that vLLM's weight-only kernels do not take, for these layers stored so."""
    if layout.activation_bits != 16:
        return
    if hardware.gpus == 0 and layout.bits == 4:
        bad = [
            f"{name} ({out} x {inputs})" for name, out, inputs in fused(linears) if out % CPU_STEP or inputs % CPU_STEP
        ]
        if bad:
            text = f"vLLM's 4-bit kernel on CPU needs sizes that are multiples of {CPU_STEP}: {some(bad)}"
            yield Reason(text, "method: int8")
    elif hardware.gpus and layout.group and layout.group not in KERNEL_GROUPS:
        text = f"vLLM has no kernel for group_size {layout.group} on {hardware.gpu}; it has 32, 64, 128 and -1"
        yield Reason(text, f"group_size: {nearest_group(linears, 128)}")


def fused(linears: Sequence[Linear]) -> list[Linear]:
    """The layers as an engine loads them: fused ones under the first one's name, their outputs added."""
    found: dict[str, Linear] = {}
    for name, out, inputs in linears:
        key = None if ".experts." in name else fused_key(name)
        first = found.get(key or name)
        found[key or name] = (first[0], first[1] + out, inputs) if first else (name, out, inputs)
    return list(found.values())


def some(names: Sequence[str], count: int = 3) -> str:
    """The first of many names."""
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
