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
    PLAIN_BYTES,
    linear_bytes,
    parts,
    selected,
    untied_bytes,
    weight_bytes,
)
from optpipe.records import Estimated, Hardware, Json, ModelFacts

GIB = 1 << 30
TOKENIZER_BYTES = 72
"""Bytes of tokenizer files for each entry of the vocabulary: 3.53 MB for SmolLM2's 49,152, nearly all of it
`tokenizer.json`. A vocabulary of another kind may be half or twice that."""

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

RUNTIME = {"cpu": 1_985_000_000, "gpu": 1 * GIB}
"""What an engine takes beside weights, KV and activations: on CPU three processes with torch in each, their
resident memory added up (vLLM 0.32, eager: server 700 MB, core 588 MB, worker 697 MB beside weights and KV; shared
pages count in each, the sum of their shares is 320 MB less), on a GPU the CUDA context and the library's buffers."""

ORT_RUNTIME, ORT_BYTES = 415_000_000, 4
"""ONNX Runtime's own part: what is left of the peaks that were seen with four requests at once (SmolLM2-135M, one run
each: 1.02 GB in float32, 715 MB in int8) beside weights, KV and logits. Bytes of a weight that is not quantized: its
graphs are in float32."""

CPU_KV_CACHE = 1 * GIB
"""KV cache of an engine on CPU where the target names none: not what the load needs, but fixed."""

LOGIT_COPIES = 2
"""float32 copies of the logits of a block whose log-probabilities are asked for: 102 and 111 MB seen for 256 tokens
over 49,152 entries."""

CPU_PREPACKED = {16: 0.46, 8: 2.0, 4: 1.0}
"""Copies in the order that a CPU's kernels read, of the linear layers' bytes by the bits of a weight: 97 MB of 212 seen
in bf16, 209 of 106 for INT8 W8A8; assumed for 4 bits."""

BATCHED_TOKENS = 2048
"""Tokens that vLLM computes in one step where nobody sets max_num_batched_tokens."""

OTHER_WEIGHTS = ("qweight", "qzeros", "scales", "g_idx", "input_global_scale")
"""Tensors of a quantized layer whose names don't begin with `weight`, as other formats and NVFP4 have them."""

SPARE = 0.15
"""Share of a machine's memory that a plan leaves free (the articles' budget is 85 %)."""


# ---------------------------------------------------------------- checkpoints


def checkpoint_bytes(facts: ModelFacts, scheme: Json | None) -> Estimated:
    """Bytes of the checkpoint's folder: weights, and the tokenizer beside them."""
    beside = TOKENIZER_BYTES * facts.vocabulary
    if scheme is None:
        how = f"the base's own tensors, {show(beside)} of tokenizer"
        return Estimated(facts.weight_bytes + beside, "bytes", how)
    each = " and ".join(f"{layout.label} for {len(linears)}" for layout, linears in parts(facts, scheme))
    how = f"{each or 'no layout for any'} linear layers, 2 bytes for every other weight, {show(beside)} of tokenizer"
    if more := untied_bytes(facts, scheme):
        how += f"; {show(more)} of it because rotations make two tables of tied embeddings"
    return Estimated(weight_bytes(facts, scheme) + beside, "bytes", how)


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
        if not is_other_part(module) and (kind.startswith("weight") or kind in OTHER_WEIGHTS):
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
    scored: int = 0,
) -> ServingMemory:
    """Memory of one engine; a KV cache of fixed size, which is per device, wins over what the load needs.

    `scored`: tokens of the longest block whose log-probabilities the engine is asked for at once.
    Tensor parallelism keeps a copy of the KV heads on each device where there are fewer heads than devices.
    """
    if target.get("engine") == "onnxruntime":
        return ort_memory(facts, scheme, target, sequences, length)
    cpu = hardware.gpus == 0
    tensor, pipeline = (1, 1) if cpu else (width(target, "tensor"), width(target, "pipeline"))
    devices = tensor * pipeline
    fixed = setting(target, "kv_cache_memory_bytes") or (CPU_KV_CACHE if cpu else None)
    copies = max(1, tensor // max(1, facts.kv_heads))
    kv = int(fixed) * devices if fixed else sequences * length * kv_bytes_per_token(facts, target) * copies
    longest = int(setting(target, "max_model_len") or 0)
    batched = int(setting(target, "max_num_batched_tokens") or max(BATCHED_TOKENS, longest))
    widest = max(facts.intermediate_size * 2 + facts.hidden_size, 3 * facts.heads * facts.head_dim)
    logits = 4 * facts.vocabulary * max(sequences, LOGIT_COPIES * min(scored, batched))
    activations = 2 * batched * widest + logits
    weights = weight_bytes(facts, scheme)
    weights += prepacked(facts, scheme) if cpu else 0
    runtime = RUNTIME["cpu" if cpu else "gpu"] * devices
    return ServingMemory(weights, kv, activations, runtime, devices)


def ort_memory(
    facts: ModelFacts, scheme: Json | None, target: Mapping[str, Any], sequences: int, length: int
) -> ServingMemory:
    """ONNX Runtime GenAI: everything that is not quantized in float32, a KV cache for each request at once."""
    quantized = sum(out * ins for _, linears in parts(facts, scheme) for _, out, ins in linears) if scheme else 0
    codes = sum(linear_bytes(layout, out, ins) for layout, linears in parts(facts, scheme) for _, out, ins in linears)
    every = sum(out * ins for _, out, ins in facts.linears if scheme is None and target.get("precision") != "fp32")
    if every:
        quantized, codes = every, int(every * {"int8": 1.125, "int4": 0.625}.get(str(target.get("precision")), 4.0))
    weights = codes + ORT_BYTES * (facts.parameters - quantized)
    kv = sequences * length * 2 * facts.layers * facts.kv_heads * facts.head_dim * ORT_BYTES
    return ServingMemory(weights, kv, ORT_BYTES * facts.vocabulary * length, ORT_RUNTIME, 1)


def prepacked(facts: ModelFacts, scheme: Json | None) -> int:
    """Bytes that a CPU's kernels hold beside the weights as they were loaded."""
    found, quantized = 0.0, set()
    for layout, linears in parts(facts, scheme):
        quantized |= {name for name, _, _ in linears}
        found += CPU_PREPACKED.get(layout.bits, 1.0) * sum(linear_bytes(layout, out, ins) for _, out, ins in linears)
    plain = sum(out * inputs for name, out, inputs in facts.linears if name not in quantized)
    return int(found + CPU_PREPACKED[16] * PLAIN_BYTES * plain)


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


def usable_memory(hardware: Hardware, devices: int = 1) -> int:
    """Bytes that a plan may fill: of so many GPUs together, or of the machine."""
    total = devices * hardware.gpu_memory_bytes if hardware.gpus else hardware.memory_bytes
    return int(total * (1 - SPARE))


def show(count: float) -> str:
    """Bytes as a person reads them: 113 MB, 1.2 GB."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.0f} B"
