"""Writes small GGUF files for tests: metadata, tensor list and zero bytes for data."""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import Any

from optpipe.model.gguf import TYPES

NUMBERS = {name: (number, block, width) for number, (name, block, width) in TYPES.items()}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value(item: Any) -> bytes:
    """Type number and content: bool, int (uint32), float (float32), str, list of one of these."""
    if isinstance(item, list):
        parts = [value(part) for part in item] or [struct.pack("<I", 4)]
        return (
            struct.pack("<I", 9) + parts[0][:4] + struct.pack("<Q", len(item)) + b"".join(p[4:] for p in parts if item)
        )
    if isinstance(item, bool):
        return struct.pack("<I?", 7, item)
    if isinstance(item, int):
        return struct.pack("<II", 4, item)
    if isinstance(item, float):
        return struct.pack("<If", 6, item)
    return struct.pack("<I", 8) + text(item)


def llama(**changes: Any) -> dict[str, Any]:
    """The metadata of a Llama of one layer with a byte-level BPE of six tokens; None drops a key."""
    meta = {
        "general.architecture": "llama",
        "general.file_type": 3,
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": 64,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "llama.rope.freq_base": 100000.0,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": ["<|end|>", "<|start|>", "a", "b", "ab", "Ġ"],
        "tokenizer.ggml.token_type": [3, 3, 1, 1, 1, 1],
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.chat_template": "{{ messages }}\r\n é ",
    } | changes
    return {key: item for key, item in meta.items() if item is not None}


TENSORS: dict[str, tuple[str, tuple[int, ...]]] = {
    "token_embd.weight": ("Q8_0", (6, 64)),
    "blk.0.attn_norm.weight": ("F32", (64,)),
    "blk.0.ffn_norm.weight": ("F32", (64,)),
    "blk.0.attn_q.weight": ("Q4_1", (64, 64)),
    "blk.0.attn_k.weight": ("Q4_1", (32, 64)),
    "blk.0.attn_v.weight": ("Q4_1", (32, 64)),
    "blk.0.attn_output.weight": ("Q4_1", (64, 64)),
    "blk.0.ffn_gate.weight": ("Q4_1", (96, 64)),
    "blk.0.ffn_up.weight": ("Q4_1", (96, 64)),
    "blk.0.ffn_down.weight": ("Q4_1", (64, 96)),
    "output_norm.weight": ("F32", (64,)),
}


def write_gguf(
    path: Path,
    metadata: dict[str, Any] | None = None,
    tensors: dict[str, tuple[str, tuple[int, ...]]] = TENSORS,
) -> Path:
    """A version 3 file with alignment 32; all weights are zero bytes."""
    meta = llama() if metadata is None else metadata
    front = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(meta))
    front += b"".join(text(key) + value(item) for key, item in meta.items())
    offset = 0
    for name, (dtype, shape) in tensors.items():
        number, block, width = NUMBERS[dtype]
        front += text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape[::-1], number, offset)
        nbytes = math.prod(shape) // block * width
        offset += -(-nbytes // 32) * 32
    front += bytes(-len(front) % 32)
    path.write_bytes(front + bytes(offset))
    return path
