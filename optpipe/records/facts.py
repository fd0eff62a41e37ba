"""What is known before anything runs: the model from its headers, the machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TensorFact:
    """One tensor as its safetensors or GGUF header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str


SourceKind = Literal["folder", "gguf", "wheel", "hub", "registry"]


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model from configuration and headers alone."""

    source: str
    kind: SourceKind
    revision: str
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
    dtype: str
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    tied_embeddings: bool
    quantized: str | None
    experts: int = 0
    stacked_experts: int = 0
    """Weights that hold all experts of a layer in one tensor; they are among no `linears`."""
    multimodal: bool = False
    """The text model is one part of it."""
    processor: bool = False
    """Files beside the weights say how a multimodal model's images or sounds become input."""
    linears: tuple[tuple[str, int, int], ...] = ()
    """Every quantizable linear weight: (module name, out features, in features)."""
    notes: tuple[str, ...] = ()
    """Things a reader must know wherever the model is used, e.g. that it was 4-bit once."""


@dataclass(frozen=True)
class Hardware:
    """A machine as far as feasibility and keys care."""

    name: str
    cpu: str
    cores: int
    memory_bytes: int
    instruction_set: str
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_bytes: int = 0
    compute_capability: str | None = None
    driver: str | None = None
