"""What a GGUF file's metadata and tensors are called in a Hugging Face folder."""

from __future__ import annotations

import dataclasses
import re
import struct
from typing import Any

from optpipe.errors import InputError, did_you_mean
from optpipe.model.gguf import Gguf
from optpipe.records import Json, TensorFact

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "starcoder2": "Starcoder2ForCausalLM",
    "stablelm": "StableLmForCausalLM",
}
MODEL_TYPES = {"gemma3": "gemma3_text"}

TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
LAYER = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
NORMS_OF_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
DIGITS = 6
"""A decimal that needs more digits was computed, not written by a person, and stays as it is."""
BLOCK = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")


def hf_config(gguf: Gguf) -> Json:
    """The keys of config.json that facts and plans need, from the metadata alone."""
    if gguf.architecture not in ARCHITECTURES:
        raise InputError(
            f"architecture {gguf.architecture!r} in a GGUF file is not one that is converted",
            place=str(gguf.path),
            hint=did_you_mean(gguf.architecture, list(ARCHITECTURES)),
        )
    heads = _positive(gguf, "attention.head_count")
    hidden = _positive(gguf, "embedding_length")
    vocabulary = next((t.shape[0] for t in gguf.tensors if t.name == "token_embd.weight"), 0)
    keys = {
        "architectures": [ARCHITECTURES[gguf.architecture]],
        "model_type": MODEL_TYPES.get(gguf.architecture, gguf.architecture),
        "num_hidden_layers": _positive(gguf, "block_count"),
        "hidden_size": hidden,
        "intermediate_size": _positive(gguf, "feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.get("attention.head_count_kv") or heads,
        "head_dim": gguf.get("attention.key_length") or hidden // heads,
        "max_position_embeddings": _positive(gguf, "context_length"),
        "vocab_size": vocabulary,
        "rms_norm_eps": shortest(gguf.get("attention.layer_norm_rms_epsilon")),
        "rope_theta": shortest(gguf.get("rope.freq_base")),
        "tie_word_embeddings": all(t.name != "output.weight" for t in gguf.tensors),
        "dtype": "bfloat16",
    }
    return {key: value for key, value in keys.items() if value is not None}


def _positive(gguf: Gguf, key: str) -> int:
    value = gguf.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        what = f"{gguf.architecture}.{key} is {value!r}, expected a positive number"
        raise InputError(what, place=str(gguf.path), hint="download the file again, or convert the model anew")
    return value


def hf_tensors(gguf: Gguf) -> tuple[TensorFact, ...]:
    """The tensors under the names they get in the converted folder; one not known keeps its own."""
    gemma = gguf.architecture.startswith("gemma")
    return tuple(dataclasses.replace(t, name=hf_name(t.name, gemma=gemma)) for t in gguf.tensors)


def hf_name(name: str, *, gemma: bool = False) -> str:
    """`blk.3.attn_q.weight` -> `model.layers.3.self_attn.q_proj.weight`."""
    if found := BLOCK.fullmatch(name):
        number, part, kind = found.groups()
        module = (NORMS_OF_GEMMA.get(part) if gemma else None) or LAYER.get(part)
        return f"model.layers.{number}.{module}.{kind}" if module else name
    part, _, kind = name.rpartition(".")
    return f"{TOP[part]}.{kind}" if part in TOP else name


def shortest(value: Any) -> Any:
    """The short decimal of a number that was stored as float32 (9.9999997e-06 -> 1e-05); others unchanged.

    Writers of GGUF round the original configuration's numbers to float32; what a person wrote there has
    a few digits and the same float32.
    """
    if not isinstance(value, float) or value != value or value in (float("inf"), float("-inf")):
        return value
    single = _single(value)
    if single != value:
        return value
    decimals = (float(f"{value:.{digits}g}") for digits in range(1, DIGITS + 1))
    return next((decimal for decimal in decimals if _single(decimal) == single), value)


def _single(value: float) -> float | None:
    """`value` as float32; None where it is too large for one."""
    try:
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    except OverflowError:
        return None
