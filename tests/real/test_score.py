"""Scores by transformers: what they are beside the library's own numbers, and wrong checkpoints seen."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.models import tiny_llama
from tests.real.bodies import in_quantize, run_body
from tests.real.planted import enlarged_scales, nan_weight, unquantized_copy, zeroed_scales

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ids that every model here knows: 4 rows of 64."""
    folder = tmp_path_factory.mktemp("rows")
    np.save(folder / "tokens.npy", np.random.default_rng(2).integers(3, 285, (4, 64)).astype("int32"))
    return folder


@pytest.fixture(scope="module")
def base_score(cut3: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "job"
    run_body("score", folder, {"model": cut3, "tokens": rows}, {"keep_logits": True})
    return folder / "files"


@pytest.fixture(scope="module")
def checkpoints(cut3: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("checkpoints")
    made = {}
    rows = folder / "rows"
    rows.mkdir()
    np.save(rows / "tokens.npy", np.random.default_rng(3).integers(3, 285, (2, 64)).astype("int32"))
    for name, options in (
        ("int8", {"method": "int8"}),
        ("fp8", {"method": "fp8"}),
        ("gptq", {"method": "gptq", "group_size": 64, "symmetric": False}),
    ):
        run_body("quantize", folder / name, {"model": cut3, "tokens": rows}, options)
        made[name] = folder / name / "files"
    return made


def scored(folder: Path, model: Path, rows: Path, **more: Any) -> tuple[dict[str, Any], Any]:
    base = {"base": more.pop("base")} if "base" in more else {}
    record = run_body("score", folder, {"model": model, "tokens": rows, **base}, more)
    assert "units" in record, record
    return record, np.load(folder / "files" / "token_logprobs.npy")


FEW_ROWS = """
import torch
from optpipe.backends.evaluators import forward
rows, weight = (torch.randint(-127, 128, shape, dtype=torch.int8) for shape in ((3, 64), (64, 32)))
assert torch.equal(forward.int8_product(rows, weight, 17), rows.int() @ weight.int())
assert torch.equal(forward.int8_product(rows, weight, 0), rows.int() @ weight.int())
assert forward.device() == ("cuda" if torch.cuda.is_available() else "cpu")
"""


def test_few_rows_are_filled_up_for_a_gpus_product_and_change_nothing() -> None:
    done = in_quantize("-c", FEW_ROWS)
    assert done.returncode == 0, done.stderr[-2000:]


def mean(record: dict[str, Any], name: str) -> float:
    return float(sum(u[name] for u in record["units"]) / sum(u["tokens"] for u in record["units"]))


def test_a_model_does_not_diverge_from_itself(cut3: Path, rows: Path, base_score: Path, tmp_path: Path) -> None:
    record, logprobs = scored(tmp_path / "job", cut3, rows, base=base_score)
    assert [(u["tokens"], u["kl"], u["agree"]) for u in record["units"]] == [(63, 0.0, 63)] * 4
    assert logprobs.dtype == np.float32
    assert np.array_equal(logprobs, np.load(base_score / "token_logprobs.npy"))
    for unit, row in zip(record["units"], logprobs, strict=True):
        assert math.isclose(unit["nll"], -float(row.sum(dtype="float64")), rel_tol=1e-9)
    assert (base_score / "logits.bf16").stat().st_size == 4 * 63 * record["vocabulary"] * 2


LIBRARY = """
import sys
import numpy, torch
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16).eval()
ids = torch.from_numpy(numpy.load(sys.argv[2] + "/tokens.npy").astype("int64"))
with torch.no_grad():
    logits = torch.cat([model(input_ids=row[None], use_cache=False).logits[:, :-1] for row in ids])
logprobs = logits.double().log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
numpy.save(sys.argv[3], logprobs.float().numpy())
"""


@pytest.mark.parametrize("kind", ["base", "gptq", "int8", "fp8"])
def test_log_probabilities_are_those_of_the_librarys_own_forward_pass(
    kind: str, cut3: Path, rows: Path, base_score: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    """W8A8 differs by rounding: the library simulates in bf16 what engines do in int8 and float32."""
    model = cut3 if kind == "base" else checkpoints[kind]
    _, logprobs = scored(tmp_path / "job", model, rows)
    done = in_quantize("-c", LIBRARY, str(model), str(rows), str(tmp_path / "library.npy"))
    assert done.returncode == 0, done.stderr[-2000:]
    library = np.load(tmp_path / "library.npy")
    moved = np.abs(library - np.load(base_score / "token_logprobs.npy")).mean()
    tolerance = 1.5 * moved if kind in ("int8", "fp8") else 1e-4
    assert np.abs(logprobs - library).mean() < tolerance


def test_rows_scored_together_score_as_they_do_alone(cut3: Path, rows: Path, base_score: Path, tmp_path: Path) -> None:
    _, together = scored(tmp_path / "job", cut3, rows, batch=3)
    assert float(np.abs(together - np.load(base_score / "token_logprobs.npy")).mean()) < 0.05


def test_zeroed_scales_and_enlarged_ones_are_seen_in_the_divergence(
    rows: Path, base_score: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    good, _ = scored(tmp_path / "good", checkpoints["gptq"], rows, base=base_score)
    zeroed = zeroed_scales(checkpoints["gptq"], tmp_path / "zeroed")
    large = enlarged_scales(checkpoints["gptq"], tmp_path / "large")
    for name, folder in (("of-zeroed", zeroed), ("of-large", large)):
        record, _ = scored(tmp_path / name, folder, rows, base=base_score)
        assert mean(record, "kl") > 5 * mean(good, "kl")


def test_a_nan_is_a_failure_that_names_the_first_unit(cut3: Path, rows: Path, tmp_path: Path) -> None:
    broken = nan_weight(cut3, tmp_path / "broken", "model.layers.1.mlp.down_proj.weight")
    record = run_body("score", tmp_path / "job", {"model": broken, "tokens": rows})
    assert "perplexity is not finite: first at unit 0" in record["failure"]["message"]
    assert record["failure"]["transient"] is False


def test_weights_that_are_not_what_the_configuration_says_are_not_scored(
    cut3: Path, rows: Path, checkpoints: dict[str, Path], tmp_path: Path
) -> None:
    copy = unquantized_copy(cut3, checkpoints["gptq"], tmp_path / "copy")
    record = run_body("score", tmp_path / "job", {"model": copy, "tokens": rows})
    assert "are missing" in record["failure"]["message"]


def test_a_base_that_was_scored_on_other_rows_is_refused(
    cut3: Path, rows: Path, base_score: Path, tmp_path: Path
) -> None:
    fewer = tmp_path / "fewer"
    fewer.mkdir()
    np.save(fewer / "tokens.npy", np.load(rows / "tokens.npy")[:3])
    inputs = {"model": cut3, "tokens": fewer, "base": base_score}
    record = run_body("score", tmp_path / "job", inputs)
    assert "the base's logits are" in record["failure"]["message"]


def test_ids_outside_the_vocabulary_are_named(tmp_path: Path, rows: Path) -> None:
    model = tiny_llama(tmp_path / "model", vocab_size=160)
    record = run_body("score", tmp_path / "job", {"model": model, "tokens": rows})
    assert "is outside the model's vocabulary of 160" in record["failure"]["message"]


def test_a_tiny_model_is_scored_in_float32(tmp_path: Path, rows: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    options = {"dtype": "float32", "keep_logits": True}
    run_body("score", tmp_path / "base", {"model": model, "tokens": rows}, options)
    record, logprobs = scored(tmp_path / "job", model, rows, base=tmp_path / "base" / "files", dtype="float32")
    assert [u["kl"] for u in record["units"]] == [0.0] * 4
    assert abs(mean(record, "nll") - math.log(320)) < 0.5
    assert np.isfinite(logprobs).all()
