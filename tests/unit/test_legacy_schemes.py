"""auto-gptq and autoawq: what a recipe may ask of them, and how a base is told to transformers 4."""

from __future__ import annotations

from typing import Any

import pytest

from optpipe.backends.quantizers import autoawq, autogptq, legacy
from optpipe.worker import Failure

GPTQ: dict[str, Any] = {"library": "autogptq", "method": "gptq"}
AWQ: dict[str, Any] = {"library": "autoawq", "method": "awq"}


@pytest.mark.parametrize(
    ("values", "field"),
    [({"bits": 3}, "bits"), ({"group_size": 60}, "group_size"), ({"dampening": 0.0}, "dampening")],
)
def test_values_that_auto_gptq_cannot_mean_are_refused(values: dict[str, Any], field: str) -> None:
    assert [problem.place for problem in autogptq.validate(autogptq.AutoGptq(**GPTQ, **values))] == [field]


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"bits": 8}, "bits"),
        ({"group_size": -1}, "group_size"),
        ({"symmetric": True}, "symmetric"),
        ({"max_tokens": 0}, "max_tokens"),
    ],
)
def test_values_that_autoawq_cannot_mean_are_refused(values: dict[str, Any], field: str) -> None:
    assert [problem.place for problem in autoawq.validate(autoawq.AutoAwq(**AWQ, **values))] == [field]


def test_an_architecture_that_was_not_tried_is_refused_with_those_that_were() -> None:
    assert autogptq.unmapped(autogptq.AutoGptq(**GPTQ), "LlamaForCausalLM") is None
    told = autoawq.unmapped(autoawq.AutoAwq(**AWQ), "Gemma3ForCausalLM")
    assert told is not None and "Gemma3ForCausalLM" in told and "Llama" in told


@pytest.mark.parametrize("order", [True, False])
def test_engines_are_told_of_no_order_since_groups_lie_as_they_are(order: bool) -> None:
    """vLLM refuses desc_act with groups; static groups are stored in place."""
    assert autogptq.quantization(autogptq.AutoGptq(**GPTQ, activation_order=order))["desc_act"] is False


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


@pytest.mark.parametrize(
    ("config", "old"),
    [
        ({"rope_theta": 5.0}, {}),
        ({"rope_parameters": {"rope_theta": 5.0, "rope_type": "default"}}, {"rope_theta": 5.0}),
        ({"rope_parameters": {"rope_theta": 5.0, **LLAMA3}}, {"rope_theta": 5.0, "rope_scaling": LLAMA3}),
    ],
)
def test_rotary_settings_of_transformers_5_are_put_where_transformers_4_looks(
    config: dict[str, Any], old: dict[str, Any]
) -> None:
    assert legacy.rope(config) == old


def test_rotary_settings_by_layer_type_have_no_old_place() -> None:
    by_type = {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}}
    with pytest.raises(Failure, match="sliding_attention"):
        legacy.rope({"rope_parameters": by_type})


def test_what_is_left_unpacked_or_added_is_noticed() -> None:
    base = {"a.weight", "norm.weight"}
    packed = {"a.qweight": 0, "a.qzeros": 0, "a.scales": 0, "a.g_idx": 0, "norm.weight": 0}
    legacy.expect(packed, base, ["a"])
    for wrong in ({**packed, "a.bias": 0}, {k: v for k, v in packed.items() if k != "a.scales"}, {"a.weight": 0}):
        with pytest.raises(Failure, match="are not as they should be"):
            legacy.expect(wrong, base, ["a"])
