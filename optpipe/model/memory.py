"""Bytes of checkpoints, of quantizing and of serving: pure arithmetic on facts, schemes and settings.

Nothing here is measured: every figure is an `Estimated` that says how it was computed. Only
`measured_bits_per_weight` reads a real checkpoint's headers, by the same definition as the estimate.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpipe.errors import InputError
from optpipe.model.config import DTYPES
from optpipe.model.folder import tensors_of_folder
from optpipe.model.linears import is_other_part, split_name
from optpipe.model.schemes import (
    DATA_FREE,
    PLAIN_BYTES,
    linear_bytes,
    parts,
    selected,
    untied_bytes,
    weight_bytes,
)
from optpipe.records import Estimated, Hardware, Json, ModelFacts

GIB = 1 << 30
KV_BYTES = {
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "int8": 1,
    "int8_per_token_head": 1,
    "bfloat16": 2,
    "float16": 2,
}
"""Bytes of one element of the KV cache by vLLM's `kv_cache_dtype`; `auto` is the model's own dtype."""

RUNTIME = {"cpu": 1_800_000_000, "gpu": 1 * GIB}
"""What an engine takes beside weights, KV and activations: on CPU three processes with torch in each (1.4 GB
seen for eager vLLM 0.32 with a tiny model), on a GPU the CUDA context and the library's own buffers."""

CPU_KV_CACHE = 1 * GIB
"""KV cache of an engine on CPU where the target names none: not what the load needs, but fixed."""

QUANTIZER_RUNTIME = 600_000_000
"""Resident size of torch, transformers and llm-compressor 0.14 with a model of no size (0.50 GB seen)."""

BATCHED_TOKENS = 2048
"""Tokens that vLLM computes in one step where nobody sets max_num_batched_tokens."""

OTHER_WEIGHTS = ("qweight", "qzeros", "scales", "g_idx", "input_global_scale")
"""Tensors of a quantized layer whose names don't begin with `weight`, as other formats and NVFP4 have them."""

SPARE = 0.15
"""Share of a machine's memory that a plan leaves free (the articles' budget is 85 %)."""


# ---------------------------------------------------------------- checkpoints


def checkpoint_bytes(facts: ModelFacts, scheme: Json | None) -> Estimated:
    """Bytes of the checkpoint's weights."""
    if scheme is None:
        return Estimated(facts.weight_bytes, "bytes", "the base's own tensors")
    each = " and ".join(f"{layout.label} for {len(linears)}" for layout, linears in parts(facts, scheme))
    how = f"{each or 'no layout for any'} linear layers, 2 bytes for every other weight"
    if more := untied_bytes(facts, scheme):
        how += f"; {show(more)} of it because rotations make two tables of tied embeddings"
    return Estimated(weight_bytes(facts, scheme), "bytes", how)


def bits_per_weight(facts: ModelFacts, scheme: Json | None) -> Estimated:
    """Bits of all tensors that represent the layers that are to be quantized, per weight of theirs."""
    if scheme is None:
        return Estimated(8 * DTYPES.get(facts.dtype, 2), "bits", f"unquantized {facts.dtype}")
    weights = bits = 0
    for layout, linears in parts(facts, scheme):
        weights += sum(out * inputs for _, out, inputs in linears)
        bits += 8 * sum(linear_bytes(layout, out, inputs) for _, out, inputs in linears)
    if not weights:
        return Estimated(8 * PLAIN_BYTES, "bits", "the scheme selects no layer")
    each = ", ".join(f"{len(linears)} of {layout.label}" for layout, linears in parts(facts, scheme))
    return Estimated(bits / weights, "bits", f"weights, scales and zero points of linear layers: {each}")


def measured_bits_per_weight(folder: Path, facts: ModelFacts, scheme: Json | None) -> float:
    """The same figure from the headers of a real checkpoint: 16 where weights were copied unquantized.

    For the base (no scheme) it covers every linear layer. InputError for a layer that is not there.
    """
    held: dict[str, int] = {}
    for fact in tensors_of_folder(folder):
        module, kind = split_name(fact.name)
        if not is_other_part(module) and (
            kind.startswith("weight") or kind in OTHER_WEIGHTS
        ):
            held[tail(module)] = held.get(tail(module), 0) + fact.nbytes
    linears = facts.linears if scheme is None else selected(facts, scheme)
    missing = [name for name, _, _ in linears if tail(name) not in held]
    if missing:
        hint = "the checkpoint is not one of this base, or was not written whole"
        raise InputError(
            f"holds no weight of {', '.join(missing[:3])} ({len(missing)} layers)",
            place=str(folder),
            hint=hint,
        )
    weights = sum(out * inputs for _, out, inputs in linears)
    return 8 * sum(held[tail(name)] for name, _, _ in linears) / weights if weights else 8.0 * PLAIN_BYTES


def tail(module: str) -> str:
    """The name from the layer list on (`layers.3.mlp.up_proj`): wrappers change what stands before."""
    found = re.search(r"(?:^|\.)([^.\d]\w*\.\d+\..*)$", module)
    return found.group(1) if found else module.rpartition(".")[2]


# ---------------------------------------------------------------- quantizing


def quantize_memory(facts: ModelFacts, scheme: Json, samples: int, length: int) -> Estimated:
    """Peak memory of a quantize job over `samples` calibration rows of `length` tokens.

    The whole model in bf16 and its packed copy; with calibration the hidden states of every row before and
    after a layer, and one layer's work: float32 Hessians [in, in] for GPTQ, float32 copies for AWQ. Four runs
    on a model of 113 M parameters took 0.72 to 0.91 of this.
    """
    method = str(scheme.get("method"))
    model = facts.parameters * PLAIN_BYTES + weight_bytes(facts, scheme)
    states = work = 0
    if method not in DATA_FREE:
        states = 2 * samples * length * facts.hidden_size * 2
        work = layer_work(facts, method)
    how = f"model and packed copy {show(model)}, hidden states {show(states)}, a layer's work {show(work)}"
    return Estimated(model + states + work + QUANTIZER_RUNTIME, "bytes", f"{how}, libraries")


def layer_work(facts: ModelFacts, method: str) -> int:
    """Float32 copies where scales are searched, with gradients and the best so far where rounding is learned."""
    copies = {"nvfp4": 0, "awq": 1, "autoround": 3}.get(method)
    return hessian_bytes(facts) if copies is None else copies * layer_copies(facts)


def hessian_bytes(facts: ModelFacts) -> int:
    """float32 Hessians of one layer, and three more of the largest while it is inverted."""
    sizes = [inputs for _, _, inputs in first_layer(facts)] or [facts.hidden_size]
    return 4 * (sum(size * size for size in sizes) + 3 * max(sizes) ** 2)


def layer_copies(facts: ModelFacts) -> int:
    """Two float32 copies of one layer's weights."""
    return 8 * sum(out * inputs for _, out, inputs in first_layer(facts))


def first_layer(facts: ModelFacts) -> list[tuple[str, int, int]]:
    layer = re.compile(r"(?:^|\.)\w+\.0\.")
    return [linear for linear in facts.linears if layer.search(linear[0])]


# ---------------------------------------------------------------- serving


@dataclass(frozen=True)
class ServingMemory:
    """What an engine needs to serve `sequences` of `length` tokens at once, in bytes over all its devices."""

    weights: int
    kv: int
    activations: int
    runtime: int
    devices: int = 1

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.activations + self.runtime

    def estimated(self) -> Estimated:
        parts = ("weights", "kv", "activations", "runtime")
        how = ", ".join(f"{part} {show(getattr(self, part))}" for part in parts)
        how += f", on {self.devices} GPUs" if self.devices > 1 else ""
        return Estimated(self.total, "bytes", how)


def serving_memory(
    facts: ModelFacts,
    scheme: Json | None,
    target: Mapping[str, Any],
    hardware: Hardware,
    sequences: int,
    length: int,
) -> ServingMemory:
    """Memory of one engine; a KV cache of fixed size, which is per device, wins over what the load needs.

    Tensor parallelism keeps a copy of the KV heads on each device where there are fewer heads than devices.
    """
    cpu = hardware.gpus == 0
    tensor, pipeline = (1, 1) if cpu else (width(target, "tensor"), width(target, "pipeline"))
    devices = tensor * pipeline
    fixed = setting(target, "kv_cache_memory_bytes") or (CPU_KV_CACHE if cpu else None)
    copies = max(1, tensor // max(1, facts.kv_heads))
    kv = int(fixed) * devices if fixed else sequences * length * kv_bytes_per_token(facts, target) * copies
    longest = int(setting(target, "max_model_len") or 0)
    batched = int(setting(target, "max_num_batched_tokens") or max(BATCHED_TOKENS, longest))
    widest = max(facts.intermediate_size * 2 + facts.hidden_size, 3 * facts.heads * facts.head_dim)
    activations = 2 * batched * widest + 4 * sequences * facts.vocabulary
    runtime = RUNTIME["cpu" if cpu else "gpu"] * devices
    return ServingMemory(weight_bytes(facts, scheme), kv, activations, runtime, devices)


def width(target: Mapping[str, Any], kind: str) -> int:
    """How many devices a target's `tensor`, `pipeline` or `data` parallelism takes."""
    found = setting(target, f"{kind}_parallel_size")
    return found if isinstance(found, int) and found > 0 else 1


def setting(target: Mapping[str, Any], name: str) -> Any:
    """A setting of a target, from its own keys or from `engine_args` in either spelling; None if not set."""
    more = target.get("engine_args") or {}
    for value in (target.get(name), more.get(name), more.get(name.replace("_", "-"))):
        if value is not None:
            return value
    return None


def kv_bytes_per_token(facts: ModelFacts, target: Mapping[str, Any]) -> int:
    """2 * layers * kv_heads * head_dim * bytes, with the target's KV dtype."""
    kind = str(setting(target, "kv_cache_dtype") or "auto")
    native = max(2, DTYPES.get(facts.dtype, 2))
    return facts.kv_bytes_per_token * KV_BYTES.get(kind, native) // native


def kv_capacity(facts: ModelFacts, target: Mapping[str, Any], free_bytes: int, length: int) -> tuple[int, int]:
    """(tokens, sequences of `length` tokens) that fit in `free_bytes` of KV cache."""
    tokens = max(0, free_bytes) // max(1, kv_bytes_per_token(facts, target))
    return tokens, tokens // max(1, length)


def usable_memory(hardware: Hardware, devices: int = 1) -> int:
    """Bytes that a plan may fill: of so many GPUs together, or of the machine."""
    total = devices * hardware.gpu_memory_bytes if hardware.gpus else hardware.memory_bytes
    return int(total * (1 - SPARE))


def disk_bytes(facts: ModelFacts, scheme: Json | None) -> Estimated:
    """Disk that a candidate takes while it is built: its checkpoint, and once more while it is written."""
    if scheme is None:
        return Estimated(0, "bytes", "the base is used where it lies")
    return Estimated(2 * weight_bytes(facts, scheme), "bytes", "the checkpoint, and its copy in the bundle")


def show(count: float) -> str:
    """Bytes as a person reads them: 113 MB, 1.2 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
