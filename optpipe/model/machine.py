"""Whether a candidate fits a machine: its devices and shards, the length of a sequence, memory."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from optpipe.model.job_memory import held_memory, quantize_memory
from optpipe.model.linears import is_head
from optpipe.model.memory import (
    serving_memory,
    setting,
    show,
    usable_memory,
    width,
)
from optpipe.model.reasons import Reason, some
from optpipe.model.schemes import parts
from optpipe.records import Hardware, Json, ModelFacts

ROW_PARALLEL = re.compile(r"(^|\.)(o_proj|out_proj|down_proj|c_proj|dense|dense_4h_to_h|fc2|fc_out|wo|w2)$")
"""Layers whose input is cut between the devices; all others are cut by their output."""

WIDTHS = (1, 2, 4, 8, 16)

SHORTEST = 512
"""Tokens that one sequence must be able to reach, where the target names no max_model_len."""


def parallel_reasons(
    facts: ModelFacts, scheme: Json | None, target: Mapping[str, Any], hardware: Hardware
) -> Iterator[Reason]:
    """More devices than there are, heads or layers that cannot be shared out, groups that a shard would cut."""
    tensor, pipeline, data = (width(target, kind) for kind in ("tensor", "pipeline", "data"))
    needed = tensor * pipeline * data
    if hardware.gpus and needed > hardware.gpus:
        text = f"tensor {tensor} x pipeline {pipeline} x data {data} needs {needed} GPUs; there are {hardware.gpus}"
        yield Reason(text, f"tensor_parallel_size: {fitting_width(facts, scheme, hardware.gpus)}")
        return
    if pipeline > facts.layers:
        text = f"pipeline_parallel_size {pipeline} is more than the model's {facts.layers} layers"
        yield Reason(text, f"pipeline_parallel_size: {facts.layers}")
    if uneven := shard_reason(facts, scheme, tensor):
        yield Reason(uneven, f"tensor_parallel_size: {fitting_width(facts, scheme, tensor)}")


def shard_reason(facts: ModelFacts, scheme: Json | None, tensor: int) -> str | None:
    """Why the model, quantized so, cannot be cut into `tensor` shards; None if it can."""
    if tensor == 1:
        return None
    if facts.heads % tensor:
        return f"tensor_parallel_size {tensor} does not divide the model's {facts.heads} attention heads"
    if facts.kv_heads % tensor and tensor % facts.kv_heads:
        return f"tensor_parallel_size {tensor} does not share out {facts.kv_heads} key-value heads"
    uneven = [
        f"{name} ({inputs if ROW_PARALLEL.search(name) else out})"
        for name, out, inputs in facts.linears
        if not is_head(name) and (inputs if ROW_PARALLEL.search(name) else out) % tensor
    ]
    if uneven:
        return f"tensor_parallel_size {tensor} does not divide {some(uneven)}"
    for layout, linears in parts(facts, scheme):
        cut = [
            f"{name} ({inputs} / {tensor} = {inputs // tensor})"
            for name, _, inputs in linears
            if layout.group and ROW_PARALLEL.search(name) and inputs // tensor % layout.group
        ]
        if cut:
            shards = f"the shards of {some(cut)} at tensor_parallel_size {tensor}"
            return f"group_size {layout.group} does not divide {shards}"
    return None


def fitting_width(facts: ModelFacts, scheme: Json | None, most: int) -> int:
    """The largest number of shards up to `most` that the model can be cut into."""
    return max(n for n in WIDTHS if n <= max(1, most) and not shard_reason(facts, scheme, n))


def widths_that_fit(
    facts: ModelFacts, scheme: Json | None, target: Mapping[str, Any], hardware: Hardware, length: int
) -> tuple[int, ...]:
    """The numbers of shards that the model can be cut into, here, so that one sequence of `length` fits too."""
    beside = width(target, "pipeline") * width(target, "data")
    found = []
    for tensor in WIDTHS:
        if tensor * beside > hardware.gpus or shard_reason(facts, scheme, tensor):
            continue
        needed = serving_memory(facts, scheme, {**target, "tensor_parallel_size": tensor}, hardware, 1, length)
        if needed.total <= usable_memory(hardware, needed.devices):
            found.append(tensor)
    return tuple(found)


# ---------------------------------------------------------------- length and memory


def length_of(facts: ModelFacts, target: Mapping[str, Any]) -> int:
    """Tokens of the one sequence that must fit."""
    return int(setting(target, "max_model_len") or min(SHORTEST, facts.max_positions or SHORTEST))


def length_reasons(facts: ModelFacts, target: Mapping[str, Any]) -> Iterator[Reason]:
    """A length that the model cannot reach."""
    length = length_of(facts, target)
    if facts.max_positions and length > facts.max_positions:
        text = f"max_model_len {length} is more than the model's {facts.max_positions} positions"
        yield Reason(text, f"max_model_len: {facts.max_positions}")


def serving_reasons(
    facts: ModelFacts, scheme: Json | None, target: Mapping[str, Any], hardware: Hardware
) -> Iterator[Reason]:
    """An engine that does not fit with one sequence."""
    length = length_of(facts, target)
    needed = serving_memory(facts, scheme, target, hardware, 1, length)
    usable = usable_memory(hardware, needed.devices)
    if needed.total <= usable:
        return
    where = f"{needed.devices} x {hardware.gpu}" if hardware.gpus else hardware.name
    text = f"serving needs {show(needed.total)} ({needed.estimated().how}); {where} has {show(usable)} to give (85 %)"
    wide = next(iter(widths_that_fit(facts, scheme, target, hardware, length)), None)
    more = "fewer bits, a smaller KV cache, or a machine with more memory"
    yield Reason(text, f"engine_args: {{tensor_parallel_size: {wide}}}" if wide and wide > needed.devices else more)


def quantizing_reasons(
    facts: ModelFacts, scheme: Json, hardware: Hardware, rows: int, row_tokens: int
) -> Iterator[Reason]:
    """A quantize job that holds more than all of the machine's memory; it works there, also beside GPUs."""
    held = held_memory(facts, scheme, rows, row_tokens)
    if held > hardware.memory_bytes:
        peak = quantize_memory(facts, scheme, rows, row_tokens)
        text = f"quantizing holds {show(held)} beside the model in its file (at its peak: {peak.how})"
        text += f"; {hardware.name} has {show(hardware.memory_bytes)}"
        yield Reason(text, "a machine with more memory, or a model that is quantized already")
