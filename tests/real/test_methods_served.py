"""What the real engine makes of checkpoints that are more than one plain scheme, and selectors that cannot be meant."""

from __future__ import annotations

import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.gates import resolve
from optpipe.records import Artifact, Job
from tests.models import tiny_llama
from tests.real.bodies import run_body
from tests.real.test_engine_vllm_real import CPU, executor

pytestmark = pytest.mark.real

SERVED: dict[str, dict[str, Any]] = {
    "mixed": {
        **{"method": "mixed", "group_size": 64, "symmetric": False},
        "int8": ["down_proj", "layers.0.self_attn.*"],
    },
    "autoround": {"method": "autoround", "group_size": 64, "iterations": 3, "batch": 2},
    "spinquant": {"method": "spinquant", "group_size": 64, "symmetric": False},
}


@pytest.mark.parametrize("method", sorted(SERVED))
def test_a_checkpoint_is_served_as_transformers_computes_it(method: str, cut3: Path, tmp_path: Path) -> None:
    text = tmp_path / "topics.jsonl"
    topics = [json.dumps({"text": topic}) for _, topic in sorted(pydoc_data.topics.topics.items())]
    text.write_text("\n".join(topics) + "\n", encoding="utf-8")
    options = {"length": 128, "first_row": 0, "rows": 4, "template": False, "min_rows": 4}
    run_body("tokens", tmp_path / "tokens", {"model": cut3, "text": text}, options)
    tokens = tmp_path / "tokens" / "files"
    record = run_body("quantize", tmp_path / "quantize", {"model": cut3, "tokens": tokens}, SERVED[method])
    assert record["count"] == 21
    model = tmp_path / "quantize" / "files"
    run_body("score", tmp_path / "score", {"model": model, "tokens": tokens})
    target = Vllm(max_model_len=129, kv_cache_memory_bytes=64 << 20, enforce_eager=True)
    spec = vllm.spec(
        f"{method}@vllm",
        target,
        Artifact(model, f"sha256:{method}"),
        {"max_num_seqs": 4, "enable_prefix_caching": False},
        CPU,
    )
    inputs = {
        "tokens": Artifact(tokens, "sha256:tokens"),
        "score": Artifact(tmp_path / "score" / "files", "sha256:score"),
    }
    with executor(tmp_path).session(spec) as session:
        found = session.run(Job("parity", "parity", "core", {"rows": 2}, inputs)).record
    assert found["mean_abs"] < resolve().parity_mean_ceiling, "mixed 0.11: rounded activations, a cut's wide logits"
    assert found["n_tokens"] > 200


@pytest.mark.parametrize(
    ("int8", "says"),
    [(["dwon_proj"], "'dwon_proj' matches none"), (["layers"], "leaves none of 14 modules for 4 bits")],
)
def test_a_mixed_scheme_whose_selector_cannot_be_meant_fails_before_the_work(
    int8: list[str], says: str, tmp_path: Path
) -> None:
    inputs = {"model": tiny_llama(tmp_path / "base")}
    record = run_body("quantize", tmp_path / "job", inputs, {"method": "mixed", "int8": int8})
    assert says in record["failure"]["message"]
    assert record["failure"]["transient"] is False
