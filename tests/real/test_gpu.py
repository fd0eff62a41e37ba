"""What a machine with a GPU would run, as far as a CPU can: the widened model, and the check's dry run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.bodies import in_quantize

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]

SAME = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from transformers import AutoModelForCausalLM
from widen import widen
base, wide = Path(sys.argv[2]), Path(sys.argv[3])
assert widen(base, wide, 4) > 4 * sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(base).parameters()) // 2
ids = torch.arange(3, 67)[None]
with torch.inference_mode():
    one, other = (AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32)(ids).logits for f in (base, wide))
print(float((one - other).abs().max()), float(one.std()))
"""


def test_the_wider_model_computes_the_same(cut3: Path, tmp_path: Path) -> None:
    done = in_quantize("-c", SAME, str(ROOT / "gpu"), str(cut3), str(tmp_path / "wide"))
    assert done.returncode == 0, done.stderr[-2000:]
    largest, spread = map(float, done.stdout.split()[-2:])
    assert largest < 1e-4 * spread
    config = json.loads((tmp_path / "wide" / "config.json").read_text())
    assert (config["hidden_size"], config["num_attention_heads"], config["num_key_value_heads"]) == (2304, 36, 12)


def test_the_dry_run_passes_every_stage() -> None:
    command = [sys.executable, "-m", "gpu.check", "--dry-run"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    made = json.loads(done.stdout)
    assert done.returncode == 0 and {one["status"] for one in made["stages"].values()} == {"passed"}, done.stdout
    quality = made["figures"]["quality"]
    assert 0 < quality["fp8"]["kl"] < quality["rtn-w4"]["kl"]
    assert quality["rtn-w4"]["bytes"] < quality["fp8"]["bytes"]
    assert made["figures"]["line"]["planned"] == ["base@vllm", "fp8@vllm", "gptq-w4@vllm"]
