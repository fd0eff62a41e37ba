"""Facts come from configuration and headers alone, for plain, wrapped, quantized and GGUF models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.errors import InputError
from optpipe.model.facts import facts_from_headers, facts_of_folder
from optpipe.model.facts_gguf import facts_from_gguf
from optpipe.records import ModelFacts, TensorFact, from_json, to_json
from tests.models import edit_json, tiny_gpt2, tiny_llama, tiny_mixtral, write_safetensors
from tests.stacked import ARCHITECTURES, stacked


def tensor(name: str, *shape: int, dtype: str = "BF16") -> TensorFact:
    return TensorFact(name, dtype, shape, 2 * int(np.prod(shape)), "model.safetensors")


def facts(config: dict[str, Any], *tensors: TensorFact) -> ModelFacts:
    sizes = {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
    table = tensor("model.embed_tokens.weight", 100, 64)
    return facts_from_headers(
        {"model_type": "llama", **sizes, **config}, [table, *tensors], source="s", kind="hub", revision="r"
    )


def test_a_llama_folder(tmp_path: Path) -> None:
    found = facts_of_folder(tiny_llama(tmp_path / "m", layers=3, hidden=128, shards=2))
    assert (found.architecture, found.model_type, found.layers) == ("LlamaForCausalLM", "llama", 3)
    assert (found.heads, found.kv_heads, found.head_dim, found.vocabulary) == (4, 2, 32, 320)
    assert found.kv_bytes_per_token == 2 * 3 * 2 * 32 * 2
    assert found.parameters == 320 * 128 + 3 * (2 * 128 * 128 + 2 * 64 * 128 + 3 * 256 * 128 + 2 * 128) + 128
    assert found.weight_bytes == 2 * found.parameters and found.dtype == "bfloat16"
    assert found.tied_embeddings and found.quantized is None and found.notes == ()
    assert len(found.linears) == 21
    assert ("model.layers.2.mlp.down_proj", 128, 256) in found.linears
    assert from_json(ModelFacts, to_json(found)) == found


def test_layers_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    found = facts_of_folder(tiny_llama(tmp_path / "m", layers=12, shards=3))
    numbers = [int(name.split(".")[2]) for name, _, _ in found.linears]
    assert numbers == sorted(numbers) and numbers[-1] == 11


def test_an_untied_head_is_a_linear_layer_and_a_tied_one_is_not(tmp_path: Path) -> None:
    untied = facts_of_folder(tiny_llama(tmp_path / "m", tie_word_embeddings=False))
    assert ("lm_head", 320, 64) in untied.linears and not untied.tied_embeddings
    tied = facts({"tie_word_embeddings": True}, tensor("lm_head.weight", 100, 64))
    assert tied.linears == () and tied.parameters == 6400
    assert "lm_head in the file is not used" in tied.notes[0]


def test_where_the_configuration_is_silent_the_weights_say_whether_the_head_is_tied() -> None:
    assert facts({}).tied_embeddings
    assert not facts({}, tensor("lm_head.weight", 100, 64)).tied_embeddings
    assert facts({"model_type": "gemma2"}, tensor("lm_head.weight", 100, 64)).tied_embeddings, "its type's default"


def test_gpt2_lies_transposed_and_experts_are_counted(tmp_path: Path) -> None:
    gpt2 = facts_of_folder(tiny_gpt2(tmp_path / "g"))
    assert ("h.0.attn.c_attn", 192, 64) in gpt2.linears and len(gpt2.linears) == 8
    assert gpt2.intermediate_size == 256 and gpt2.max_positions == 512 and gpt2.tied_embeddings
    mixtral = facts_of_folder(tiny_mixtral(tmp_path / "m", experts=4))
    names = [name for name, _, _ in mixtral.linears]
    assert mixtral.experts == 4 and "model.layers.1.block_sparse_moe.experts.3.w2" in names
    assert not any(name.endswith(".gate") for name in names)


HEAD_SIZES: list[tuple[dict[str, Any], int]] = [
    ({"num_key_value_heads": 2}, 2 * 2 * 16),
    ({"head_dim": 32, "num_key_value_heads": 1}, 2 * 1 * 32),
    ({"multi_query": True}, 2 * 1 * 16),
    ({"kv_lora_rank": 512, "qk_rope_head_dim": 64}, 576),
    ({"num_hidden_layers": 4, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}, 2 * 4 * 16),
    ({"dtype": "float32"}, 2 * 4 * 16),
]


@pytest.mark.parametrize(("config", "values"), HEAD_SIZES)
def test_kv_bytes_follow_heads_latents_and_layer_kinds(config: dict[str, Any], values: int) -> None:
    assert facts(config).kv_bytes_per_token == 2 * values


def test_other_spellings_of_the_same_sizes() -> None:
    config = {
        "model_type": "mpt",
        "n_layers": 2,
        "d_model": 64,
        "n_heads": 4,
        "vocab_size": 100,
        "max_seq_len": 99,
    }
    tensors = [
        tensor("transformer.wte.weight", 100, 64),
        tensor("transformer.blocks.0.attn.Wqkv.weight", 192, 64),
    ]
    found = facts_from_headers(config, tensors, source="s", kind="hub", revision="r")
    assert (found.layers, found.hidden_size, found.head_dim, found.max_positions) == (2, 64, 16, 99)
    assert found.linears == (("transformer.blocks.0.attn.Wqkv", 192, 64),)


def test_an_unknown_architecture_is_a_note() -> None:
    assert (
        "'surprise' is read by its key and tensor names alone" in facts({"model_type": "surprise"}).notes[0]
    )


def test_a_multimodal_wrapper_is_read_by_its_text_model() -> None:
    text = {"model_type": "gemma3_text", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 100}
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3"}
    found = facts(
        {**config, "text_config": {**text, "num_attention_heads": 2}, "vision_config": {"hidden_size": 1152}},
        tensor("vision_tower.encoder.layers.0.self_attn.q_proj.weight", 64, 64),
        tensor("language_model.model.layers.0.self_attn.q_proj.weight", 64, 64),
        tensor("multi_modal_projector.linear.weight", 64, 64),
    )
    assert found.linears == (("language_model.model.layers.0.self_attn.q_proj", 64, 64),)
    assert found.layers == 2 and found.model_type == "gemma3_text"
    assert "multimodal: 8192 parameters beside the text model" in found.notes[-1]


def test_experts_in_one_tensor_are_a_note() -> None:
    found = facts({}, tensor("model.layers.0.mlp.experts.gate_up_proj", 8, 64, 128))
    assert "1 weights hold all experts of a layer in one tensor" in found.notes[0] and found.linears == ()
    assert found.stacked_experts == 1


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_stacked_experts_are_counted_under_each_architectures_names(model_type: str, tmp_path: Path) -> None:
    found = facts_of_folder(stacked(model_type, tmp_path / "m"))
    assert found.stacked_experts == 2 * found.layers
    assert not any("router" in name or ".experts" in name for name, _, _ in found.linears), "none is a layer"


def test_experts_that_lie_apart_are_no_stack(tmp_path: Path) -> None:
    assert facts_of_folder(tiny_mixtral(tmp_path / "m")).stacked_experts == 0


QUANTIZED: dict[str, tuple[dict[str, Any], TensorFact, str]] = {
    "gptq": (
        {"quant_method": "gptq", "bits": 4, "group_size": 128},
        tensor("l.qweight", 32, 64, dtype="I32"),
        "gptq 4-bit g128",
    ),
    "awq": (
        {"quant_method": "awq", "bits": 4, "group_size": 64},
        tensor("l.qweight", 256, 8, dtype="I32"),
        "awq 4-bit g64",
    ),
    "compressed-tensors": (
        {
            "quant_method": "compressed-tensors",
            "config_groups": {"group_0": {"weights": {"num_bits": 4, "group_size": 32}}},
        },
        tensor("l.weight_packed", 64, 32, dtype="I32"),
        "compressed-tensors 4-bit g32",
    ),
    "fp8": ({"quant_method": "fp8"}, tensor("l.weight", 64, 256, dtype="F8_E4M3"), "fp8"),
    "modelopt-awq": (
        {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"},
        tensor("l.weight", 32, 256, dtype="U8"),
        "modelopt 4-bit",
    ),
    "modelopt-nvfp4": (
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        tensor("l.weight", 64, 128, dtype="U8"),
        "modelopt nvfp4",
    ),
    "modelopt-smoothquant": (
        {"quant_method": "modelopt", "quant_algo": "W8A8_SQ_PER_CHANNEL"},
        tensor("l.weight", 64, 256, dtype="I8"),
        "modelopt int8",
    ),
}


@pytest.mark.parametrize("method", QUANTIZED)
def test_a_quantized_base_is_named_and_its_layers_have_their_real_shape(method: str) -> None:
    config, weight, words = QUANTIZED[method]
    beside = tensor("l.weight_scale", 64, 2), tensor("l.pre_quant_scale", 256)
    found = facts({"quantization_config": config}, weight, *beside)
    assert found.quantized == words and found.linears == (("l", 64, 256),)
    assert found.parameters == 6400 + 64 * 256
    assert f"the weights are quantized already ({words})" in found.notes


def test_quantized_weights_without_a_word_in_the_configuration_are_a_note() -> None:
    found = facts({}, tensor("l.weight", 64, 64, dtype="I8"))
    assert "l.weight is I8" in found.notes[0] and found.quantized is None


def test_a_dtype_that_differs_from_the_configuration_is_a_note() -> None:
    assert facts({"torch_dtype": "float16"}).notes == (
        "the configuration says float16, the weights are bfloat16",
    )


def test_the_old_and_the_new_name_of_the_dtype_are_read(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_json(folder / "config.json", dtype=None, torch_dtype="torch.bfloat16")
    assert facts_of_folder(folder).notes == ()


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (lambda folder: (folder / "config.json").unlink(), "there is no such file"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), "is a list, not a mapping"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{,"), "is not JSON"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "has no model.safetensors"),
    "no tensors": (
        lambda folder: write_safetensors(folder / "model.safetensors", {}),
        "there are no tensors",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_folder_that_is_no_model_says_why(tmp_path: Path, kind: str) -> None:
    folder = tiny_llama(tmp_path / "m")
    damage, expected = REFUSED[kind]
    damage(folder)
    with pytest.raises(InputError, match=expected) as caught:
        facts_of_folder(folder)
    assert caught.value.place and caught.value.hint


def test_a_path_that_is_no_folder_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no such file"):
        facts_of_folder(tmp_path / "gone")


def test_a_gguf_file_counts_as_the_bf16_folder_it_becomes_and_tells_what_it_was() -> None:
    config = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 100}
    tensors = [
        TensorFact("model.embed_tokens.weight", "Q8_0", (100, 64), 6800, "m.gguf"),
        TensorFact("model.layers.0.self_attn.q_proj.weight", "Q4_1", (64, 64), 2560, "m.gguf"),
        TensorFact("model.norm.weight", "F32", (64,), 256, "m.gguf"),
    ]
    found = facts_from_gguf(config, tensors, source="m.gguf", kind="gguf", revision="")
    assert found.weight_bytes == 2 * found.parameters == 2 * (6400 + 4096 + 64)
    assert found.linears == (("model.layers.0.self_attn.q_proj", 64, 64),) and found.quantized is None
    assert "Q8_0 (61 %), Q4_1 (39 %)" in found.notes[-1]
