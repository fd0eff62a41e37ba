"""One class per method: the recipe's fields, their validation, and what the worker gets."""

from __future__ import annotations

import dataclasses
import json

import pytest
from pydantic import TypeAdapter, ValidationError

from optpipe.backends.quantizers.llmcompressor import unmapped, validate
from optpipe.backends.quantizers.llmcompressor_schemes import (
    SCHEMES,
    AutoRound,
    Awq,
    AwqGptq,
    Fp8,
    Gptq,
    Int8,
    Mixed,
    Mxfp4,
    Nvfp4,
    Rtn,
    Scheme,
    SmoothQuant,
    SpinQuant,
)
from optpipe.backends.quantizers.scheme import Select, read
from optpipe.gates import bits_of
from optpipe.model.schemes import DATA_FREE, layout_of
from optpipe.records import to_json


@pytest.mark.parametrize("method", sorted(SCHEMES))
def test_a_method_alone_is_a_valid_scheme_with_every_field_documented(method: str) -> None:
    adapter = TypeAdapter(SCHEMES[method])
    assert validate(adapter.validate_python({"method": method})) == ()
    properties = adapter.json_schema()["properties"]
    assert [name for name, spec in properties.items() if not spec.get("description")] == []


@pytest.mark.parametrize("method", sorted(SCHEMES))
def test_the_recipes_block_reaches_the_worker_unchanged(method: str) -> None:
    block = {"method": method, "ignore": ["lm_head", {"select": "layers.1.*", "expect": 7}]}
    if method == "mixed":
        block["int8"] = [{"select": "down_proj", "expect": 30}, "layers.0.*"]
    scheme = TypeAdapter(SCHEMES[method]).validate_python(block)
    assert scheme.ignore == ("lm_head", Select("layers.1.*", 7))
    assert read(json.loads(json.dumps(to_json(dataclasses.asdict(scheme)))), SCHEMES) == scheme


@pytest.mark.parametrize("key", ["group_sizes", "bit", "simmetric"])
def test_an_unknown_key_is_an_error(key: str) -> None:
    with pytest.raises(ValidationError, match=key):
        TypeAdapter(Gptq).validate_python({"method": "gptq", key: 4})


def test_an_unknown_method_is_named_with_the_closest_one() -> None:
    with pytest.raises(ValueError, match=r"'gtpq' is not known; did you mean 'gptq'"):
        read({"method": "gtpq"}, SCHEMES)


@pytest.mark.parametrize(
    ("scheme", "place", "message"),
    [
        (Gptq(bits=5), "bits", "5 is not 4 or 8"),
        (Awq(bits=3), "bits", "3 is not 4 or 8"),
        (Gptq(group_size=0), "group_size", "0 is not -1 or a positive multiple of 8"),
        (Awq(group_size=-2), "group_size", "-2 is not -1 or a positive multiple of 8"),
        (Gptq(group_size=100), "group_size", "100 is not -1 or a positive multiple of 8"),
        (Awq(grid=1), "grid", "1 is under 3"),
        (Awq(max_tokens=0), "max_tokens", "0 is under 1"),
        (SmoothQuant(strength=1.5), "strength", "1.5 is not in 0..1"),
        (SmoothQuant(strength=-0.1), "strength", "-0.1 is not in 0..1"),
        (Gptq(dampening=0.0), "dampening", "0.0 is not in 0..1, above 0"),
        (SpinQuant(dampening=2.0), "dampening", "2.0 is not in 0..1, above 0"),
        (Rtn(bits=2), "bits", "2 is not 4 or 8"),
        (Mixed(bits=8), "bits", "8 is not 4"),
        (Mixed(int8=()), "int8", "names no layer"),
        (AwqGptq(grid=2), "grid", "2 is under 3"),
        (AutoRound(iterations=0), "iterations", "0 is under 1"),
        (AutoRound(batch=0), "batch", "0 is under 1"),
    ],
)
def test_a_value_that_cannot_be_meant_is_named_with_its_field(scheme: Scheme, place: str, message: str) -> None:
    problems = validate(scheme)
    assert [(p.place, p.message) for p in problems] == [(place, message)]
    assert problems[0].hint


def test_two_wrong_values_are_told_together() -> None:
    assert [p.place for p in validate(Gptq(bits=2, group_size=-5))] == ["bits", "group_size"]


def test_one_scale_per_channel_and_the_ends_of_strength_are_allowed() -> None:
    assert validate(Gptq(group_size=-1)) == ()
    assert validate(SmoothQuant(strength=0.0)) == validate(SmoothQuant(strength=1.0)) == ()


def test_what_plan_asks_of_a_scheme() -> None:
    free = {name for name, one in SCHEMES.items() if not one.needs_calibration}
    assert free == {"int8", "fp8", "rtn", "mxfp4"}
    assert (Gptq(bits=8).bits, SmoothQuant().bits, Int8().bits, Fp8().bits) == (8, 8, 8, 8)
    assert (Rtn().bits, Nvfp4().bits, Mxfp4().bits, Mixed().bits) == (8, 4, 4, 4)


@pytest.mark.parametrize("method", sorted(SCHEMES))
def test_the_plans_arithmetic_knows_every_method(method: str) -> None:
    scheme = SCHEMES[method]()
    assert layout_of(dataclasses.asdict(scheme)).bits == bits_of(dataclasses.asdict(scheme)) == scheme.bits
    assert (method in DATA_FREE) == (not scheme.needs_calibration)


def test_smoothing_an_architecture_without_a_mapping_is_refused_with_a_way_out() -> None:
    assert unmapped(Awq(), "LlamaForCausalLM") is None
    assert unmapped(SmoothQuant(), "Qwen2ForCausalLM") is None
    assert unmapped(Gptq(), "UnheardOfForCausalLM") is None
    assert unmapped(AwqGptq(), "Qwen3ForCausalLM") is unmapped(SpinQuant(), "LlamaForCausalLM") is None
    assert "spinquant on Qwen3ForCausalLM" in str(unmapped(SpinQuant(), "Qwen3ForCausalLM"))
    reason = unmapped(SmoothQuant(), "UnheardOfForCausalLM")
    assert reason is not None
    assert "UnheardOfForCausalLM" in reason
    assert "gptq needs none" in reason
