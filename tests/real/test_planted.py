"""What is wrong on purpose is rejected by name before it is published: the whole line, real parts, default gates."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optpipe.rundir import DigestMemo
from tests.real.conftest import optpipe
from tests.real.planted import unquantized_copy, zeroed_scales

pytestmark = pytest.mark.real

RECIPE = """\
version: 1
name: planted
model: {{source: {model}}}
checkpoints:
  int8: {{method: int8}}
targets:
  vllm: {{engine: vllm, max_model_len: 384, kv_cache_memory_bytes: 268435456}}
  kv8: {{engine: vllm, max_model_len: 384, kv_cache_memory_bytes: 268435456, kv_cache_dtype: int8_per_token_head}}
texts:
  python: {{source: python-docs}}
load: {{scenario: steady, concurrency: 2, input_tokens: 64, output_tokens: 16, requests: 24}}
slo: {{ttft_ms: {{p90: 5000}}, tpot_ms: {{p90: 1000}}}}
tune: {{trials: 0}}
publish: [{{registry: folder, promote: champion}}]
keep: all
"""


@pytest.fixture(scope="module")
def folder(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("planted")
    (folder / "recipe.yaml").write_text(RECIPE.format(model=smollm2), encoding="utf-8")
    return folder


def build(folder: Path) -> dict[str, Any]:
    done = optpipe("build", "recipe.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads(done.stdout)["candidates"])


def plant(folder: Path, change: Callable[[Path, Path], object]) -> None:
    """Put a wrong checkpoint in the place of the one that the quantize job left, under its own digest."""
    for record in folder.glob("artifacts/cache/jobs/*/record.json"):
        kept = json.loads(record.read_text(encoding="utf-8"))
        if kept["parts"]["kind"] != "quantize":
            continue
        files, good = record.parent / "files", folder / "good"
        if not good.exists():
            shutil.copytree(files, good)
        shutil.rmtree(files)
        change(good, files)
        kept["files"], kept["manifest"] = DigestMemo(folder / "memo.sqlite").tree(files)
        record.write_text(json.dumps(kept), encoding="utf-8")
        (record.parent / "sizes.json").unlink()


def test_a_kv_cache_that_answers_garbage_is_rejected(folder: Path) -> None:
    candidates = build(folder)
    for name in ("base@kv8", "int8@kv8"):
        assert candidates[name]["status"] == "rejected", candidates[name]["reasons"]
        assert candidates[name]["output_tokens_per_s"] is None, "what is rejected gets no load"
    assert candidates["base@vllm"]["status"] == "passed", candidates["base@vllm"]["reasons"]
    assert candidates["int8@vllm"]["status"] == "passed", candidates["int8@vllm"]["reasons"]


def test_weights_copied_unquantized_are_rejected(folder: Path, smollm2: Path) -> None:
    plant(folder, lambda good, out: unquantized_copy(smollm2, good, out))
    found = build(folder)["int8@vllm"]
    assert found["status"] == "rejected"
    assert any("bits per weight" in reason for reason in found["reasons"]), found["reasons"]


def test_zeroed_scales_are_rejected(folder: Path) -> None:
    plant(folder, lambda good, out: zeroed_scales(good, out))
    found = build(folder)["int8@vllm"]
    assert found["status"] in ("rejected", "failed")
    assert any("perplexity" in reason or "finite" in reason for reason in found["reasons"]), found["reasons"]
