"""What is known of a model from its configuration and safetensors headers: no weights are read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from optpipe.errors import InputError
from optpipe.model.architectures import tied_by_default
from optpipe.model.config import DTYPES, Shape, quantization_of, read_config, shape_of
from optpipe.model.folder import tensors_of_folder
from optpipe.model.linears import (
    CONV1D,
    Weight,
    is_head,
    is_other_part,
    linears_of,
    stacked_experts,
    weights_of,
)
from optpipe.model.schemes import BITS
from optpipe.records import Json, ModelFacts, SourceKind, TensorFact

FLOATS = {"BF16": "bfloat16", "F16": "float16", "F32": "float32", "F64": "float64"}
SMALL = ("I8", "U8", "I32", "F8_E4M3", "F8_E5M2", "F4")
"""Dtypes that weights have only after a quantization."""

KNOWN_TYPES = (
    "llama",
    "mistral",
    "mixtral",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "gemma",
    "gemma2",
    "gemma3",
    "gemma3_text",
    "phi",
    "phi3",
    "gpt2",
    "opt",
    "gpt_neox",
    "falcon",
    "granite",
    "olmo2",
    "smollm3",
    "stablelm",
    "starcoder2",
)
"""Model types whose key and tensor names are known; others are read by the same rules, with a note."""


def facts_of_folder(
    path: Path, *, source: str | None = None, kind: SourceKind = "folder", revision: str = ""
) -> ModelFacts:
    """Facts of a local model folder; InputError for one that cannot be read."""
    config = read_config(path)
    tensors = tensors_of_folder(path)
    place = str(path / "config.json")
    return facts_from_headers(config, tensors, source=source or str(path), kind=kind, revision=revision, place=place)


def facts_from_headers(
    config: Json,
    tensors: Sequence[TensorFact],
    *,
    source: str,
    kind: SourceKind,
    revision: str,
    place: str = "config.json",
) -> ModelFacts:
    """Facts from a configuration and the headers of all its weight files, wherever they were fetched."""
    shape = shape_of(config, place)
    if not tensors:
        raise InputError(
            "there are no tensors beside this configuration",
            place=place,
            hint="safetensors weights are expected; pickled ones are not read",
        )
    quantized = quantization_of(config)
    weights = weights_of(tensors, bits_in(quantized), (quantized or "").split(" ")[0], shape.model_type in CONV1D)
    has_head = any(is_head(weight.module) for weight in weights)
    tied = shape.tied if shape.tied is not None else tied_by_default(shape.model_type) or not has_head
    dtype = dtype_of_weights(shape, weights)
    return ModelFacts(
        source=source,
        kind=kind,
        revision=revision,
        architecture=shape.architecture,
        model_type=shape.model_type,
        layers=shape.layers,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        heads=shape.heads,
        kv_heads=shape.kv_heads,
        head_dim=shape.head_dim,
        vocabulary=shape.vocabulary,
        max_positions=shape.max_positions,
        dtype=dtype,
        parameters=sum(weight.elements for weight in weights if not (tied and is_head(weight.module))),
        weight_bytes=sum(fact.nbytes for fact in tensors),
        kv_bytes_per_token=shape.kv_values_per_token * max(2, DTYPES.get(dtype, 2)),
        tied_embeddings=tied,
        quantized=quantized,
        experts=shape.experts,
        stacked_experts=stacked_experts(weights),
        multimodal=shape.wrapped,
        linears=linears_of(weights, tied),
        notes=notes_of(shape, weights, tied, quantized),
    )


def bits_in(quantized: str | None) -> int | None:
    """The bits of a description such as `gptq 4-bit g128`."""
    for word in (quantized or "").split():
        if BITS.fullmatch(word):
            return int(word[:-4])
    return None


def dtype_of_weights(shape: Shape, weights: Sequence[Weight]) -> str:
    """The dtype that holds most of the unquantized weights; the configuration's where all are quantized."""
    sizes: Counter[str] = Counter()
    for weight in weights:
        if weight.dtype in FLOATS:
            sizes[FLOATS[weight.dtype]] += weight.nbytes
    largest = sizes.most_common(1)
    return largest[0][0] if largest else shape.dtype or "bfloat16"


def notes_of(shape: Shape, weights: Sequence[Weight], tied: bool, quantized: str | None) -> tuple[str, ...]:
    """What a reader must know of the model, in sentences."""
    found = [
        *embedding_notes(weights, tied),
        *dtype_notes(shape, weights),
        *quantization_notes(weights, quantized),
        *structure_notes(shape, weights),
    ]
    return tuple(found)


def embedding_notes(weights: Sequence[Weight], tied: bool) -> list[str]:
    heads = [weight.module for weight in weights if is_head(weight.module)]
    if tied and heads:
        return [f"the configuration ties the embeddings, so the {heads[0]} in the file is not used"]
    if not tied and not heads:
        return ["the configuration does not tie the embeddings, but the files hold no lm_head"]
    return []


def dtype_notes(shape: Shape, weights: Sequence[Weight]) -> list[str]:
    floats = Counter(FLOATS[w.dtype] for w in weights if w.dtype in FLOATS and len(w.shape) > 1)
    notes = []
    if len(floats) > 1:
        kinds = ", ".join(f"{count} in {name}" for name, count in floats.most_common())
        notes.append(f"the weights have several dtypes: {kinds}")
    if floats and shape.dtype and shape.dtype not in floats:
        notes.append(f"the configuration says {shape.dtype}, the weights are {floats.most_common(1)[0][0]}")
    return notes


def quantization_notes(weights: Sequence[Weight], quantized: str | None) -> list[str]:
    if quantized:
        return [f"the weights are quantized already ({quantized})"]
    small = [weight for weight in weights if weight.dtype in SMALL and len(weight.shape) > 1]
    if small:
        first = f"{small[0].module}.{small[0].kind} is {small[0].dtype}"
        return [f"{len(small)} weights are quantized ({first}), but the configuration names no method"]
    return []


def structure_notes(shape: Shape, weights: Sequence[Weight]) -> list[str]:
    notes = []
    if shape.model_type not in KNOWN_TYPES:
        notes.append(f"model type {shape.model_type!r} is read by its key and tensor names alone; check the layers")
    if count := stacked_experts(weights):
        notes.append(
            f"{count} weights hold all experts of a layer in one tensor: no figure of a quantization counts them"
        )
    if shape.wrapped:
        other = sum(weight.elements for weight in weights if is_other_part(weight.module))
        notes.append(f"multimodal: {other} parameters beside the text model stay as they are")
    if shape.model_type in CONV1D:
        notes.append("the layers are Conv1D (weights lie transposed); quantizers that look for Linear see none")
    return notes
