"""Small mixtures whose checkpoints hold all experts of a layer in one tensor, as each architecture names them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.models import Weights, llama_config, write_model

LAYERS, HIDDEN, EXPERTS, VOCABULARY = 2, 64, 4, 320

ARCHITECTURES = {
    "granitemoe": "GraniteMoeForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "llama4_text": "Llama4ForCausalLM",
}


def stacked(model_type: str, folder: Path) -> Path:
    """Random bf16 weights under the names of one of `ARCHITECTURES`."""
    more: dict[str, Any] = {"num_local_experts": EXPERTS, "num_experts_per_tok": 1, "tie_word_embeddings": True}
    names = {"architectures": [ARCHITECTURES[model_type]], "model_type": model_type}
    weights = Weights(1)
    weights.normal("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    for layer in range(LAYERS):
        attention(weights, f"model.layers.{layer}.", bias=model_type == "gpt_oss")
        mixture(weights, f"model.layers.{layer}.", model_type)
    weights.ones("model.norm.weight", HIDDEN)
    config = llama_config(LAYERS, HIDDEN) | names | more | {"intermediate_size": HIDDEN}
    return write_model(folder, config, weights.tensors, 1)


def attention(weights: Weights, place: str, *, bias: bool) -> None:
    for name, out in (("q", HIDDEN), ("k", 32), ("v", 32), ("o", HIDDEN)):
        weights.normal(f"{place}self_attn.{name}_proj.weight", out, HIDDEN)
        if bias:
            weights.zeros(f"{place}self_attn.{name}_proj.bias", out)
    if bias:
        weights.zeros(f"{place}self_attn.sinks", 2)
    for norm in ("input_layernorm", "post_attention_layernorm"):
        weights.ones(f"{place}{norm}.weight", HIDDEN)


def mixture(weights: Weights, place: str, model_type: str) -> None:
    """Router and experts; gate and up of an expert lie in one matrix."""
    if model_type == "granitemoe":
        weights.normal(f"{place}block_sparse_moe.input_linear.weight", EXPERTS, 2 * HIDDEN, HIDDEN)
        weights.normal(f"{place}block_sparse_moe.output_linear.weight", EXPERTS, HIDDEN, HIDDEN)
        weights.normal(f"{place}block_sparse_moe.router.layer.weight", EXPERTS, HIDDEN)
        return
    inside = f"{place}{'mlp' if model_type == 'gpt_oss' else 'feed_forward'}."
    weights.normal(f"{inside}experts.gate_up_proj", EXPERTS, HIDDEN, 2 * HIDDEN)
    weights.normal(f"{inside}experts.down_proj", EXPERTS, HIDDEN, HIDDEN)
    weights.normal(f"{inside}router.weight", EXPERTS, HIDDEN)
    if model_type == "gpt_oss":
        for name, size in (("experts.gate_up_proj_bias", 2 * HIDDEN), ("experts.down_proj_bias", HIDDEN)):
            weights.zeros(inside + name, EXPERTS, size)
        weights.zeros(f"{inside}router.bias", EXPERTS)
        return
    for name in ("gate_proj", "up_proj", "down_proj"):
        weights.normal(f"{inside}shared_expert.{name}.weight", HIDDEN, HIDDEN)
