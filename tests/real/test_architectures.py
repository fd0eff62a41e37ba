"""Each architecture as a small random model through plan, INT8, scores and vLLM on a CPU."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.errors import BackendFailed
from optpipe.model.audit import audit
from optpipe.model.hardware import this_machine
from optpipe.records import Artifact, Job
from tests.real import made
from tests.real.architectures import ARCHITECTURES
from tests.real.bodies import run_bodies, run_body
from tests.real.conftest import optpipe
from tests.real.test_engine_vllm_real import CANARY, CPU, executor

pytestmark = pytest.mark.real

RECIPE = """\
version: 1
name: small
model: {{source: {model}}}
calibration: {{text: {{source: python-docs, part: calibrate}}, samples: 8, sequence_length: 128}}
checkpoints:
  int8: {{method: int8}}
  gptq-w4: {{method: gptq, bits: 4, group_size: 32, symmetric: false}}
  sq-w8a8: {{method: smoothquant}}
  awq-w4: {{method: awq, bits: 4, group_size: 32, symmetric: false}}
targets: {{vllm: {{engine: vllm, max_model_len: 288}}}}
texts: {{python: {{source: python-docs, part: score}}}}
load: {{scenario: steady, concurrency: 2, input_tokens: 32, output_tokens: 16, requests: 30}}
slo: {{ttft_ms: {{p90: 5000}}, tpot_ms: {{p90: 1000}}}}
"""
CANDIDATES = {"base", "int8", "gptq-w4", "sq-w8a8", "awq-w4"}
UNMAPPED = {"opt": {"sq-w8a8", "awq-w4"}, "mixtral": {"awq-w4"}}
"""What llm-compressor has no mapping for."""
CONV1D = ("gpt2",)
"""Whose layers the quantizers leave alone."""
EXPERTS = ("mixtral", "qwen3-moe")
AMX = "amx_tile" in this_machine().instruction_set
"""Without it vLLM on an x86 processor serves no quantized experts."""
ALIKE = 0.02
"""Nats that an engine's log-probabilities may be off in the mean: these models' own spread by 0.4."""


def planned(base: Path, folder: Path) -> tuple[set[str], dict[str, str]]:
    """The checkpoints that `optpipe plan` finds feasible, and why it refuses the others."""
    folder.mkdir()
    (folder / "recipe.yaml").write_text(RECIPE.format(model=base), encoding="utf-8")
    done = optpipe("plan", "recipe.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    refused: dict[str, str] = {}
    for no in plan["refused"]:
        name = no["candidate"].partition("@")[0]
        refused[name] = f"{refused.get(name, '')} {no['reason']}"
    return {one["candidate"]["checkpoint"] for one in plan["feasible"]}, refused


def scored(base: Path, folder: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The base's score by transformers and that of its INT8, or why there is none."""
    plain, small, tokens = folder / "base-score", folder / "int8", folder / "tokens"
    inputs = {"model": base, "tokens": tokens / "files"}
    _, first = run_bodies(
        ("tokens", tokens, {"model": base, "text": made.text(folder)}, made.rows(0)),
        ("score", plain, inputs, {"keep_logits": True}),
    )
    # Processes of their own, as a build has them: how a mixture was loaded once stays in transformers' tables.
    (quantized,) = run_bodies(("quantize", small, {"model": base}, {"method": "int8"}))
    inputs |= {"model": small / "files", "base": plain / "files"}
    (second,) = run_bodies(("score", folder / "int8-score", inputs, {}))
    return first, quantized if "failure" in quantized else second


def served(name: str, model: Path, folder: Path) -> dict[str, Any]:
    """What vLLM makes of it: the canary's and the parity's records."""
    target = Vllm(max_model_len=made.LENGTH + 1, kv_cache_memory_bytes=64 << 20, enforce_eager=True)
    settings = {"max_num_seqs": 4, "enable_prefix_caching": False}
    spec = vllm.spec(f"{name}@vllm", target, Artifact(model, f"sha256:{name}"), settings, CPU)
    score = Artifact(folder / f"{name}-score" / "files", f"sha256:{name}")
    inputs = {"tokens": Artifact(folder / "tokens" / "files", "sha256:tokens"), "score": score}
    with executor(folder).session(spec) as session:
        canary = session.run(CANARY).record
        return canary | session.run(Job("parity", "parity", "core", {"rows": 4}, inputs)).record


@pytest.mark.parametrize("name", sorted(ARCHITECTURES.keys() - {"one-sided", "gemma3-wrapped"}))
def test_an_architecture_goes_through_the_line(name: str, tmp_path: Path) -> None:
    base = made.model(name, tmp_path / "base")
    assert audit(base) == ()
    feasible, refused = planned(base, tmp_path / "plan")
    if name in CONV1D:
        assert feasible == {"base"} and all("Conv1D" in reason for reason in refused.values())
    elif name in EXPERTS and not AMX:
        assert feasible == {"base"} and all("AMX" in reason for reason in refused.values())
    else:
        assert feasible == CANDIDATES - UNMAPPED.get(name, set())
        assert all("no mapping of its layers" in reason for reason in refused.values())

    plain, small = scored(base, tmp_path)
    found = served("base", base, tmp_path)
    assert all(answer["finite"] for answer in found["answers"]) and found["mean_abs"] < ALIKE
    if name in CONV1D:
        assert "leaves none of 1 linear modules" in small["failure"]["message"]
        return

    divergence = sum(unit["kl"] for unit in small["units"]) / sum(unit["tokens"] for unit in small["units"])
    assert abs(nll(small) - nll(plain)) < 0.05 and 0 < divergence < 0.02
    if "int8" not in feasible:
        with pytest.raises(BackendFailed, match="MoE backend") as raised:
            served("int8", tmp_path / "int8" / "files", tmp_path)
        assert not raised.value.transient, "it fails again"
        return
    found = served("int8", tmp_path / "int8" / "files", tmp_path)
    assert all(answer["finite"] for answer in found["answers"]) and found["mean_abs"] < ALIKE


def test_a_multimodal_model_is_refused_where_vllm_cannot_import_it(tmp_path: Path) -> None:
    """The lock for CPUs has no torchvision; the text model alone is `gemma3`, which goes through the line."""
    base = made.model("gemma3-wrapped", tmp_path / "base")
    assert audit(base) == ()
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(model=base), encoding="utf-8")
    done = optpipe("plan", "recipe.yaml", cwd=tmp_path)
    assert done.returncode == 2 and "imports torchvision" in done.stderr and "processor_config.json" in done.stderr
    with pytest.raises(BackendFailed, match="torchvision"):
        served("base", base, tmp_path)


@pytest.mark.skipif(AMX, reason="this processor has AMX")
@pytest.mark.parametrize("method", ["fp8", "rtn"])
def test_an_engine_without_amx_serves_no_quantized_experts(method: str, tmp_path: Path) -> None:
    base = made.model("qwen3-moe", tmp_path / "base")
    options = {"method": method} | ({"bits": 4, "group_size": 32} if method == "rtn" else {})
    run_body("quantize", tmp_path / "job", {"model": base}, options)
    with pytest.raises(BackendFailed, match="MoE backend") as raised:
        served(method, tmp_path / "job" / "files", tmp_path)
    assert not raised.value.transient


def nll(record: dict[str, Any]) -> float:
    value = sum(unit["nll"] for unit in record["units"]) / sum(unit["tokens"] for unit in record["units"])
    assert math.isfinite(value)
    return float(value)
