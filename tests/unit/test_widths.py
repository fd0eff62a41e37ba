"""Over how many GPUs the tuner would spread a model: only what the model can be cut into and fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.engines import vllm
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.records import Candidate, ModelFacts
from optpipe.stages.tune import other_widths
from tests.models import tiny_llama

EIGHT = named("h100x8")
W4: dict[str, Any] = {"method": "gptq", "bits": 4, "group_size": 32, "symmetric": False}


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    """A Llama of 8 heads of 32 values, 4 of keys and values."""
    return facts_of_folder(tiny_llama(tmp_path / "m", hidden=256))


def widths(facts: ModelFacts, scheme: dict[str, Any] | None = None, **engine_args: Any) -> tuple[int, ...]:
    target = {"engine": "vllm", "engine_args": engine_args}
    return other_widths(facts, Candidate("one@vllm", "one", "vllm", scheme, target), EIGHT)


def test_a_width_that_does_not_share_out_the_heads_is_not_tried(facts: ModelFacts) -> None:
    assert widths(facts) == (2, 4, 8)
    assert widths(replace(facts, heads=12, kv_heads=12)) == (2, 4)
    assert widths(replace(facts, heads=9)) == ()


def test_a_width_whose_shards_would_cut_a_group_is_not_tried(facts: ModelFacts) -> None:
    assert widths(facts, W4) == (2, 4, 8)
    assert widths(facts, {**W4, "group_size": 128}) == (2,)


def test_neither_the_targets_own_width_nor_more_gpus_than_there_are(facts: ModelFacts) -> None:
    assert widths(facts, tensor_parallel_size=4) == (1, 2, 8)
    assert widths(facts, pipeline_parallel_size=2) == (2, 4)


def test_a_width_over_which_the_model_does_not_fit_is_not_tried(facts: ModelFacts) -> None:
    large = replace(facts, weight_bytes=140 * 10**9)
    assert widths(large, tensor_parallel_size=8) == (2, 4)


def test_where_one_width_is_left_it_is_no_setting_of_the_search(facts: ModelFacts) -> None:
    assert vllm.search_space(EIGHT, (2, 4))["tensor_parallel_size"] == (2, 4)
    assert "tensor_parallel_size" not in vllm.search_space(EIGHT, ())
    assert other_widths(facts, Candidate("base@vllm", "base", "vllm", None, {}), named("server-cpu")) == ()
