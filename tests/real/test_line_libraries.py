"""A recipe that asks for other libraries, through the real line: what an engine reads is served, the rest is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.real.conftest import optpipe

pytestmark = pytest.mark.real

RECIPE = """\
version: 1
name: cut
model: {{source: {model}}}
calibration: {{text: {{source: python-docs, part: calibrate}}, samples: 8, sequence_length: 256, seed: 1}}
checkpoints:
  gptq-w4: {{method: gptq, library: gptqmodel, bits: 4, group_size: 64, symmetric: true}}
  fp8: {{method: fp8, library: modelopt}}
targets:
  vllm: {{engine: vllm, max_model_len: 384, kv_cache_memory_bytes: 268435456, enforce_eager: true}}
texts:
  python: {{source: python-docs, part: score}}
# A model cut to three layers writes no sense, so its quality gates are wide; everything else is as ever.
gates:
  {{perplexity_increase_pct: 60, kl_divergence: 2, top1_agreement: 0.2,
   parity_factor: 20, parity_mean_ceiling: 1, parity_p99_ceiling: 5}}
load: {{scenario: steady, concurrency: 2, input_tokens: 64, output_tokens: 16, requests: 12}}
slo: {{ttft_ms: {{p90: 5000}}, tpot_ms: {{p90: 1000}}}}
tune: {{trials: 1}}
keep: all
"""


def test_what_gptqmodel_wrote_is_served_and_what_modelopt_writes_is_refused_in_the_plan(
    cut3: Path, tmp_path: Path
) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=cut3), encoding="utf-8")
    done = optpipe("build", "recipe.yaml", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    candidates = json.loads(done.stdout)["candidates"]
    served = candidates["gptq-w4@vllm"]
    assert served["status"] == "passed", served["reasons"]
    assert served["output_tokens_per_s"]["value"] > 0 and 4 < served["bits_per_weight"] < 5
    refused = candidates["fp8@vllm"]
    assert refused["status"] == "skipped" and "loads no ModelOpt checkpoint" in str(refused["reasons"])
    report = (tmp_path / "artifacts" / "latest" / "report.md").read_text(encoding="utf-8")
    assert "gptq-w4@vllm" in report and "loads no ModelOpt checkpoint" in report
