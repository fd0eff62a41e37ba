"""The real model builder, onnxruntime and onnxruntime-genai on a real model's first three layers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from tests.real.bodies import run_body, run_in

pytestmark = pytest.mark.real
TOOLCHAIN = "onnxruntime-cpu"
RTN = {"method": "rtn", "bits": 4, "group_size": 32}
COMPARE = """
import sys, json, torch
from pathlib import Path
from safetensors.torch import load_file
from optpipe.backends.compilers.repack import to_gptq, unpacked
model, out = Path(sys.argv[1]), Path(sys.argv[2])
stored = json.loads((model / "config.json").read_text())["quantization_config"]
before, after = load_file(model / "model.safetensors"), load_file(to_gptq(model, stored, out) / "model.safetensors")
names = [name.removesuffix(".weight_packed") for name in before if name.endswith(".weight_packed")]
for name in names:
    scale = before[name + ".weight_scale"].float()
    group = before[name + ".weight_shape"][1].item() // scale.shape[1]
    codes = unpacked(before[name + ".weight_packed"]).float() - 8
    zero = before.get(name + ".weight_zero_point")
    zero = 0 if zero is None else (unpacked(zero.t()).t().float() - 8).repeat_interleave(group, 1)
    theirs = (codes - zero) * scale.repeat_interleave(group, 1)
    mine = unpacked(after[name + ".qweight"].t().contiguous()).float()
    zeros = ((unpacked(after[name + ".qzeros"]) + 1) & 15).float().t()
    index = after[name + ".g_idx"].long()
    assert torch.equal((mine - zeros[:, index]) * after[name + ".scales"].float().t()[:, index], theirs), name
print(len(names))
"""


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory, cut3: Path) -> Path:
    folder = tmp_path_factory.mktemp("tokens")
    text = folder / "text.jsonl"
    words = "The quick brown fox jumps over a lazy dog while seven clever foxes watch. "
    text.write_text("".join(json.dumps({"text": words * 20}) + "\n" for _ in range(8)), encoding="utf-8")
    options = {"length": 128, "first_row": 0, "rows": 4, "template": False, "min_rows": 0}
    record = run_body("tokens", folder / "job", {"model": cut3, "text": text}, options)
    assert "failure" not in record, record
    return folder / "job" / "files"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, cut3: Path, tokens: Path) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("base") / "score"
    options = {"dtype": "bfloat16", "keep_logits": True}
    return folder / "files", run_body("score", folder, {"model": cut3, "tokens.a": tokens}, options)


def compiled(folder: Path, model: Path, **options: Any) -> dict[str, Any]:
    return run_body("compile-onnxruntime", folder, {"model": model}, options, toolchain=TOOLCHAIN)


def loss(record: dict[str, Any]) -> float:
    """Nats per token."""
    assert "failure" not in record, record
    return float(sum(unit["nll"] for unit in record["units"]) / sum(unit["tokens"] for unit in record["units"]))


def test_a_float32_graph_gives_the_checkpoints_own_numbers(
    tmp_path: Path, cut3: Path, tokens: Path, base: tuple[Path, dict[str, Any]]
) -> None:
    record = compiled(tmp_path / "graph", cut3, precision="fp32")
    assert record["nodes"]["MatMul"] == 16 and record["nodes"]["GroupQueryAttention"] == 3, record
    files = tmp_path / "graph" / "files"
    assert (files / "tokenizer.json").read_bytes() == (cut3 / "tokenizer.json").read_bytes()
    inputs = {"model": files, "tokens.a": tokens, "base": base[0]}
    scored = run_body("score-onnxruntime", tmp_path / "score", inputs, toolchain=TOOLCHAIN)
    assert abs(math.expm1(loss(scored) - loss(base[1]))) < 0.01
    assert sum(unit["kl"] for unit in scored["units"]) / sum(unit["tokens"] for unit in scored["units"]) < 0.01


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_compressed_tensors_checkpoint_is_repacked_to_the_bit_and_gives_its_own_numbers(
    tmp_path: Path, cut3: Path, tokens: Path, symmetric: bool
) -> None:
    made = run_body("quantize", tmp_path / "w4", {"model": cut3}, RTN | {"symmetric": symmetric})
    assert "failure" not in made, made
    model = tmp_path / "w4" / "files"
    compared = run_in(TOOLCHAIN, "-c", COMPARE, str(model), str(tmp_path / "gptq"))
    assert compared.stdout.split()[-1:] == ["21"], compared.stderr[-2000:]
    by_torch = run_body("score", tmp_path / "torch", {"model": model, "tokens.a": tokens}, {"dtype": "float32"})
    record = compiled(tmp_path / "graph", model, accuracy_level=1)
    assert record["repacked"] and record["nodes"]["MatMulNBits"] == 15 and record["nodes"]["MatMul"] == 1, record
    inputs = {"model": tmp_path / "graph" / "files", "tokens.a": tokens}
    scored = run_body("score-onnxruntime", tmp_path / "score", inputs, toolchain=TOOLCHAIN)
    assert abs(math.expm1(loss(scored) - loss(by_torch))) < 0.001


def test_a_checkpoint_that_is_not_4_bits_is_refused(tmp_path: Path, cut3: Path) -> None:
    made = run_body("quantize", tmp_path / "int8", {"model": cut3}, {"method": "int8"})
    assert "failure" not in made, made
    refused = compiled(tmp_path / "graph", tmp_path / "int8" / "files")
    assert "not W4A16" in refused["failure"]["message"] and not refused["failure"]["transient"]
