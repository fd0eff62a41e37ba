"""Quantizing mixtures of experts: which experts the calibration text reaches, and what becomes of the others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from optpipe.model.safetensors import map_tensor, read_header
from tests.real import made
from tests.real.architectures import EXPERTS, LAYERS
from tests.real.bodies import run_body

pytestmark = pytest.mark.real

W4 = {"bits": 4, "group_size": 32, "symmetric": False}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight experts of which the routers use two."""
    return made.model("one-sided", tmp_path_factory.mktemp("experts") / "base")


@pytest.fixture(scope="module")
def text(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return made.rows(base, tmp_path_factory.mktemp("text") / "rows")


def codes(folder: Path) -> dict[str, bytes]:
    """The packed codes of every layer."""
    (path,) = folder.glob("*.safetensors")
    header = read_header(path)
    packed = [fact for fact in header.tensors if fact.name.endswith(".weight_packed")]
    return {fact.name.removesuffix(".weight_packed"): map_tensor(path, header, fact).tobytes() for fact in packed}


def test_an_expert_that_the_router_never_chose_is_rounded_to_nearest_and_named(
    base: Path, text: dict[str, Path], tmp_path: Path
) -> None:
    inputs = {"model": base, "tokens": text["calibrate"]}
    record = run_body("quantize", tmp_path / "gptq", inputs, {"method": "gptq", **W4})
    run_body("quantize", tmp_path / "rtn", {"model": base}, {"method": "rtn", **W4})

    found: dict[str, Any] = record["experts"]
    tokens = 8 * made.LENGTH
    places = [f"model.layers.{layer}.mlp.experts" for layer in range(LAYERS)]
    every = {"tokens": [tokens, tokens, *[0] * (EXPERTS - 2)], "reached": 2, "least": 0}
    assert found["layers"] == dict.fromkeys(places, every)
    assert found["unreached"] == [f"{place}.{expert}" for place in places for expert in range(2, EXPERTS)]
    assert found["calibration_tokens"] == tokens and found["fallback"] == "rounded to nearest"
    assert any("reached 4 of 16 experts; rounded to nearest: model.layers.0" in note for note in record["notes"])

    ours, nearest = codes(tmp_path / "gptq" / "files"), codes(tmp_path / "rtn" / "files")
    same = {name.rpartition(".")[0] for name in ours if ".experts." in name and ours[name] == nearest[name]}
    assert same == set(found["unreached"])
    assert not [name for name in record["losses"] if name.rpartition(".")[0] in found["unreached"]]


def test_a_method_that_rounds_nothing_says_whose_tokens_it_used(
    base: Path, text: dict[str, Path], tmp_path: Path
) -> None:
    inputs = {"model": base, "tokens": text["calibrate"]}
    options = {"method": "awq", **W4, "max_tokens": 512}
    record = run_body("quantize", tmp_path / "awq", inputs, options)
    assert record["experts"]["fallback"] == "calibrated on other experts' tokens"
    assert record["experts"]["calibration_tokens"] == 512 and len(record["experts"]["unreached"]) == 12


def test_without_experts_or_without_text_there_is_no_table(base: Path, tmp_path: Path) -> None:
    assert run_body("quantize", tmp_path / "int8", {"model": base}, {"method": "int8"})["experts"] is None
