"""Small random models of many architectures, made by transformers itself in the quantize toolchain.

    PYTHON tests/real/architectures.py NAME FOLDER      (in the toolchain: configuration and weights)

Every size is a multiple of 32, heads have 32 values, a vocabulary of 320 goes with `tests.models.write_tokenizer`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

LAYERS, HIDDEN, EXPERTS = 2, 64, 8

COMMON: dict[str, Any] = {"vocab_size": 320, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}

SHAPE: dict[str, Any] = {
    **{"hidden_size": HIDDEN, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2},
    **{"intermediate_size": 128, "head_dim": 32, "max_position_embeddings": 512},
}
MIXTURE: dict[str, Any] = SHAPE | {"num_experts_per_tok": 2, "tie_word_embeddings": False}
GEMMA: dict[str, Any] = SHAPE | {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
SIGHT: dict[str, Any] = {
    **{"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128},
    **{"image_size": 32, "patch_size": 8},
}

ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", SHAPE | {"tie_word_embeddings": True}),
    "qwen2": ("qwen2", SHAPE | {"hidden_size": 128}),
    "qwen3": ("qwen3", SHAPE | {"tie_word_embeddings": True}),
    "gemma3": ("gemma3_text", GEMMA | {"query_pre_attn_scalar": 32}),
    "gemma3-wrapped": (
        "gemma3",
        {
            "text_config": COMMON | GEMMA | {"query_pre_attn_scalar": 32},
            "vision_config": SIGHT,
            **{"mm_tokens_per_image": 4, "image_token_index": 286, "boi_token_index": 287, "eoi_token_index": 288},
        },
    ),
    "phi3": ("phi3", SHAPE | {"hidden_size": 128}),
    "gpt2": ("gpt2", {"n_embd": HIDDEN, "n_layer": LAYERS, "n_head": 2, "n_positions": 512}),
    "opt": (
        "opt",
        {
            **{"hidden_size": HIDDEN, "word_embed_proj_dim": HIDDEN, "num_hidden_layers": LAYERS},
            **{"num_attention_heads": 2, "ffn_dim": 128, "max_position_embeddings": 512},
        },
    ),
    "qwen3-moe": ("qwen3_moe", MIXTURE | {"num_experts": EXPERTS, "moe_intermediate_size": 64}),
    "one-sided": ("qwen3_moe", MIXTURE | {"num_experts": EXPERTS, "moe_intermediate_size": 64}),
    "mixtral": ("mixtral", MIXTURE | {"num_local_experts": EXPERTS, "sliding_window": None}),
}
"""Name -> model type and what its configuration says."""


def make(name: str, folder: Path) -> None:
    """A seeded model in bf16 whose biases and norms are random too, so that none can go lost unseen.

    Layers outweigh the embeddings, or a tied model would repeat the token that it was given.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, options = ARCHITECTURES[name]
    torch.manual_seed(1)
    config = AutoConfig.for_model(kind, **COMMON, **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for place, weight in model.named_parameters():
            if weight.ndim == 1:
                weight.add_(torch.randn_like(weight) * 0.1)
            else:
                table = any(part in place for part in ("embed", "wte", "wpe", "lm_head"))
                weight.normal_(0, 0.05 if table else 0.2)
        if name == "one-sided":
            choose_two(model)
    model.to(torch.bfloat16).save_pretrained(folder)


def choose_two(model: Any) -> None:
    """Routers that send every token to experts 0 and 1: they look at one channel, which nothing but the embedding
    writes and where it is always positive."""
    model.model.embed_tokens.weight[:, 0] = 1
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight[0] = 0
        layer.mlp.experts.down_proj[:, 0] = 0
        layer.post_attention_layernorm.weight[0] = 1
        layer.mlp.gate.weight.zero_()
        layer.mlp.gate.weight[:2, 0] = 1


if __name__ == "__main__":
    make(sys.argv[1], Path(sys.argv[2]))
