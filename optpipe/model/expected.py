"""Which tensors a configuration asks for, as far as its architecture's names are known."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from optpipe.model.architectures import tied_by_default
from optpipe.model.config import Shape
from optpipe.model.linears import is_head, natural, split_name
from optpipe.records import TensorFact

LAYER = re.compile(r"^(.*?\b(?:layers|h|blocks))\.(\d+)\.(.+)$")
EXPERT = re.compile(r"^(.*\.experts)\.(\d+)\.(.+)$")

LLAMA_LIKE = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "granite", "smollm3"),
    *("mixtral", "qwen3_moe"),
)
"""Model types whose attention is q, k, v and o under `model.layers.N.self_attn`."""

UNIFORM = (
    *(name for name in LLAMA_LIKE if name != "qwen3_moe"),
    "phi",
    "gpt2",
    "opt",
    "gpt_neox",
    "starcoder2",
    "stablelm",
    "olmo2",
)
"""Model types in which every layer has the same tensors (Qwen3-MoE may have some without experts)."""

Sizes = tuple[int, ...]


def expected_tensors(shape: Shape, facts: Mapping[str, TensorFact], *, quantized: bool) -> dict[str, Sizes]:
    """Name -> shape of each tensor that must be there; an empty shape is not checked.

    What one layer has, every layer of a uniform architecture must have; Llama's relatives have known names
    and shapes besides.
    """
    expected: dict[str, Sizes] = {}
    if not shape.wrapped:
        if not quantized:
            expected |= dict.fromkeys(same_in_every_layer(shape, list(facts)), ())
            expected |= dict.fromkeys(every_expert(shape, list(facts)), ())
        if not quantized and shape.model_type in LLAMA_LIKE:
            top = "model." if any(name.startswith("model.") for name in facts) else ""
            expected |= {top + name: sizes for name, sizes in llama_tensors(shape)}
        expected |= dict(embeddings(shape, facts))
    return dict(sorted(expected.items(), key=lambda item: natural(item[0])))


def same_in_every_layer(shape: Shape, names: list[str]) -> Iterator[str]:
    """The tensors of each layer, by what its neighbours have."""
    found = [match.groups() for name in names if (match := LAYER.match(name))]
    if not found or shape.model_type not in UNIFORM:
        return
    stack = min({prefix for prefix, _, _ in found}, key=len)
    rests = {rest for prefix, _, rest in found if prefix == stack}
    for layer in range(shape.layers):
        for rest in rests:
            yield f"{stack}.{layer}.{rest}"


def every_expert(shape: Shape, names: list[str]) -> Iterator[str]:
    """The tensors of each expert of a layer, by what the layer's other experts have, in any architecture."""
    stacks: dict[str, set[str]] = {}
    for name in names:
        if found := EXPERT.match(name):
            stacks.setdefault(found.group(1), set()).add(found.group(3))
    for stack, rests in stacks.items():
        for expert in range(shape.experts):
            yield from (f"{stack}.{expert}.{rest}" for rest in rests)


def surplus_layers(shape: Shape, names: list[str]) -> Iterator[tuple[int, str]]:
    """(layer, one of its tensors) of each layer beyond the configuration's, where every layer is alike."""
    if shape.model_type not in UNIFORM or shape.wrapped:
        return
    seen: dict[int, str] = {}
    for name in names:
        if (found := LAYER.match(name)) and int(found.group(2)) >= shape.layers:
            seen.setdefault(int(found.group(2)), name)
    yield from sorted(seen.items())


def llama_tensors(shape: Shape) -> Iterator[tuple[str, Sizes]]:
    """Norms and linear layers of a Llama, with the shapes that the configuration gives them."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    yield "norm.weight", (hidden,)
    for layer in range(shape.layers):
        prefix = f"layers.{layer}."
        yield prefix + "input_layernorm.weight", (hidden,)
        yield prefix + "self_attn.q_proj.weight", (queries, hidden)
        yield prefix + "self_attn.k_proj.weight", (keys, hidden)
        yield prefix + "self_attn.v_proj.weight", (keys, hidden)
        yield prefix + "self_attn.o_proj.weight", (hidden, queries)
        if not shape.experts:
            yield prefix + "mlp.gate_proj.weight", (inner, hidden)
            yield prefix + "mlp.up_proj.weight", (inner, hidden)
            yield prefix + "mlp.down_proj.weight", (hidden, inner)


def embeddings(shape: Shape, facts: Mapping[str, TensorFact]) -> Iterator[tuple[str, Sizes]]:
    """The input embedding with as many rows as the vocabulary, and the head where it is one of its own.

    A configuration that does not say whether the head is tied means its type's default.
    """
    tables = [n for n in facts if n.endswith(("embed_tokens.weight", "wte.weight", "embed_in.weight"))]
    if shape.model_type in LLAMA_LIKE:
        yield (tables[0] if tables else "model.embed_tokens.weight"), (shape.vocabulary, shape.hidden_size)
    elif tables and len(facts[tables[0]].shape) == 2:
        yield tables[0], (shape.vocabulary, facts[tables[0]].shape[1])
    heads = [name for name in facts if is_head(split_name(name)[0])]
    tied = shape.tied if shape.tied is not None else tied_by_default(shape.model_type)
    if tied is False and not heads:
        yield "lm_head.weight", ()


def missing_hint(name: str, shape: Shape) -> str:
    """What to do about a tensor that no file holds."""
    if is_head(split_name(name)[0]):
        return (
            f"tie_word_embeddings is {'false' if shape.tied is False else 'not there, and false by default'}: "
            "fetch the file that holds it, or set it true if the head is tied"
        )
    if found := LAYER.match(name):
        return f"layer {found.group(2)} of {shape.layers} is not whole: fetch the model again"
    return "the weights are not whole: fetch the model again"
