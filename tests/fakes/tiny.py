"""A language model in numpy that reads real checkpoint folders: bf16, INT8 and packed 4 bits.

Each token is predicted from the one before it alone: its embedding through the layers' MLPs, without attention.
Quantized weights so give the real thing's figures: a little divergence for 8 bits, more for 4.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
CODES = {"BF16": "<u2", "I8": "i1", "I32": "<i4", "I64": "<i8"}
SHARP = 3.0
"""Makes logits as far apart as a trained model's."""


def read(path: Path) -> dict[str, Array]:
    """Every tensor of a safetensors file; bfloat16 as its raw 16 bits."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__", None)
    body, tensors = data[8 + size :], {}
    for name, fact in header.items():
        start, end = fact["data_offsets"]
        tensors[name] = np.frombuffer(body[start:end], CODES[fact["dtype"]]).reshape(fact["shape"])
    return tensors


def floats(bits: Array) -> Array:
    """bfloat16's raw bits -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Model:
    """`table`: embeddings [vocabulary, hidden]; `layers`: (gate, up, down) of each; `bits` of their weights."""

    table: Array
    layers: tuple[tuple[Array, ...], ...]
    bytes: int
    bits: int

    @classmethod
    def load(cls, folder: Path) -> Model:
        tensors = read(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        names = ("gate_proj", "up_proj", "down_proj")
        prefixes = (f"model.layers.{k}.mlp." for k in range(config["num_hidden_layers"]))
        layers = [tuple(weight(tensors, prefix + name) for name in names) for prefix in prefixes]
        size = sum(array.nbytes for array in tensors.values())
        groups = config.get("quantization_config", {}).get("config_groups", {})
        bits = next((group["weights"]["num_bits"] for group in groups.values()), 16)
        return cls(floats(tensors["model.embed_tokens.weight"]), tuple(layers), size, bits)

    def logits(self, ids: Array) -> Array:
        """float32 [tokens, vocabulary] of what follows each id."""
        x = normed(self.table[ids])
        for gate, up, down in self.layers:
            even = normed(x)
            inner = even @ gate.T
            x = x + (inner / (1 + np.exp(-inner)) * (even @ up.T)) @ down.T / 2
        return np.asarray(SHARP * normed(x) @ self.table.T, dtype=np.float32)

    def logprobs(self, ids: Array) -> Array:
        """float32 [tokens - 1]: of each id but the first, given the one before."""
        return log_softmax(self.logits(ids[:-1]))[np.arange(len(ids) - 1), ids[1:]].astype(np.float32)

    def greedy(self, ids: list[int], count: int) -> list[int]:
        """The likeliest letters one after another, none of the last eight again."""
        answer: list[int] = []
        for _ in range(count):
            scores = self.logits(np.array([[*ids, *answer][-1]]))[0][:256]
            scores[:3] = -np.inf
            scores[answer[-8:]] = -np.inf
            answer.append(int(scores.argmax()))
        return answer


def normed(x: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + 1e-5))


def log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))


def encode(text: str) -> list[int]:
    """A token for each byte, as the test tokenizer has them."""
    return [3 + byte for byte in text.encode()]


# ---------------------------------------------------------------- quantized weights


def weight(tensors: dict[str, Array], name: str) -> Array:
    """float32 [out, in], dequantized where it is quantized."""
    if f"{name}.weight_packed" in tensors:
        packed = tensors[f"{name}.weight_packed"].view(np.uint32)
        nibbles = np.stack([(packed >> (4 * k)) & 15 for k in range(8)], axis=-1)
        whole = nibbles.reshape(len(packed), -1).astype(np.float32) - 8
        scale = floats(tensors[f"{name}.weight_scale"])
        return np.asarray(whole * np.repeat(scale, whole.shape[1] // scale.shape[1], axis=1))
    plain = tensors[f"{name}.weight"]
    if plain.dtype == np.int8:
        return plain.astype(np.float32) * floats(tensors[f"{name}.weight_scale"])
    return floats(plain)


def rounded(values: Array, steps: int, group: int) -> tuple[Array, Array]:
    """Whole numbers in -steps - 1 .. steps and the bf16 bits of a scale per `group` columns."""
    from tests.models import bf16

    out, columns = values.shape
    groups = values.reshape(out, columns // group, group)
    bits = bf16(np.abs(groups).max(axis=-1) / steps)
    whole = np.clip(np.rint(groups / floats(bits)[..., None]), -steps - 1, steps)
    return whole.reshape(out, columns), bits


def quantized(name: str, values: Array, bits: int, group: int) -> dict[str, Array]:
    """The tensors of one layer as compressed-tensors stores them."""
    if bits == 8:
        whole, scale = rounded(values, 127, values.shape[1])
        return {f"{name}.weight": whole.astype(np.int8), f"{name}.weight_scale": scale}
    whole, scale = rounded(values, 7, group)
    nibbles = (whole + 8).astype(np.uint32).reshape(len(whole), -1, 8)
    packed = sum(nibbles[..., k] << (4 * k) for k in range(8))
    return {
        f"{name}.weight_packed": np.asarray(packed, np.uint32).view(np.int32),
        f"{name}.weight_scale": scale,
        f"{name}.weight_shape": np.array(values.shape, np.int64),
    }
