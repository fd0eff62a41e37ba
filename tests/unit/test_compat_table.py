"""The compatibility table is data: complete, sourced, and what the named libraries' own lists say."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe.model import architectures
from optpipe.model.compat import Case, elsewhere, findings
from optpipe.model.compat_table import Asked, Row, first, numbers, row_of, tables
from optpipe.model.facts import facts_of_folder
from optpipe.model.hardware import named
from optpipe.model.hardware_table import MACHINES
from optpipe.model.schemes import KINDS, stored_as
from optpipe.records import ModelFacts
from optpipe.toolchains.versions import locked_version
from tests.models import tiny_llama

CPU, A10, H100, B200 = (named(name) for name in ("server-cpu", "a10", "h100", "b200"))
FORMATS = ("compressed-tensors", "gptq", "awq", "modelopt", "bitsandbytes", "gguf", "fp8", "quark")


@pytest.fixture
def facts(tmp_path: Path) -> ModelFacts:
    return facts_of_folder(tiny_llama(tmp_path / "m", layers=4))


def rows() -> list[Row]:
    found = tables()
    return [*found.architectures, *found.writes, *found.loads, *found.dtypes, *found.kv_cache]


def test_every_row_that_is_not_fine_has_its_reason_what_is_nearest_and_a_source() -> None:
    assert len(rows()) > 50
    for row in rows():
        assert row.source and (row.status == "ok") == (not row.reason) == (row.nearest is None), row
        assert set(row.scheme) <= {"base", *KINDS} and row.capability[0] < row.capability[1], row


def test_every_question_has_an_answer() -> None:
    """scheme x format x engine x machine: the table never shrugs at what it knows the words of."""
    engines = tables().engines
    assert engines == ("vllm", "tensorrt_llm", "onnxruntime")
    for kind, form, engine, machine in itertools.product(KINDS, FORMATS, engines, MACHINES.values()):
        assert first(tables().loads, Asked(engine, machine, scheme=kind, format=form)), (kind, form, engine, machine)
    for library, kind in itertools.product(("llmcompressor", "gptqmodel", "autoawq", "modelopt", "x"), KINDS):
        assert first(tables().writes, Asked("vllm", CPU, scheme=kind, library=library))


def test_every_row_decides_something() -> None:
    """A row that another one in front of it always hides is a mistake."""
    machines = [named(name) for name in ("server-cpu", "v100", "t4", "a10", "l4", "h100", "b200")]
    versions = (None, "1.2.0")
    asked = [
        Asked(engine, machine, version, kind, "", form, symmetric)
        for engine, machine, version, kind, form, symmetric in itertools.product(
            tables().engines, machines, versions, ("base", *KINDS), ("plain", *FORMATS), (True, False)
        )
    ]
    used = {id(first(tables().loads, one)) for one in asked}
    assert [row for row in tables().loads if id(row) not in used] == []


ANSWERS = [
    ("w4a16", "gptq", True, "vllm", CPU, "ok"),
    ("w4a16", "gptq", False, "vllm", CPU, "no"),
    ("w4a16", "awq", True, "vllm", CPU, "ok"),
    ("w8a16", "gptq", True, "vllm", CPU, "no"),
    ("mixed", "compressed-tensors", True, "vllm", CPU, "ok"),
    ("int8", "modelopt", True, "vllm", CPU, "no"),
    ("nvfp4", "compressed-tensors", True, "vllm", CPU, "no"),
    ("w4a16", "bitsandbytes", True, "vllm", A10, "no"),
    ("w8a16", "gptq", True, "vllm", A10, "ok"),
    ("w3a16", "gptq", True, "vllm", A10, "no"),
    ("int8", "modelopt", True, "vllm", H100, "no"),
    ("fp8", "modelopt", True, "vllm", H100, "ok"),
    ("nvfp4", "compressed-tensors", True, "vllm", B200, "ok"),
    ("nvfp4", "compressed-tensors", True, "vllm", H100, "slow"),
    ("fp8", "modelopt", True, "tensorrt_llm", H100, "ok"),
    ("w4a16", "modelopt", True, "tensorrt_llm", A10, "ok"),
    ("w4a16", "awq", True, "tensorrt_llm", H100, "no"),
    ("nvfp4", "modelopt", True, "tensorrt_llm", H100, "no"),
    ("w4a16", "gptq", True, "onnxruntime", CPU, "ok"),
    ("w4a16", "compressed-tensors", True, "onnxruntime", CPU, "ok"),
    ("int8", "compressed-tensors", True, "onnxruntime", CPU, "no"),
]


@pytest.mark.parametrize(("kind", "form", "symmetric", "engine", "machine", "status"), ANSWERS)
def test_what_loads_where(kind: str, form: str, symmetric: bool, engine: str, machine: object, status: str) -> None:
    assert machine is not None
    row = first(tables().loads, Asked(engine, machine, None, kind, "", form, symmetric))  # type: ignore[arg-type]
    assert row and row.status == status


def test_versions_decide_where_a_row_names_them() -> None:
    def ask(version: str | None) -> str:
        row = first(tables().loads, Asked("tensorrt_llm", H100, version, "fp8", "", "compressed-tensors"))
        return row.status if row else "none"

    assert [ask(version) for version in ("1.2.0", "1.3.0rc20", "1.4", None)] == ["no", "ok", "ok", "ok"]
    assert numbers("0.32.0+cpu") == (0, 32, 0) and numbers("1.3.0rc20") == (1, 3, 0)


def test_a_wrong_row_is_found_when_the_table_is_read() -> None:
    with pytest.raises(ValueError, match="engin"):
        row_of({"engin": "vllm", "status": "ok", "source": "x"}, {"x": "y"})


STORED = {
    "gptq 4-bit g128": ("w4a16", "gptq", 128, True),
    "gptq 4-bit g128 asymmetric": ("w4a16", "gptq", 128, False),
    "compressed-tensors 8-bit int8": ("int8", "compressed-tensors", None, True),
    "compressed-tensors 4-bit g32": ("w4a16", "compressed-tensors", 32, True),
    "modelopt nvfp4": ("nvfp4", "modelopt", None, True),
    "fp8": ("fp8", "fp8", None, True),
    "bitsandbytes 4-bit": ("w4a16", "bitsandbytes", None, True),
    "surprise": ("surprise", "surprise", None, True),
}


@pytest.mark.parametrize("words", STORED)
def test_a_quantized_base_is_looked_up_as_it_is_stored(words: str) -> None:
    found = stored_as(words)
    assert (found.kind, found.format, found.group, found.symmetric) == STORED[words]


def test_a_quantized_base_that_does_not_load_is_refused_as_base(facts: ModelFacts) -> None:
    once = replace(facts, quantized="gptq 8-bit g128")
    against = [one for one in findings(Case(once, None, {"engine": "vllm"}, CPU)) if one.outcome == "no"]
    assert [one.reason for one in against] == ["vLLM on CPU has no kernel for 8-bit weight-only"]
    away = elsewhere(Case(once, None, {"engine": "vllm"}, CPU))
    assert away == ("vLLM on an NVIDIA GPU of compute capability 7.5 or more",)


# ---------------------------------------------------------------- architectures


def test_the_lists_are_of_the_versions_that_are_installed() -> None:
    for cuda in (False, True):
        assert locked_version("quantize", "transformers", cuda=cuda) == architectures.known()["transformers"]
    assert locked_version("vllm", "vllm", cuda=False) == architectures.known()["vllm"]
    assert locked_version("onnxruntime", "onnxruntime-genai", cuda=False) == architectures.known()["onnxruntime"]


VERSIONS = {"vllm": "0.32.0", "transformers": "5.17.0"}


@pytest.mark.parametrize(
    ("architecture", "model_type", "against"),
    [
        ("LlamaForCausalLM", "llama", 0),
        ("MixtralForCausalLM", "mixtral", 0),
        ("OursForCausalLM", "llama", 0),
        ("Gemma3ForConditionalGeneration", "gemma3_text", 0),
        ("LlavaForConditionalGeneration", "llama", 1),
        ("QWenLMHeadModel", "qwen", 2),
        ("OursForCausalLM", "ours", 2),
    ],
)
def test_an_architecture_that_no_library_knows_is_refused(
    facts: ModelFacts, architecture: str, model_type: str, against: int
) -> None:
    other = replace(facts, architecture=architecture, model_type=model_type)
    case = Case(other, None, {"engine": "vllm"}, CPU, VERSIONS)
    no = [one for one in findings(case) if one.outcome == "no"]
    assert len(no) == against and all(architecture in one.reason and one.nearest for one in no)
    assert all(one.outcome == "ok" for one in findings(replace(case, own_code=True)))
    assert all(one.outcome == "ok" for one in findings(replace(case, versions={}))), "one's own environment may know it"


@pytest.mark.parametrize(
    ("architecture", "against"),
    [
        ("LlamaForCausalLM", 0),
        ("GptOssForCausalLM", 0),
        ("GraniteMoeForCausalLM", 1),
        ("Llama4ForConditionalGeneration", 1),
    ],
)
def test_an_architecture_that_the_onnx_model_builder_does_not_know_is_refused(
    facts: ModelFacts, architecture: str, against: int
) -> None:
    target = {"engine": "onnxruntime", "precision": "int8"}
    case = Case(replace(facts, architecture=architecture), None, target, CPU, {"onnxruntime-genai": "0.18.0"})
    no = [one for one in findings(case) if one.outcome == "no"]
    assert len(no) == against and all(architecture in one.reason and one.nearest for one in no)
    assert all(one.outcome == "ok" for one in findings(replace(case, versions={}))), "one's own environment may know it"


# ---------------------------------------------------------------- parallelism

WIDE = [
    ({}, {"tensor_parallel_size": 2}, ""),
    ({}, {"tensor_parallel_size": 16}, "needs 16 GPUs; there are 8"),
    ({}, {"tensor_parallel_size": 4, "pipeline_parallel_size": 4}, "needs 16 GPUs; there are 8"),
    ({"heads": 6}, {"tensor_parallel_size": 4}, "does not divide the model's 6 attention heads"),
    ({"heads": 12, "kv_heads": 6}, {"tensor_parallel_size": 4}, "does not share out 6 key-value heads"),
    ({}, {"pipeline-parallel-size": 8}, "is more than the model's 4 layers"),
]


@pytest.mark.parametrize(("shape", "settings", "shown"), WIDE)
def test_shards_must_come_out_even(
    facts: ModelFacts, shape: dict[str, int], settings: dict[str, int], shown: str
) -> None:
    case = Case(replace(facts, **shape), None, {"engine": "vllm", "engine_args": settings}, named("h100x8"))
    no = [one for one in findings(case) if one.outcome == "no"]
    assert [shown in one.reason for one in no] == ([True] if shown else [])
    assert all(one.nearest for one in no)


def test_a_group_must_divide_the_shards_too(tmp_path: Path) -> None:
    wide = facts_of_folder(tiny_llama(tmp_path / "m", hidden=256, intermediate_size=384))
    scheme = {"method": "gptq", "bits": 4, "group_size": 128}
    target = {"engine": "vllm", "engine_args": {"tensor_parallel_size": 2}}
    no = [one for one in findings(Case(wide, scheme, target, named("h100x8"))) if one.outcome == "no"]
    assert len(no) == 1 and no[0].check == "parallelism"
    assert "group_size 128 does not divide the shards of model.layers.0.mlp.down_proj (384 / 2 = 192)" in no[0].reason
    assert no[0].nearest == "tensor_parallel_size: 1"
    finer = {**scheme, "group_size": 64}
    assert all(one.outcome == "ok" for one in findings(Case(wide, finer, target, named("h100x8"))))


def test_what_vllm_cannot_import_without_torchvision_is_what_it_generates_text_with() -> None:
    known = architectures.known()
    without = set(known["vllm_torchvision"])
    assert len(without) == len(known["vllm_torchvision"]) and "Gemma3ForConditionalGeneration" in without
    assert without <= set(known["vllm_generates"]), "else a plan would call them unknown, not lacking"
    assert locked_version("vllm", "torchvision", cuda=False) is None
    assert locked_version("vllm", "torchvision", cuda=True) is not None
