"""A model of 70B on the hub is planned from its headers, on a machine that is not the one it is planned for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import pytest

from tests import models
from tests.unit.hub_server import COMMIT, Hub, Sparse, serve
from tests.unit.wrong import Refused, check_refusal, optpipe

SHARDS = 30
CONFIG = models.llama_config(80, 8192) | {
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 28672,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
RECIPE = f"""\
version: 1
name: large
model: {{source: "hf:me/large@{COMMIT}"}}
calibration: {{text: {{source: python-docs, part: calibrate}}, samples: 8, sequence_length: 1024}}
checkpoints:
  fp8: {{method: fp8}}
  gptq: {{method: gptq, bits: 4, group_size: 128}}
targets:
  one: {{engine: vllm, max_model_len: 8192}}
  two: {{engine: vllm, max_model_len: 8192, engine_args: {{tensor_parallel_size: 2}}}}
  eight: {{engine: vllm, max_model_len: 8192, engine_args: {{tensor_parallel_size: 8}}}}
texts:
  python: {{source: python-docs, part: score}}
load: {{scenario: steady, concurrency: 64, input_tokens: 1024, output_tokens: 256, requests: 1000}}
slo: {{ttft_ms: {{p90: 2000}}}}
"""


def tensors() -> dict[str, list[int]]:
    """Every tensor of the model with its shape, in the order of the files."""
    hidden, inner, keys = 8192, 28672, 1024
    layer = {
        "input_layernorm": [hidden],
        "self_attn.q_proj": [hidden, hidden],
        "self_attn.k_proj": [keys, hidden],
        "self_attn.v_proj": [keys, hidden],
        "self_attn.o_proj": [hidden, hidden],
        "post_attention_layernorm": [hidden],
        "mlp.gate_proj": [inner, hidden],
        "mlp.up_proj": [inner, hidden],
        "mlp.down_proj": [hidden, inner],
    }
    found = {"model.embed_tokens.weight": [128256, hidden]}
    found |= {f"model.layers.{k}.{name}.weight": shape for k in range(80) for name, shape in layer.items()}
    return found | {"model.norm.weight": [hidden], "lm_head.weight": [128256, hidden]}


def sparse(shapes: dict[str, list[int]]) -> Sparse:
    """A safetensors file of BF16 tensors of which only the header is there."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        size = 2 * prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    return Sparse(len(text).to_bytes(8, "little") + text, 8 + len(text) + offset)


def large(folder: Path) -> dict[str, Any]:
    """The files of the model: small ones in full, thirty shards by their headers."""
    models.write_model(folder, CONFIG, {})
    files: dict[str, Any] = {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".safetensors"}
    shapes, weight_map = tensors(), {}
    for k in range(SHARDS):
        name = f"model-{k + 1:05d}-of-{SHARDS:05d}.safetensors"
        part = list(shapes)[k * len(shapes) // SHARDS : (k + 1) * len(shapes) // SHARDS]
        files[name] = sparse({tensor: shapes[tensor] for tensor in part})
        weight_map |= dict.fromkeys(part, name)
    return files | {"model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode()}


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve(Hub({"me/large": large(tmp_path / "files")})) as it:
        monkeypatch.setenv("HF_ENDPOINT", it.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
        yield it


def run(folder: Path, *arguments: str) -> Refused:
    return optpipe(*arguments, cwd=folder, home=folder / "home")


def test_a_model_of_70b_is_planned_from_its_headers_for_eight_gpus(hub: Hub, tmp_path: Path) -> None:
    found = run(tmp_path, "plan", "recipe.yaml", "--hardware", "h100x8", "--json")
    assert found.code == 0, found.err
    print(f"{found.seconds:.2f} s, {hub.sent:,} bytes")
    assert hub.sent < 5_000_000, "headers and small files alone"
    plan = json.loads(found.out)
    sizes = {one["candidate"]["name"]: one["bytes"]["value"] for one in plan["feasible"]}
    assert sizes["base@eight"] == pytest.approx(141.1e9, rel=0.01)
    assert sizes["fp8@two"] == pytest.approx(72.7e9, rel=0.01) and sizes["gptq@one"] == pytest.approx(39.5e9, rel=0.02)
    assert set(sizes) == {"base@eight", "fp8@two", "fp8@eight", "gptq@one", "gptq@two", "gptq@eight"}
    refused = {one["candidate"]: one for one in plan["refused"]}
    assert set(refused) == {"base@one", "base@two", "fp8@one"}
    nearest = {name: one["nearest"] for name, one in refused.items()}
    assert nearest["base@one"] == nearest["base@two"] == "engine_args: {tensor_parallel_size: 4}"
    assert nearest["fp8@one"] == "engine_args: {tensor_parallel_size: 2}"
    assert plan["downloads_bytes"]["value"] == pytest.approx(141.1e9, rel=0.01)


def test_a_machine_of_one_s_own_and_one_candidate_explained(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "rack.yaml").write_text("base: l40s\ngpus: 4\nmemory_bytes: 274877906944\n")
    found = run(tmp_path, "plan", "recipe.yaml", "--hardware", "rack.yaml", "--why", "gptq@two", "--json")
    assert found.code == 0, found.err
    why = json.loads(found.out)
    assert why["feasible"] and why["hardware"] == "rack"
    memory = next(one for one in why["findings"] if one["check"] == "memory to serve")
    assert "of 82.1 GB" in memory["value"] and "on 2 GPUs" in memory["value"]
    wrong = json.loads(
        run(tmp_path, "plan", "recipe.yaml", "--hardware", "rack.yaml", "--why", "gptq@eight", "--json").out
    )
    (no,) = [one for one in wrong["findings"] if one["outcome"] == "no"]
    assert "needs 8 GPUs; there are 4" in no["reason"] and no["nearest"] == "tensor_parallel_size: 4"


def test_a_laptop_is_told_what_it_cannot_do(hub: Hub, tmp_path: Path) -> None:
    found = run(tmp_path, "plan", "recipe.yaml", "--hardware", "laptop-cpu")
    check_refusal(found, tmp_path, "base@one: serving needs 209 GB", "laptop-cpu has 14.6 GB to give")
    assert run(tmp_path, "check", f"hf:me/large@{COMMIT}", "--hardware", "laptop-cpu").code == 3


def test_what_is_wrong_with_a_model_on_the_hub_is_told_from_its_headers(hub: Hub, tmp_path: Path) -> None:
    files = hub.files["me/large"]
    files["config.json"] = files["config.json"].replace(b"28672", b"14336")
    files["generation_config.json"] = b'{"top_p": 7}'
    files["tokenizer_config.json"] = b'{"auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}}'
    found = run(tmp_path, "plan", "recipe.yaml", "--hardware", "h100x8")
    shown = (
        "gate_proj.weight is [28672, 8192]; the configuration asks for [14336, 8192]",
        "top_p: 7",
        "tokenization_x.py",
    )
    check_refusal(found, tmp_path, *shown)


def test_code_that_lies_on_the_hub_is_seen_without_being_fetched(hub: Hub, tmp_path: Path) -> None:
    files = hub.files["me/large"]
    files["tokenizer_config.json"] = b'{"auto_map": {"AutoTokenizer": ["tokenization_x.X", null]}}'
    files["tokenization_x.py"] = b"class X: ..."
    found = run(tmp_path, "plan", "recipe.yaml", "--hardware", "h100x8")
    assert found.code == 0, found.err
    assert not any(path.endswith(".py") for _, path, _ in hub.asked)
