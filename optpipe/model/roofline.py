"""Bounds that no engine beats: bytes over bandwidth for decoding, operations over peak for prefill."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optpipe.model.hardware import peaks
from optpipe.model.hardware_table import Peaks
from optpipe.model.memory import kv_bytes_per_token, show
from optpipe.model.schemes import data_free, layout_of, weight_bytes
from optpipe.records import Estimated, Hardware, Json, ModelFacts

CALIBRATED = 14.0
"""Floating point operations per weight and calibration token of GPTQ: two forwards, Hessian, error feedback."""

TRIED = 3.3
"""The same of AWQ for each scaling that it tries: SmolLM2-135M, 4096 tokens, grid 10, 207 s where GPTQ took 157 s over
8192 tokens."""

ATTAINABLE = (0.6, 0.7)
"""Share of the bound that well-tuned engines reach, by the practitioners' rule of thumb."""


def step_bytes(facts: ModelFacts, scheme: Json | None) -> int:
    """Weights that one decoding step reads: all but an untied input embedding, of which it reads one row."""
    embedding = 0 if facts.tied_embeddings else 2 * facts.vocabulary * facts.hidden_size
    return max(0, weight_bytes(facts, scheme) - embedding)


def decode_bound(
    facts: ModelFacts,
    scheme: Json | None,
    target: Mapping[str, Any],
    hardware: Hardware,
    sequences: int,
    length: int,
) -> Estimated | None:
    """Output tokens a second at most, decoding `sequences` at once with `length` tokens each in the cache."""
    peak = peaks(hardware)
    if peak is None:
        return None
    read = step_bytes(facts, scheme) + sequences * length * kv_bytes_per_token(facts, target)
    by_bytes = sequences * peak.bandwidth / read
    by_operations = operations(peak, scheme) / (2 * facts.parameters)
    how = f"{show(read)} a step over {show(peak.bandwidth)}/s ({peak.source})"
    if by_operations < by_bytes:
        how = f"2 operations a weight and token over {operations(peak, scheme):.3g}/s ({peak.source})"
    return Estimated(min(by_bytes, by_operations), "tokens/s", how)


def prefill_bound(facts: ModelFacts, scheme: Json | None, hardware: Hardware, tokens: int) -> Estimated | None:
    """Milliseconds at least until a prompt of `tokens` tokens is read: the floor of TTFT."""
    peak = peaks(hardware)
    if peak is None:
        return None
    attention = 2 * 2 * facts.layers * facts.heads * facts.head_dim * tokens * tokens / 2
    work = 2 * facts.parameters * tokens + attention
    rate = operations(peak, scheme)
    seconds = max(work / rate, step_bytes(facts, scheme) / peak.bandwidth)
    return Estimated(1000 * seconds, "ms", f"{work:.3g} operations over {rate:.3g}/s ({peak.source})")


def operations(peak: Peaks, scheme: Json | None) -> float:
    """Peak of the number type that the scheme computes in; weight-only schemes compute in bf16.

    4-bit floats run at twice FP8's rate where there are kernels for them; of a mixed scheme the faster part.
    """
    if scheme is None:
        return peak.bf16
    layout = layout_of(scheme)
    if layout.activation_bits == 4:
        return 2 * peak.fp8 or peak.bf16
    if "int8" in scheme:
        return max(peak.int8, peak.bf16)
    if layout.activation_bits == 16:
        return peak.bf16
    return (peak.fp8 if layout.kind == "float" else peak.int8) or peak.bf16


def calibration_operations(scheme: Json, samples: int, length: int) -> float:
    """Floating point operations per weight that quantizing takes over `samples` rows of `length` tokens."""
    method, tokens = scheme.get("method"), samples * length
    if data_free(scheme):
        return 0.0
    if method == "autoround":  # forward and backward of each step, then the rows through what was learned
        steps = int(scheme["iterations"]) * min(int(scheme["batch"]), samples)
        return 6.0 * (steps * length + tokens)
    if method == "awq":  # each scaling is tried on a forward pass of the layers that it concerns
        return (4.0 + TRIED * int(scheme.get("grid", 20))) * min(tokens, int(scheme.get("max_tokens", 8192)))
    searched = min(tokens, int(scheme["max_tokens"])) if method == "awq-gptq" else 0
    return CALIBRATED * tokens + (4.0 + TRIED * int(scheme.get("grid", 20))) * searched
