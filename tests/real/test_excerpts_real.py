"""Two tokenizers on the same text: bits per byte do not depend on how tokens are numbered or cut."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe import drift
from tests.models import tiny_llama, write_tokenizer
from tests.real.bodies import in_quantize, run_body

pytestmark = pytest.mark.real

SIZE = 400
SENTENCE = "The history of the town, {n} years long, began at a ford of the river; größer and größer it grew. "

SWAP = """
import sys
import safetensors.torch
folder, first, second = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
path = folder + "/model.safetensors"
tensors = safetensors.torch.load_file(path)
for name in [name for name in tensors if name in ("model.embed_tokens.weight", "lm_head.weight")]:
    table = tensors[name].clone()
    table[[first, second]] = table[[second, first]]
    tensors[name] = table
safetensors.torch.save_file(tensors, path, {"format": "pt"})
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.jsonl"
    lines = [json.dumps({"text": SENTENCE.format(n=n) * 3}, ensure_ascii=False) for n in range(40)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def scored(folder: Path, model: Path, text: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The pieces' record, and each piece's tokens and nll."""
    options = {"bytes": SIZE, "first_row": 0, "rows": 6}
    pieces = run_body("excerpts", folder / "excerpts", {"model": model, "text": text}, options)
    assert "failure" not in pieces, pieces
    inputs = {"model": model, "tokens.text": folder / "excerpts" / "files"}
    record = run_body("score", folder / "score", inputs, {"keep_logits": False})
    assert "failure" not in record, record
    rows = np.load(folder / "excerpts" / "files" / "tokens.npy")
    assert [unit["tokens"] for unit in record["units"]] == [int((row >= 0).sum()) - 1 for row in rows]
    return pieces, record["units"]


def swapped(model: Path, folder: Path) -> Path:
    """The same model with two words of its vocabulary under each other's number."""
    shutil.copytree(model, folder)
    path = folder / "tokenizer.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    vocabulary = known["model"]["vocab"]
    one, other = vocabulary["Ġthe"], vocabulary["Ġriver"]
    vocabulary["Ġthe"], vocabulary["Ġriver"] = other, one
    path.write_text(json.dumps(known, ensure_ascii=False), encoding="utf-8")
    done = in_quantize("-c", SWAP, str(folder), str(one), str(other))
    assert done.returncode == 0, done.stderr
    return folder


def test_a_model_whose_tokens_are_numbered_otherwise_says_the_same_of_the_text(
    cut3: Path, text: Path, tmp_path: Path
) -> None:
    pieces, units = scored(tmp_path / "a", cut3, text)
    others, swapped_units = scored(tmp_path / "b", swapped(cut3, tmp_path / "swapped"), text)
    assert pieces["bytes"] == others["bytes"] and pieces["text_sha256"] == others["text_sha256"]
    one, two = (np.load(tmp_path / name / "excerpts" / "files" / "tokens.npy") for name in "ab")
    assert one.shape == two.shape and not np.array_equal(one, two)
    for mine, theirs in zip(units, swapped_units, strict=True):
        assert mine["nll"] == pytest.approx(theirs["nll"], rel=1e-5)


def test_padding_changes_nothing(cut3: Path, text: Path, tmp_path: Path) -> None:
    """A piece scored in a table with longer ones has the nll that it has alone."""
    _, units = scored(tmp_path / "all", cut3, text)
    rows = np.load(tmp_path / "all" / "excerpts" / "files" / "tokens.npy")
    shortest = min(range(len(rows)), key=lambda n: int((rows[n] >= 0).sum()))
    assert (rows[shortest] < 0).any(), "the pieces are of different lengths"
    alone = tmp_path / "alone"
    alone.mkdir()
    np.save(alone / "tokens.npy", rows[shortest : shortest + 1, : int((rows[shortest] >= 0).sum())])
    record = run_body("score", tmp_path / "one", {"model": cut3, "tokens": alone}, {"keep_logits": False})
    assert record["units"][0]["nll"] == pytest.approx(units[shortest]["nll"], rel=1e-3)


def test_models_with_different_tokenizers_are_scored_on_the_same_bytes(
    smollm2: Path, text: Path, tmp_path: Path
) -> None:
    bytewise = tiny_llama(tmp_path / "bytewise")
    write_tokenizer(bytewise, 3 + 256)  # without merges
    pieces, units = scored(tmp_path / "a", smollm2, text)
    others, more = scored(tmp_path / "b", bytewise, text)
    assert pieces["text_sha256"] == others["text_sha256"] and pieces["bytes"] == others["bytes"]
    assert sum(unit["tokens"] for unit in more) == sum(others["bytes"]), "a token for each byte"
    assert sum(unit["tokens"] for unit in units) < sum(pieces["bytes"]) / 2
    real, random = (drift.bits_per_byte(found, pieces["bytes"]) for found in (units, more))
    assert 0.3 < real < 3 and 6 < random < 12, "a model knows English, and random weights know no bytes"
