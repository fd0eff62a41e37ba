"""Reads config.json: the text model's shape under the many names that architectures give its sizes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpipe.errors import InputError
from optpipe.records import Json

LFS_POINTER = "version https://git-lfs"

WRAPPED = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where multimodal wrappers keep the text model's configuration."""

NAMES: dict[str, tuple[str, ...]] = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim"),
    "intermediate_size": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "d_ff", "hidden_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "kv_heads": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num"),
    "head_dim": ("head_dim", "kv_channels", "d_kv"),
    "vocabulary": ("vocab_size", "padded_vocab_size"),
    "max_positions": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length"),
    "experts": ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
}

LARGEST = 1 << 40
MOST = dict.fromkeys((*NAMES["layers"], *NAMES["experts"]), 10_000)
"""What a size may be at most: every layer and expert is looked for by its name."""

DTYPES = {
    **{"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8},
    **{"float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1, "uint8": 1},
}
"""Bytes of one element, by torch's name."""


@dataclass(frozen=True)
class Shape:
    """The text model's sizes; 0 where the configuration names none."""

    architecture: str
    model_type: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    experts: int
    kv_values_per_token: int
    """Elements that the KV cache keeps per token over all layers."""
    tied: bool | None
    """None where the configuration does not say: then the weights do (is there a head?)."""
    dtype: str | None
    wrapped: bool
    """The text model is one part of a multimodal one."""


def read_config(folder: Path) -> Json:
    """config.json of a model folder; InputError where there is none or it is no mapping."""
    return read_mapping(folder / "config.json", "a model folder holds config.json, weights and a tokenizer")


def read_mapping(path: Path, hint: str) -> Json:
    """A JSON file that holds a mapping."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        if text.startswith(LFS_POINTER):
            pull = "run `git lfs pull` in the model's folder"
            raise InputError("this is a Git LFS pointer, not the file", place=str(path), hint=pull)
        value = json.loads(text)
    except FileNotFoundError:
        raise InputError("there is no such file", place=str(path), hint=hint) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(path), hint=hint) from None
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number of 5000 digits
        raise InputError(f"is not JSON: {error}", place=str(path), hint="fetch the file again") from None
    if not isinstance(value, dict):
        raise InputError(f"is a {type(value).__name__}, not a mapping", place=str(path), hint=hint)
    return value


def shape_of(config: Mapping[str, Any], place: str) -> Shape:
    """The shape that a configuration describes; InputError for a size that is missing or no number."""
    text = text_config(config)
    sizes = {name: first_size(text, names, place) for name, names in NAMES.items()}
    for name in ("layers", "hidden_size", "vocabulary"):
        if sizes[name] < 1:
            known = " or ".join(NAMES[name][:2])
            raise InputError(
                f"names no {name.replace('_', ' ')} ({known})",
                place=place,
                hint="the configuration of a language model is expected, not of an encoder or vision model",
            )
    hidden, heads = sizes["hidden_size"], sizes["heads"] or 1
    kv_heads = sizes["kv_heads"] or (1 if text.get("multi_query") is True else heads)
    head_dim = sizes["head_dim"] or hidden // heads
    return Shape(
        architecture=architecture(config),
        model_type=str(text.get("model_type") or config.get("model_type") or "unknown"),
        layers=sizes["layers"],
        hidden_size=hidden,
        intermediate_size=sizes["intermediate_size"] or 4 * hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=sizes["vocabulary"],
        max_positions=sizes["max_positions"],
        experts=sizes["experts"],
        kv_values_per_token=kv_values(text, sizes["layers"], 2 * kv_heads * head_dim),
        tied=tied(config, text),
        dtype=dtype_of(config, text),
        wrapped=text is not config,
    )


def text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The text model's part of a multimodal configuration, else the configuration itself."""
    for key in WRAPPED:
        inner = config.get(key)
        if isinstance(inner, dict) and inner:
            return text_config(inner)
    return config


def architecture(config: Mapping[str, Any]) -> str:
    names = config.get("architectures")
    return str(names[0]) if isinstance(names, list) and names else "unknown"


def first_size(config: Mapping[str, Any], names: tuple[str, ...], place: str) -> int:
    """The first of the keys that is there and not null; 0 if none is."""
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        most = MOST.get(name, LARGEST)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
            raise InputError(
                f"{name}: {value!r:.80} is not a size",
                place=place,
                hint=f"a whole number from 1 to {most} is expected",
            )
        return value
    return 0


def kv_values(text: Mapping[str, Any], layers: int, per_layer: int) -> int:
    """Elements of the KV cache per token: latent attention keeps one vector a layer, linear layers none."""
    rank, rope = text.get("kv_lora_rank"), text.get("qk_rope_head_dim")
    if isinstance(rank, int) and isinstance(rope, int):
        return layers * (rank + rope)
    kinds = text.get("layer_types")
    if isinstance(kinds, list) and any("attention" in str(kind) for kind in kinds):
        layers = sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)
    return layers * per_layer


def tied(config: Mapping[str, Any], text: Mapping[str, Any]) -> bool | None:
    for part in (text, config):
        if isinstance(part.get("tie_word_embeddings"), bool):
            return bool(part["tie_word_embeddings"])
    return None


def dtype_of(config: Mapping[str, Any], text: Mapping[str, Any]) -> str | None:
    for part in (text, config):
        value = part.get("dtype") or part.get("torch_dtype")
        if isinstance(value, str):
            return value.removeprefix("torch.")
    return None


# ---------------------------------------------------------------- quantization


def quantization_of(config: Mapping[str, Any]) -> str | None:
    """How the weights were quantized, in words such as `gptq 4-bit g128`; None if they were not."""
    found = config.get("quantization_config") or text_config(config).get("quantization_config")
    if not isinstance(found, dict):
        return None
    method = str(found.get("quant_method") or found.get("quant_algo") or "").strip()[:60] or "unknown method"
    if method == "bitsandbytes":
        return f"{method} {8 if found.get('load_in_8bit') else 4}-bit"
    bits = found.get("bits") or found.get("w_bit")
    group = found.get("group_size") or found.get("q_group_size")
    kind = KIND_OF_ALGORITHM.get(str(found.get("quant_algo")).upper(), "")
    if not bits and kind.startswith("w4"):
        bits = 4  # ModelOpt says it by the algorithm's name alone
    if method == "compressed-tensors":
        bits, group = compressed_tensors_bits(found)
        kind = compressed_tensors_kind(found)
    words = [
        method,
        f"{bits}-bit" if bits else "",
        f"g{group}" if isinstance(group, int) and group > 0 else "",
        kind if kind != f"w{bits}a16" else "",
        "asymmetric" if method == "gptq" and found.get("sym") is False else "",
    ]
    return " ".join(word for word in words if word)


KIND_OF_ALGORITHM = {
    **{"FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8", "FP8_PB_WO": "fp8", "NVFP4": "nvfp4"},
    **{"W4A16_AWQ": "w4a16", "W4A8_AWQ": "w4a8", "MIXED_PRECISION": "mixed"},
    **{"INT8_SQ": "int8", "W8A8_SQ_PER_CHANNEL": "int8"},
}
"""ModelOpt's names of algorithms, as words of schemes.KINDS."""


def compressed_tensors_kind(found: Mapping[str, Any]) -> str:
    """What the groups of a compressed-tensors configuration make of layers, as a word of schemes.KINDS."""
    groups = found.get("config_groups")
    kinds = {group_kind(g) for g in groups.values()} if isinstance(groups, dict) else set()
    for prefix in ("nvfp4", "mxfp4"):
        if str(found.get("format")).startswith(prefix):
            return prefix
    return "mixed" if len(kinds) > 1 else next(iter(kinds), "")


def group_kind(group: Any) -> str:
    """`w4a16`, `int8`, `fp8`, `w4a8` of one group."""
    parts = group if isinstance(group, dict) else {}
    weights, activations = parts.get("weights"), parts.get("input_activations")
    if not isinstance(weights, dict):
        return ""
    bits = weights.get("num_bits")
    if not isinstance(activations, dict):
        return f"w{bits}a16" if weights.get("type", "int") == "int" else f"float{bits}-weight-only"
    if bits == 8 and activations.get("num_bits") == 8:
        return "fp8" if weights.get("type") == "float" else "int8"
    return f"w{bits}a{activations.get('num_bits')}"


def compressed_tensors_bits(found: Mapping[str, Any]) -> tuple[Any, Any]:
    """Bits and group size of the first group of a compressed-tensors configuration."""
    groups = found.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    return (weights.get("num_bits"), weights.get("group_size")) if isinstance(weights, dict) else (None, None)
