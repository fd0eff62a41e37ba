"""What cannot work is refused before anything runs, with the reason and the nearest thing that does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optpipe.errors import InputError
from optpipe.model.compat import Case, Finding, feasibility, findings
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.model.reasons import fused_reasons, group_reasons, nearest_group
from optpipe.model.selectors import matched, matches, selector_problems
from optpipe.records import ModelFacts
from tests.models import tiny_gpt2, tiny_llama, tiny_mixtral
from tests.stacked import ARCHITECTURES, stacked

VLLM = {"engine": "vllm"}
CPU = named("server-cpu")
W4: dict[str, Any] = {"method": "gptq", "bits": 4, "group_size": 32, "symmetric": False}


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return facts_of_folder(tiny_llama(tmp_path / "m", layers=12))


def refused(facts: ModelFacts, scheme: dict[str, Any] | None, target: Any = VLLM, machine: Any = CPU) -> list[str]:
    return [f"{no.reason} -> {no.nearest}" for no in feasibility(Case(facts, scheme, target, machine)).refused]


# ---------------------------------------------------------------- the table

VERDICTS = [
    (None, "server-cpu", "ok"),
    (W4, "server-cpu", "ok"),
    ({**W4, "symmetric": True}, "server-cpu", "ok"),
    ({"method": "int8"}, "server-cpu", "ok"),
    ({"method": "smoothquant"}, "server-cpu", "ok"),
    ({"method": "fp8"}, "server-cpu", "slow"),
    ({**W4, "bits": 8}, "server-cpu", "no"),
    ({**W4, "bits": 3}, "server-cpu", "no"),
    ({**W4, "bits": 8}, "a10", "ok"),
    ({"method": "fp8"}, "a10", "slow"),
    ({"method": "fp8"}, "l4", "ok"),
    ({"method": "int8"}, "h100", "ok"),
    ({"method": "int8"}, "b200", "no"),
    (W4, "v100", "no"),
    (None, "v100", "ok"),
]


@pytest.mark.parametrize(("scheme", "machine", "status"), VERDICTS)
def test_schemes_on_vllm(facts: ModelFacts, scheme: dict[str, Any] | None, machine: str, status: str) -> None:
    found = verdict(facts, scheme, VLLM, named(machine))
    assert found.outcome == status and found.source
    assert bool(found.reason) == (status != "ok") and bool(found.nearest) == (status != "ok")


def verdict(facts: ModelFacts, scheme: dict[str, Any] | None, target: Any, machine: Any) -> Finding:
    """What the table says of the scheme on the engine."""
    return next(f for f in findings(Case(facts, scheme, target, machine)) if f.check == "scheme on engine")


def test_tensorrt_llm_takes_fp8_and_refuses_what_it_would_misread(facts: ModelFacts) -> None:
    target, h100 = {"engine": "tensorrt_llm"}, named("h100")
    assert verdict(facts, {"method": "fp8"}, target, h100).outcome == "ok"
    assert "for FP8 and answers garbage" in verdict(facts, {"method": "int8"}, target, h100).reason
    assert verdict(facts, W4, target, h100).outcome == "no"
    assert verdict(facts, None, target, CPU).reason == "TensorRT-LLM needs an NVIDIA GPU"


def test_an_engine_of_which_nothing_is_known_is_tried_and_said_so(facts: ModelFacts) -> None:
    found = verdict(facts, None, {"engine": "other"}, CPU)
    assert found.outcome == "slow" and "nothing is known of other" in found.reason


def test_float16_on_a_cpu_and_bfloat16_on_old_cards_are_refused(facts: ModelFacts) -> None:
    assert refused(facts, None, {**VLLM, "dtype": "float16"})[0].endswith("-> dtype: bfloat16")
    assert refused(facts, None, {**VLLM, "dtype": "bfloat16"}, named("t4"))[0].endswith("-> dtype: float16")
    assert refused(facts, None, {**VLLM, "dtype": "float16"}, named("t4")) == []


def test_a_kv_cache_that_is_known_to_lie_is_left_to_the_canary_with_a_note(facts: ModelFacts) -> None:
    found = feasibility(Case(facts, None, {**VLLM, "engine_args": {"kv-cache-dtype": "int8_per_token_head"}}, CPU))
    assert found.refused == () and "answered garbage" in found.notes[0]


def test_an_fp8_kv_cache_needs_a_card_that_knows_it(facts: ModelFacts) -> None:
    target = {**VLLM, "kv_cache_dtype": "fp8"}
    assert refused(facts, None, target) == refused(facts, None, target, named("l4")) == []
    assert refused(facts, None, target, named("a100-80g"))[0].endswith("-> kv_cache_dtype: fp8_e5m2")


# ---------------------------------------------------------------- groups

SIZES = [((96, 256), 128, 32), ((576, 1536), 128, 64), ((96, 144), 128, 48), ((64, 128), 128, 64), ((63, 63), 32, -1)]


@pytest.mark.parametrize(("sizes", "group", "nearest"), SIZES)
def test_a_group_that_divides_is_proposed(sizes: tuple[int, ...], group: int, nearest: int) -> None:
    linears = [(f"layer{k}", 64, size) for k, size in enumerate(sizes)]
    assert nearest_group(linears, group) == nearest
    assert nearest == -1 or all(size % nearest == 0 for size in sizes)


def test_hidden_size_96_and_groups_of_128_name_the_layers(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_llama(tmp_path / "m", hidden=96))
    found = refused(facts, {**W4, "group_size": 128})
    assert len(found) == 1 and found[0].endswith("-> group_size: 32")
    assert "group_size 128 does not divide the input size of 14 of 14 layers" in found[0]
    assert "model.layers.0.mlp.down_proj (192)" in found[0]
    assert refused(facts, {**W4, "group_size": 32}) == []
    assert list(group_reasons(facts.linears, None)) == []


def test_layers_that_are_ignored_need_no_group(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_llama(tmp_path / "m", intermediate_size=96))
    assert refused(facts, {**W4, "group_size": 64})
    assert refused(facts, {**W4, "group_size": 64, "ignore": ["lm_head", "down_proj"]}) == []


def test_the_4_bit_kernel_on_a_cpu_needs_multiples_of_32(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_llama(tmp_path / "m", intermediate_size=144))
    found = refused(facts, {**W4, "group_size": 16})
    assert len(found) == 1 and "multiples of 32" in found[0] and found[0].endswith("-> method: int8")
    assert "mlp.down_proj (64 x 144)" in found[0] and "gate_proj" not in found[0]
    assert refused(facts, {"method": "int8"}) == []


def test_gpu_kernels_have_their_own_group_sizes(facts: ModelFacts) -> None:
    assert refused(facts, {**W4, "group_size": 16}, machine=named("a10"))[0].endswith("-> group_size: 64")


# ---------------------------------------------------------------- layers that go together


@pytest.mark.parametrize("part", ["q_proj", "v_proj", "up_proj", "layers.3.self_attn.k_proj"])
def test_one_of_several_fused_layers_cannot_stay_behind(facts: ModelFacts, part: str) -> None:
    found = refused(facts, {"method": "int8", "ignore": ["lm_head", part]})
    assert len(found) == 1 and "engines fuse" in found[0] and part.rpartition(".")[2] in found[0]


@pytest.mark.parametrize("parts", [["q_proj", "k_proj", "v_proj"], ["layers.1.*.*"], ["o_proj", "down_proj"]])
def test_whole_groups_may_stay_behind(facts: ModelFacts, parts: list[str]) -> None:
    assert refused(facts, {"method": "int8", "ignore": ["lm_head", *parts]}) == []


def test_experts_go_together(tmp_path: Path) -> None:
    names = [name for name, _, _ in facts_of_folder(tiny_mixtral(tmp_path / "m")).linears]
    chosen = {name for name in names if "experts.2." not in name}
    assert "engines fuse" in next(iter(fused_reasons(names, chosen))).reason
    assert list(fused_reasons(names, {name for name in names if "experts" not in name})) == []


# ---------------------------------------------------------------- the model


def test_a_tied_head_cannot_be_quantized_and_an_untied_one_can(tmp_path: Path, facts: ModelFacts) -> None:
    scheme = {"method": "int8", "ignore": []}
    assert refused(facts, scheme) == [
        "lm_head shares its weights with the input embeddings: quantized, the checkpoint would grow"
        " -> ignore: [lm_head]"
    ]
    assert refused(facts_of_folder(tiny_llama(tmp_path / "u", tie_word_embeddings=False)), scheme) == []


def test_a_quantized_base_is_served_but_not_quantized_again(facts: ModelFacts) -> None:
    once = replace(facts, quantized="gptq 4-bit g128")
    assert refused(once, None) == []
    assert "quantized already (gptq 4-bit g128)" in refused(once, W4)[0]


def test_conv1d_layers_are_not_quantized(tmp_path: Path) -> None:
    gpt2 = facts_of_folder(tiny_gpt2(tmp_path / "m"))
    assert "Conv1D" in refused(gpt2, W4)[0] and refused(gpt2, None) == []


def test_quantized_experts_on_an_x86_processor_need_amx(tmp_path: Path) -> None:
    mixture = facts_of_folder(tiny_mixtral(tmp_path / "m"))
    plain = replace(CPU, instruction_set="avx2 avx512f avx512_vnni")
    for scheme in (W4, {"method": "int8"}, {"method": "fp8"}):
        assert "runs quantized experts with AMX alone" in refused(mixture, scheme, machine=plain)[0]
        assert refused(mixture, scheme, machine=replace(CPU, instruction_set="avx512f amx_tile amx_int8")) == []
        assert refused(mixture, scheme, machine=named("h100")) == []
    assert refused(mixture, None, machine=plain) == []
    stored = replace(mixture, quantized="compressed-tensors 8-bit int8")
    assert "AMX" in refused(stored, None, machine=plain)[0]


STACKED = [
    W4,
    {"method": "int8"},
    {"method": "mixed", "bits": 4, "group_size": 32, "int8": ["re:.*q_proj", "re:.*k_proj", "re:.*v_proj"]},
    {"library": "gptqmodel", "method": "gptq", "bits": 4, "group_size": 32},
    {"library": "modelopt", "method": "fp8"},
    {"library": "autogptq", "method": "gptq", "bits": 4, "group_size": 32},
    {"library": "autoawq", "method": "awq", "bits": 4, "group_size": 32},
]


@pytest.mark.parametrize("model_type", sorted(ARCHITECTURES))
def test_experts_in_one_tensor_are_refused_with_each_librarys_reason(model_type: str, tmp_path: Path) -> None:
    mixture = facts_of_folder(stacked(model_type, tmp_path / "m"))
    for scheme in STACKED:
        told = refused(mixture, scheme, machine=named("h100"))
        assert any("all experts of a layer lie in one tensor" in one and one.endswith("-> base") for one in told), told
    assert refused(mixture, None, machine=named("h100")) == [], "the base is served as it is"


GEMMA = {"architecture": "Gemma3ForConditionalGeneration", "model_type": "gemma3_text", "multimodal": True}
LOCKED = {"vllm": "0.32.0"}
"""Of the lock for CPUs: torchvision is not in it."""


def against_multimodal(facts: ModelFacts, target: Any, versions: dict[str, str], machine: Any = CPU) -> list[str]:
    found = findings(Case(facts, None, target, machine, versions))
    return [f"{one.reason} -> {one.nearest}" for one in found if "multimodal" in one.check and one.outcome == "no"]


def test_a_multimodal_model_needs_its_processor_or_a_target_of_text_alone(facts: ModelFacts) -> None:
    bare = replace(facts, **GEMMA)
    (told,) = against_multimodal(bare, VLLM, {}, named("h100"))
    assert "neither processor_config.json nor preprocessor_config.json" in told
    assert "-> engine_args: {language_model_only: true}" in told
    none = {"limit_mm_per_prompt": {"image": 0}}
    for engine_args in ({"language_model_only": True}, {"language-model-only": True}, none):
        assert against_multimodal(bare, {**VLLM, "engine_args": engine_args}, {}, named("h100")) == []
    some = {**VLLM, "engine_args": {"limit_mm_per_prompt": {"image": 1}}}
    assert len(against_multimodal(bare, some, {}, named("h100"))) == 1
    assert against_multimodal(replace(bare, processor=True), VLLM, {}, named("h100")) == []
    assert against_multimodal(facts, VLLM, LOCKED) == [], "a text model needs none"


def test_a_multimodal_model_needs_torchvision_which_the_lock_for_cpus_lacks(facts: ModelFacts) -> None:
    whole = replace(facts, **GEMMA, processor=True)
    (told,) = against_multimodal(whole, {**VLLM, "engine_args": {"language_model_only": True}}, LOCKED)
    assert "imports torchvision" in told and "toolchains.vllm" in told
    assert against_multimodal(whole, VLLM, {**LOCKED, "torchvision": "0.29.0"}, named("h100")) == []
    assert against_multimodal(whole, VLLM, {}) == [], "of somebody's own environment nothing is known"


def test_vllm_on_a_cpu_has_only_some_head_sizes(facts: ModelFacts) -> None:
    small = replace(facts, head_dim=16)
    assert "no attention for heads of 16" in refused(small, None)[0]
    assert refused(small, None, machine=named("h100")) == [] and refused(replace(facts, head_dim=64), None) == []


def test_ignoring_everything_leaves_nothing(facts: ModelFacts) -> None:
    assert "leaves none of 84 linear layers" in refused(facts, {"method": "int8", "ignore": ["re:.*"]})[0]


# ---------------------------------------------------------------- memory and length


def test_a_model_that_does_not_fit_says_what_it_needs(facts: ModelFacts) -> None:
    large = replace(facts, weight_bytes=140 * 10**9)
    found = refused(large, None, machine=named("a10"))
    assert len(found) == 1 and "weights 140 GB" in found[0] and "1 x NVIDIA A10 has 20.5 GB to give" in found[0]
    (one,) = refused(large, None, machine=named("h100x8"))
    assert "1 x NVIDIA H100 80GB has 73 GB" in one and one.endswith("-> engine_args: {tensor_parallel_size: 2}")
    assert refused(large, None, {**VLLM, "engine_args": {"tensor_parallel_size": 2}}, named("h100x8")) == []


def test_a_quantize_job_that_does_not_fit_says_what_it_needs(facts: ModelFacts) -> None:
    large = replace(facts, parameters=70 * 10**9)
    wide, small = {**VLLM, "engine_args": {"tensor_parallel_size": 2}}, replace(named("h100x8"), memory_bytes=400 << 20)
    (one,) = refused(large, {"method": "int8"}, wide, small)
    assert one.startswith("quantizing holds ") and "model 140 GB" in one and "h100x8 has 419 MB" in one
    assert refused(large, {"method": "int8"}, wide, named("h100x8")) == refused(large, None, wide, small) == []


def test_a_length_beyond_the_model_s_positions(facts: ModelFacts) -> None:
    assert refused(facts, None, {**VLLM, "max_model_len": 4096}) == [
        "max_model_len 4096 is more than the model's 2048 positions -> max_model_len: 2048"
    ]


# ---------------------------------------------------------------- selectors

MATCHES = [
    ("layers.1.*", "model.layers.1.mlp.up_proj", True),
    ("layers.1.*", "model.layers.10.mlp.up_proj", False),
    ("layers.1.*", "model.layers.11.mlp.up_proj", False),
    ("layers.1", "model.layers.1.mlp.up_proj", True),
    ("layers.1*", "model.layers.10.mlp.up_proj", True),
    ("up_proj", "model.layers.1.mlp.up_proj", True),
    ("up", "model.layers.1.mlp.up_proj", False),
    ("mlp.*_proj", "model.layers.1.mlp.up_proj", True),
    ("*.mlp", "model.layers.1.mlp.up_proj", True),
    (r"re:.*layers\.(1|2)\.", "model.layers.2.mlp.up_proj", True),
    (r"re:layers", "model.layers.2.mlp.up_proj", False),
    ({"select": "up_proj", "expect": 3}, "model.layers.1.mlp.up_proj", True),
]


@pytest.mark.parametrize(("selector", "name", "expected"), MATCHES)
def test_selectors_match_whole_segments(selector: Any, name: str, expected: bool) -> None:
    assert matches(selector, name) is expected


def test_layer_1_of_12_is_layer_1_alone(facts: ModelFacts) -> None:
    found = matched(["layers.1.*"], [name for name, _, _ in facts.linears])
    assert len(found) == 7 and all(name.startswith("model.layers.1.") for name in found)


def test_what_matches_nothing_or_another_number_is_a_problem() -> None:
    names = ["a.up_proj", "a.down_proj", "b.up_proj"]
    assert selector_problems(["lm_head", "up_proj", {"select": "a", "expect": 2}], names, "ignore") == ()
    unknown = selector_problems(["up_prj"], names, "ignore")[0]
    assert "'up_prj' matches none of 3" in unknown.message and "'up_proj'" in str(unknown.hint)
    other = selector_problems([{"select": "up_proj", "expect": 3}], names, "ignore")[0]
    assert "matches 2 layers (a.up_proj, b.up_proj); 3 are expected" in other.message


def test_a_broken_regular_expression_is_an_input_error() -> None:
    with pytest.raises(InputError, match="is no regular expression"):
        matches("re:(", "a")


def test_groups_that_onnx_runtimes_kernel_does_not_take_are_refused(facts: ModelFacts) -> None:
    ort = {"engine": "onnxruntime"}
    assert refused(facts, {**W4, "group_size": 32}, ort) == []
    (one,) = refused(facts, {**W4, "group_size": 8}, ort)
    assert "takes groups of 16, 32, 64, 128, 256, not 8" in one
    (other,) = refused(facts, {"method": "int8"}, ort)
    assert "in 4 bits, no other quantized checkpoint" in other
