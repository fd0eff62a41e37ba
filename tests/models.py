"""Makes small random model folders that transformers and vLLM load: numpy and a few lines, no torch.

The shapes are the smallest that the engines accept: head size 32, every size a multiple of 32.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Tensors = dict[str, Array]

NUMPY_CODES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
TEMPLATE = (
    "{% for message in messages %}<|bos|>{{ message['role'] }}\n{{ message['content'] }}<|eos|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bos|>assistant\n{% endif %}"
)


# ---------------------------------------------------------------- safetensors


def bf16(values: Array) -> Array:
    """float32 -> the raw 16 bits of bfloat16, rounded to nearest even; NaN stays NaN."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16)


def write_safetensors(path: Path, tensors: Mapping[str, Array], codes: Mapping[str, str] | None = None) -> Path:
    """Write arrays as safetensors; `codes` names the dtype of raw ones (uint16 is BF16 by default)."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, array in tensors.items():
        code = (codes or {}).get(name) or NUMPY_CODES.get(array.dtype.name, "BF16")
        header[name] = {
            "dtype": code,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).tobytes())
    return path


def write_shards(folder: Path, tensors: Mapping[str, Array], shards: int = 1) -> None:
    """model.safetensors, or numbered shards with their index."""
    if shards == 1:
        write_safetensors(folder / "model.safetensors", tensors)
        return
    names = list(tensors)
    weight_map = {}
    for k in range(shards):
        file = f"model-{k + 1:05d}-of-{shards:05d}.safetensors"
        part = names[k * len(names) // shards : (k + 1) * len(names) // shards]
        write_safetensors(folder / file, {name: tensors[name] for name in part})
        weight_map.update(dict.fromkeys(part, file))
    total = sum(array.nbytes for array in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False), encoding="utf-8")


def edit_json(path: Path, **changes: Any) -> None:
    """Set keys of a JSON file; None removes one."""
    value = json.loads(path.read_text(encoding="utf-8")) | changes
    write_json(path, {key: item for key, item in value.items() if item is not None})


# ---------------------------------------------------------------- tokenizer


def byte_letters() -> list[str]:
    """The 256 printable letters that stand for bytes in byte-level BPE, in byte order."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(other)) for byte in range(256)]


def tokenizer_json(vocabulary: int) -> dict[str, Any]:
    """A byte-level BPE of `vocabulary` tokens: 3 special, 256 bytes, merges for the rest."""
    pairs = (
        "Ġ t|h e|Ġ a|i n|r e|o n|Ġt he|e r|Ġ s|a t|Ġ w|Ġ o|e n|Ġ c|i s|o r|Ġ in|e s|Ġ b|a n|e d|Ġ f|a l|Ġ p|o u|in g"
    )
    merges = [tuple(pair.split(" ")) for pair in pairs.split("|")][: vocabulary - 259]
    tokens = [BOS, EOS, PAD, *byte_letters(), *(a + b for a, b in merges)]
    added = [
        {"id": k, "content": token, "special": True, "single_word": False}
        | dict.fromkeys(("lstrip", "rstrip", "normalized"), False)
        for k, token in enumerate((BOS, EOS, PAD))
    ]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: k for k, token in enumerate(tokens)},
            "merges": [list(pair) for pair in merges],
        },
    }


def write_tokenizer(folder: Path, vocabulary: int = 285) -> None:
    """tokenizer.json, tokenizer_config.json, special_tokens_map.json with a chat template."""
    special = {"bos_token": BOS, "eos_token": EOS, "pad_token": PAD}
    write_json(folder / "tokenizer.json", tokenizer_json(vocabulary))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 2048, **special}
    write_json(folder / "tokenizer_config.json", config | {"chat_template": TEMPLATE})
    write_json(folder / "special_tokens_map.json", special)


# ---------------------------------------------------------------- models


class Weights:
    """Seeded random bf16 tensors by name."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.tensors: Tensors = {}

    def normal(self, name: str, *shape: int) -> None:
        """Layers outweigh the embeddings, or a tied model would repeat the token that it was given."""
        table = any(part in name for part in ("embed", "wte", "wpe", "lm_head"))
        self.tensors[name] = bf16(self.random.normal(0, 0.05 if table else 0.2, shape).astype(np.float32))

    def ones(self, name: str, *shape: int) -> None:
        self.tensors[name] = bf16(np.ones(shape, np.float32))

    def zeros(self, name: str, *shape: int) -> None:
        self.tensors[name] = bf16(np.zeros(shape, np.float32))


def tiny_llama(folder: Path, layers: int = 2, hidden: int = 64, shards: int = 1, seed: int = 1, **config: Any) -> Path:
    """A Llama of about 0.1 M parameters; `config` overrides keys of config.json, shapes follow."""
    full = llama_config(layers, hidden) | config
    weights = Weights(seed)
    weights.normal("model.embed_tokens.weight", full["vocab_size"], hidden)
    for k in range(layers):
        llama_layer(weights, f"model.layers.{k}.", full)
    weights.ones("model.norm.weight", hidden)
    if not full["tie_word_embeddings"]:
        weights.normal("lm_head.weight", full["vocab_size"], hidden)
    return write_model(folder, full, weights.tensors, shards)


def llama_config(layers: int, hidden: int) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // 32,
        "num_key_value_heads": max(1, hidden // 64),
        "head_dim": 32,
        "vocab_size": 320,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "dtype": "bfloat16",
    }


def llama_layer(weights: Weights, prefix: str, config: Mapping[str, Any]) -> None:
    attention(weights, prefix, config)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    weights.normal(prefix + "mlp.gate_proj.weight", inner, hidden)
    weights.normal(prefix + "mlp.up_proj.weight", inner, hidden)
    weights.normal(prefix + "mlp.down_proj.weight", hidden, inner)


def attention(weights: Weights, prefix: str, config: Mapping[str, Any]) -> None:
    hidden, size = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    weights.ones(prefix + "input_layernorm.weight", hidden)
    weights.ones(prefix + "post_attention_layernorm.weight", hidden)
    weights.normal(prefix + "self_attn.q_proj.weight", queries, hidden)
    weights.normal(prefix + "self_attn.k_proj.weight", keys, hidden)
    weights.normal(prefix + "self_attn.v_proj.weight", keys, hidden)
    weights.normal(prefix + "self_attn.o_proj.weight", hidden, queries)


def tiny_mixtral(folder: Path, layers: int = 2, hidden: int = 64, experts: int = 4, seed: int = 1) -> Path:
    """A Mixtral with `experts` experts, two per token."""
    config = llama_config(layers, hidden) | {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "num_local_experts": experts,
        "num_experts_per_tok": 2,
        "tie_word_embeddings": False,
    }
    weights = Weights(seed)
    weights.normal("model.embed_tokens.weight", config["vocab_size"], hidden)
    for k in range(layers):
        prefix = f"model.layers.{k}."
        attention(weights, prefix, config)
        weights.normal(prefix + "block_sparse_moe.gate.weight", experts, hidden)
        for e in range(experts):
            moe = f"{prefix}block_sparse_moe.experts.{e}."
            weights.normal(moe + "w1.weight", config["intermediate_size"], hidden)
            weights.normal(moe + "w2.weight", hidden, config["intermediate_size"])
            weights.normal(moe + "w3.weight", config["intermediate_size"], hidden)
    weights.ones("model.norm.weight", hidden)
    weights.normal("lm_head.weight", config["vocab_size"], hidden)
    return write_model(folder, config, weights.tensors)


def tiny_gpt2(folder: Path, layers: int = 2, hidden: int = 64, seed: int = 1) -> Path:
    """A GPT-2: its weights lie transposed (Conv1D), names have no `model.` and the head is tied."""
    config = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": hidden // 32,
        "n_positions": 512,
        "vocab_size": 320,
        "activation_function": "gelu_new",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "dtype": "bfloat16",
    }
    weights = Weights(seed)
    weights.normal("wte.weight", 320, hidden)
    weights.normal("wpe.weight", 512, hidden)
    for k in range(layers):
        for norm in ("ln_1", "ln_2"):
            layer_norm(weights, f"h.{k}.{norm}", hidden)
        for name, rows, columns in (
            ("attn.c_attn", hidden, 3 * hidden),
            ("attn.c_proj", hidden, hidden),
            ("mlp.c_fc", hidden, 4 * hidden),
            ("mlp.c_proj", 4 * hidden, hidden),
        ):
            weights.normal(f"h.{k}.{name}.weight", rows, columns)
            weights.zeros(f"h.{k}.{name}.bias", columns)
    layer_norm(weights, "ln_f", hidden)
    return write_model(folder, config, weights.tensors)


def layer_norm(weights: Weights, name: str, size: int) -> None:
    weights.ones(f"{name}.weight", size)
    weights.zeros(f"{name}.bias", size)


def write_model(folder: Path, config: Mapping[str, Any], tensors: Mapping[str, Array], shards: int = 1) -> Path:
    """A whole model folder: configuration, generation configuration, weights, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2})
    write_shards(folder, tensors, shards)
    write_tokenizer(folder, min(config["vocab_size"], 285))
    return folder
