"""What plan says of mixed schemes, 8-bit weights alone, 4-bit floats and rotations, before anything runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optpipe.model.compat import Case, feasibility
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.model.roofline import calibration_operations, prefill_bound
from optpipe.model.schemes import kind_of, layout_of
from optpipe.records import ModelFacts
from tests.models import tiny_llama, tiny_mixtral

VLLM = {"engine": "vllm"}
MIXED: dict[str, Any] = {"method": "mixed", "bits": 4, "group_size": 32, "symmetric": False, "int8": ["down_proj"]}


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return facts_of_folder(tiny_llama(tmp_path / "m"))


def refused(facts: ModelFacts, scheme: dict[str, Any], machine: str = "server-cpu") -> str:
    return "; ".join(no.reason for no in feasibility(Case(facts, scheme, VLLM, named(machine))).refused)


@pytest.mark.parametrize(
    ("scheme", "kind", "label"),
    [
        (MIXED, "mixed", "W4A16 g32 asymmetric"),
        ({"method": "rtn", "bits": 8, "group_size": -1}, "w8a16", "W8A16 per channel symmetric"),
        ({"method": "nvfp4"}, "nvfp4", "NVFP4 W4A4"),
        ({"method": "mxfp4"}, "mxfp4", "MXFP4 W4A4"),
        ({"method": "spinquant", "group_size": 64}, "w4a16", "W4A16 g64 symmetric"),
    ],
)
def test_the_words_for_a_scheme(scheme: dict[str, Any], kind: str, label: str) -> None:
    assert (kind_of(scheme), layout_of(scheme).label) == (kind, label)


@pytest.mark.parametrize(
    ("scheme", "says"),
    [
        (MIXED, ""),
        ({"method": "rtn", "bits": 8, "group_size": -1}, "vLLM on CPU has no kernel for 8-bit weight-only"),
        ({"method": "nvfp4"}, "vLLM on CPU has no kernel for 4-bit floats"),
        ({"method": "mxfp4"}, "vLLM on CPU has no kernel for 4-bit floats"),
        ({**MIXED, "method": "awq-gptq"}, ""),
    ],
)
def test_what_vllm_on_a_cpu_loads(facts: ModelFacts, scheme: dict[str, Any], says: str) -> None:
    found = refused(facts, scheme)
    assert says in found
    assert bool(found) == bool(says)


def test_4_bit_floats_run_on_blackwell_in_their_own_group_size(facts: ModelFacts) -> None:
    assert refused(facts, {"method": "nvfp4"}, "b200") == refused(facts, {"method": "mxfp4"}, "b200") == ""
    plain, small = (prefill_bound(facts, s, named("b200"), 2048) for s in ({"method": "fp8"}, {"method": "nvfp4"}))
    assert plain and small and small.value < plain.value


@pytest.mark.parametrize(
    ("int8", "says"),
    [
        (["dwon_proj"], "int8: 'dwon_proj' matches none"),
        ([{"select": "down_proj", "expect": 3}], "int8: 'down_proj' matches 2 layers"),
        (["layers"], "int8 leaves none of 14 layers for 4 bits"),
        (["q_proj"], "would have 4 bits"),
        (["layers.1.mlp.gate_proj", "layers.1.mlp.down_proj"], "engines fuse"),
    ],
)
def test_a_mixed_scheme_that_cannot_be_meant_is_refused(facts: ModelFacts, int8: list[Any], says: str) -> None:
    assert says in refused(facts, {**MIXED, "int8": int8})


def test_a_mixed_scheme_may_take_whole_fused_groups(facts: ModelFacts) -> None:
    assert refused(facts, {**MIXED, "int8": ["q_proj", "k_proj", "v_proj", "layers.0.mlp.*"]}) == ""


def test_experts_of_one_layer_have_one_scheme(tmp_path: Path) -> None:
    facts = facts_of_folder(tiny_mixtral(tmp_path / "m"))
    assert "int8 names" in refused(facts, {**MIXED, "int8": ["experts.*.w2"]})


def test_rotations_need_heads_of_a_power_of_two(tmp_path: Path) -> None:
    spin = {**MIXED, "method": "spinquant", "int8": []}
    del spin["int8"]
    assert refused(facts_of_folder(tiny_llama(tmp_path / "a")), spin) == ""
    odd = facts_of_folder(tiny_llama(tmp_path / "b", hidden=96, head_dim=48, num_attention_heads=2))
    assert "a power of two, not 48" in refused(odd, spin)


def test_learned_rounding_is_planned_with_the_hours_that_it_takes() -> None:
    learned = {"method": "autoround", "iterations": 200, "batch": 8}
    both = {"method": "awq-gptq", "max_tokens": 8192}
    slow, twice, once, free = (calibration_operations(s, 64, 512) for s in (learned, both, MIXED, {"method": "mxfp4"}))
    assert slow > 10 * once and twice > 2 * once and free == 0
    few = calibration_operations({"method": "awq", "grid": 10, "max_tokens": 4096}, 64, 512)
    assert few < once / 2, "AWQ looks at no more tokens than it is told to"
