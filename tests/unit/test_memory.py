"""Bytes are those that compressed-tensors writes; bits per weight show what was really quantized."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.errors import InputError
from optpipe.model import memory
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.model.roofline import decode_bound, prefill_bound
from optpipe.model.schemes import Layout, layout_of, linear_bytes, parts, selected
from optpipe.records import Json, ModelFacts
from tests.models import bf16, tiny_llama, tiny_mixtral, write_safetensors

VLLM = {"engine": "vllm"}
CPU, A10 = named("laptop-cpu"), named("a10")

W4 = {"method": "gptq", "bits": 4, "group_size": 32, "symmetric": False}
INT8 = {"method": "int8"}


def linear_7b() -> ModelFacts:
    """Llama-2-7B's shape."""
    linears = []
    for k in range(32):
        for name in ("q", "k", "v", "o"):
            linears.append((f"model.layers.{k}.self_attn.{name}_proj", 4096, 4096))
        for name, out, inputs in (("gate", 11008, 4096), ("up", 11008, 4096), ("down", 4096, 11008)):
            linears.append((f"model.layers.{k}.mlp.{name}_proj", out, inputs))
    linears.append(("lm_head", 32000, 4096))
    parameters = sum(out * inputs for _, out, inputs in linears) + 32000 * 4096 + 65 * 4096
    return ModelFacts(
        *("hf:llama", "hub", "r", "LlamaForCausalLM", "llama", 32, 4096, 11008, 32, 32, 128, 32000, 4096),
        *("bfloat16", parameters, 2 * parameters, 2 * 32 * 32 * 128 * 2, False, None),
        linears=tuple(linears),
    )


# ---------------------------------------------------------------- one layer

LAYERS: list[tuple[dict[str, Any], int]] = [
    # bytes of a [128, 256] layer: packed weights + scales + zero points + weight_shape
    (W4, 128 * 256 // 2 + 128 * 8 * 2 + (128 // 8) * 8 * 4 + 16),
    ({**W4, "symmetric": True}, 128 * 256 // 2 + 128 * 8 * 2 + 16),
    ({**W4, "group_size": -1}, 128 * 256 // 2 + 128 * 2 + (128 // 8) * 4 + 16),
    ({**W4, "bits": 8, "symmetric": True}, 128 * 256 + 128 * 8 * 2 + 16),
    ({**W4, "bits": 3, "symmetric": True}, 128 * 256 * 3 // 8 + 128 * 8 * 2 + 16),
    (INT8, 128 * 256 + 128 * 2),
    ({"method": "fp8"}, 128 * 256 + 128 * 2),
    ({"method": "smoothquant", "strength": 0.8}, 128 * 256 + 128 * 2),
    ({"method": "rtn", "bits": 8, "group_size": -1}, 128 * 256 + 128 * 2 + 16),
    ({**W4, "method": "awq-gptq"}, 128 * 256 // 2 + 128 * 8 * 2 + (128 // 8) * 8 * 4 + 16),
    ({"method": "autoround", "bits": 4, "group_size": 64}, 128 * 256 // 2 + 128 * 4 * 2 + 16),
    # 4-bit floats: packed weights, one-byte scales of 16 or 32, two float32 for NVFP4
    ({"method": "nvfp4"}, 128 * 256 // 2 + 128 * 16 + 2 * 4),
    ({"method": "mxfp4"}, 128 * 256 // 2 + 128 * 8),
]


@pytest.mark.parametrize(("scheme", "expected"), LAYERS)
def test_bytes_of_one_layer(scheme: dict[str, Any], expected: int) -> None:
    assert linear_bytes(layout_of(scheme), 128, 256) == expected


def test_sizes_that_do_not_fill_a_word_are_rounded_up() -> None:
    assert linear_bytes(Layout(4, "int", 16, None, True), 3, 9) == 3 * 2 * 4 + 3 * 2 + 16


def test_an_unknown_method_has_a_close_one() -> None:
    with pytest.raises(InputError, match="'gptk' is not known") as caught:
        layout_of({"method": "gptk"})
    assert "did you mean 'gptq'?" in str(caught.value.hint)


# ---------------------------------------------------------------- checkpoints


def quantized_copy(folder: Path, facts: ModelFacts, scheme: Json, base: Path, *, plain: int = 0) -> Path:
    """A checkpoint as compressed-tensors lays it out, zeros inside; the first `plain` layers stay in bf16."""
    stays = {name for name, _, _ in selected(facts, scheme)[:plain]}
    chosen = [(layout, *linear) for layout, all_ in parts(facts, scheme) for linear in all_ if linear[0] not in stays]
    names = {name for _, name, _, _ in chosen}
    from optpipe.model.safetensors import map_tensor, read_header

    header = read_header(base / "model.safetensors")
    tensors = {
        fact.name: np.array(map_tensor(base / "model.safetensors", header, fact))
        for fact in header.tensors
        if fact.name.removesuffix(".weight") not in names
    }
    for layout, name, out, inputs in chosen:
        stored = stored_tensors(layout, out, inputs)
        tensors |= {f"{name}.{kind}": values for kind, values in stored.items()}
    folder.mkdir()
    (folder / "config.json").write_text((base / "config.json").read_text())
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def stored_tensors(layout: Layout, out: int, inputs: int) -> dict[str, Any]:
    """The tensors of one quantized layer, by what its name ends in."""
    groups = inputs // layout.group if layout.group else 1
    scales = bf16(np.ones((out, groups), np.float32))
    if layout.activation_bits == 8:
        return {"weight": np.zeros((out, inputs), np.int8), "weight_scale": scales}
    if layout.kind == "float":
        shared = np.ones(1, np.float32)
        both = {"weight_global_scale": shared, "input_global_scale": shared} if layout.group == 16 else {}
        scales = np.zeros((out, groups), np.uint8)
        return {"weight_packed": np.zeros((out, inputs // 2), np.uint8), "weight_scale": scales, **both}
    stored = {
        "weight_packed": np.zeros((out, inputs * layout.bits // 32), np.int32),
        "weight_scale": scales,
        "weight_shape": np.array([out, inputs], np.int64),
    }
    if not layout.symmetric:
        stored["weight_zero_point"] = np.zeros((out * layout.bits // 32, groups), np.int32)
    return stored


MIXED: dict[str, Any] = {
    **{**W4, "method": "mixed"},
    "int8": ["down_proj", {"select": "layers.0.self_attn.*", "expect": 4}],
}
SCHEMES: list[dict[str, Any]] = [
    *(W4, {**W4, "symmetric": True}, {**W4, "group_size": -1}, INT8, {"method": "fp8"}),
    *(MIXED, {"method": "nvfp4"}, {"method": "mxfp4"}, {"method": "rtn", "bits": 8, "group_size": -1}),
]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_estimates_are_what_a_checkpoint_of_the_format_measures(tmp_path: Path, scheme: Json) -> None:
    base = tiny_llama(tmp_path / "base", tie_word_embeddings=False)
    facts = facts_of_folder(base)
    made = quantized_copy(tmp_path / "made", facts, scheme, base)
    weights = memory.checkpoint_bytes(facts, scheme).value - memory.TOKENIZER_BYTES * facts.vocabulary
    assert weights == facts_of_folder(made).weight_bytes
    estimated = memory.bits_per_weight(facts, scheme).value
    assert memory.measured_bits_per_weight(made, facts, scheme) == pytest.approx(estimated, abs=1e-12)


def test_a_mixed_scheme_lies_between_its_two_and_its_figure_names_both(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_llama(tmp_path / "m"))
    mixed = memory.bits_per_weight(facts, MIXED)
    assert memory.bits_per_weight(facts, W4).value < mixed.value < memory.bits_per_weight(facts, INT8).value
    for how in (mixed.how, memory.checkpoint_bytes(facts, MIXED).how):
        assert "W4A16 g32 asymmetric" in how and "INT8 W8A8" in how


def test_rotations_cost_a_second_table_where_embeddings_are_tied(tmp_path: Path) -> None:
    tied = facts_of_folder(tiny_llama(tmp_path / "tied"))
    own = facts_of_folder(tiny_llama(tmp_path / "own", tie_word_embeddings=False))
    table = 2 * tied.vocabulary * tied.hidden_size
    for facts, more in ((tied, table), (own, 0)):
        plain, rotated = (memory.checkpoint_bytes(facts, {**W4, "method": m}) for m in ("gptq", "spinquant"))
        assert rotated.value - plain.value == more
        assert ("two tables of tied embeddings" in rotated.how) == bool(more)


def test_weights_that_were_copied_unquantized_measure_16_bits(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    facts = facts_of_folder(base)
    assert memory.measured_bits_per_weight(base, facts, W4) == 16
    assert memory.measured_bits_per_weight(base, facts, None) == 16
    half = quantized_copy(tmp_path / "half", facts, W4, base, plain=7)
    assert 8 < memory.measured_bits_per_weight(half, facts, W4) < 12


def test_a_wrapper_s_prefix_does_not_hide_a_layer(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    facts = facts_of_folder(base)
    renamed = {
        f"language_model.{name}.weight": bf16(np.zeros((out, inputs), np.float32))
        for name, out, inputs in facts.linears
    }
    folder = tmp_path / "wrapped"
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", renamed)
    assert memory.measured_bits_per_weight(folder, facts, W4) == 16


def test_a_checkpoint_without_a_layer_is_refused_by_its_name(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_llama(tmp_path / "three", layers=3))
    with pytest.raises(InputError, match=r"holds no weight of model\.layers\.2\.mlp\.down_proj"):
        memory.measured_bits_per_weight(tiny_llama(tmp_path / "two"), facts, W4)


def test_ignored_layers_stay_and_the_figure_is_of_the_others(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_llama(tmp_path / "m"))
    all_, some = {**W4, "ignore": ["lm_head"]}, {**W4, "ignore": ["lm_head", "down_proj"]}
    assert memory.checkpoint_bytes(facts, some).value > memory.checkpoint_bytes(facts, all_).value
    assert memory.bits_per_weight(facts, {**W4, "symmetric": True}).value == pytest.approx(4.5, abs=0.1)


# ---------------------------------------------------------------- memory


def test_kv_bytes_of_llama_2_7b_are_half_a_megabyte_a_token() -> None:
    facts = linear_7b()
    assert memory.kv_bytes_per_token(facts, VLLM) == 524288
    assert memory.kv_bytes_per_token(facts, {"kv_cache_dtype": "fp8"}) == 262144
    assert memory.kv_bytes_per_token(facts, {"engine_args": {"kv-cache-dtype": "fp8_e5m2"}}) == 262144
    served = memory.serving_memory(facts, None, VLLM, A10, 32, 512)
    assert served.kv == 32 * 512 * 524288 == 8 << 30


def test_serving_memory_adds_up_and_says_of_what() -> None:
    served = memory.serving_memory(linear_7b(), {**W4, "group_size": 128}, VLLM, A10, 32, 512)
    figure = served.estimated()
    assert figure.value == served.total == served.weights + served.kv + served.activations + served.runtime
    assert 3.5e9 < served.weights < 4.5e9
    assert "weights 3." in figure.how or "weights 4." in figure.how
    assert "kv 8.59 GB" in figure.how


def test_a_kv_cache_of_fixed_size_wins_and_a_cpu_has_one_by_default() -> None:
    fixed = {**VLLM, "kv_cache_memory_bytes": 1 << 28}
    assert memory.serving_memory(linear_7b(), None, fixed, A10, 32, 512).kv == 1 << 28
    assert memory.serving_memory(linear_7b(), None, VLLM, CPU, 32, 512).kv == 1 << 30


def test_bytes_as_a_person_reads_them() -> None:
    assert [memory.show(n) for n in (12, 2048, 1.134e8, 8 << 30)] == ["12 B", "2.05 kB", "113 MB", "8.59 GB"]


# ---------------------------------------------------------------- roofline


def test_decoding_is_bounded_by_bandwidth_and_4_bits_are_nearly_four_times_faster() -> None:
    facts = linear_7b()
    base = decode_bound(facts, None, VLLM, A10, 1, 0)
    small = decode_bound(facts, {**W4, "group_size": 128}, VLLM, A10, 1, 0)
    assert base and small
    assert base.value == pytest.approx(600e9 / (facts.weight_bytes - 2 * 32000 * 4096))
    assert 3 < small.value / base.value < 4 and "GB/s" in base.how


def test_many_sequences_are_bounded_by_the_cache_or_by_operations() -> None:
    facts = linear_7b()
    one, many = (decode_bound(facts, None, VLLM, A10, n, 512) for n in (1, 64))
    assert one and many and one.value < many.value < 64 * one.value
    huge = decode_bound(facts, None, VLLM, A10, 4096, 0)
    assert huge and huge.value == pytest.approx(125e12 / (2 * facts.parameters)) and "operations" in huge.how


def test_prefill_is_bounded_by_operations_and_int8_doubles_the_peak() -> None:
    facts = linear_7b()
    bf16_ms, int8_ms = (prefill_bound(facts, scheme, A10, 2048) for scheme in (None, INT8))
    assert bf16_ms and int8_ms
    assert bf16_ms.value == pytest.approx(2 * int8_ms.value) and 200 < bf16_ms.value < 300


def test_a_card_that_is_not_known_has_no_bound() -> None:
    from dataclasses import replace

    assert decode_bound(linear_7b(), None, VLLM, replace(A10, gpu="Other"), 1, 1) is None


def test_experts_are_part_of_the_checkpoint(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_mixtral(tmp_path / "m"))
    assert len(selected(facts, INT8)) == 2 * (4 + 3 * 4)
    assert json.loads(json.dumps(memory.checkpoint_bytes(facts, INT8).value)) < facts.weight_bytes
