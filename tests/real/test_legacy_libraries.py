"""auto-gptq and autoawq, which have ended: what they leave in the files, and that engines and we read it alike."""

from __future__ import annotations

import hashlib
import json
import pydoc_data.topics
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.gptq_codes import codes_of
from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.gates import resolve
from optpipe.model.facts import facts_of_folder
from optpipe.model.memory import bits_per_weight, measured_bits_per_weight
from optpipe.records import Artifact, Job
from tests.models import edit_json
from tests.real.bodies import run_body, run_in
from tests.real.cuts import cut_layers
from tests.real.planted import config_of, tensors_of
from tests.real.test_engine_vllm_real import CPU, executor

pytestmark = pytest.mark.real

LIBRARIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "autogptq": (
        {"library": "autogptq", "method": "gptq", "bits": 4, "group_size": 64},
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": True, "desc_act": False},
    ),
    "autoawq": (
        {"library": "autoawq", "method": "awq", "bits": 4, "group_size": 64, "clip": False, "symmetric": False},
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"},
    ),
}
"""A recipe's block, and what engines must find of it in config.json. (Searching clips takes autoawq minutes.)"""

KEPT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")
ROWS, LENGTH = 4, 129


@pytest.fixture(scope="module")
def tokens(cut3: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("texts")
    source = folder / "topics.jsonl"
    topics = [json.dumps({"text": text}) for _, text in sorted(pydoc_data.topics.topics.items())]
    source.write_text("\n".join(topics) + "\n", encoding="utf-8")
    options = {"length": LENGTH - 1, "first_row": 0, "rows": ROWS, "template": False, "min_rows": ROWS}
    run_body("tokens", folder / "job", {"model": cut3, "text": source}, options)
    return folder / "job" / "files"


@pytest.fixture(scope="module", params=sorted(LIBRARIES))
def made(request: pytest.FixtureRequest, cut3: Path, tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(library, record, files) of one job each."""
    name = str(request.param)
    folder = tmp_path_factory.mktemp(name) / "job"
    inputs = {"model": cut3, "tokens": tokens}
    record = run_body(f"quantize-{name}", folder, inputs, LIBRARIES[name][0], toolchain="legacy")
    assert "failure" not in record, record
    return name, record, folder / "files"


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_all_layers_are_packed_and_the_rest_is_the_base(made: Any, cut3: Path) -> None:
    name, record, files = made
    options, stored = LIBRARIES[name]
    assert (record["count"], record["skipped"], record["tokens_used"]) == (21, ["lm_head"], ROWS * (LENGTH - 1))
    assert "ended upstream" in record["notes"][0]
    assert {path.name for path in files.iterdir()} == {"config.json", "model.safetensors", *KEPT}
    assert {file: digest(files / file) for file in KEPT} == {file: digest(cut3 / file) for file in KEPT}
    config = config_of(files)
    quantization = config.pop("quantization_config")
    assert config == config_of(cut3) | {"rope_theta": 100000.0}
    assert stored.items() <= quantization.items()
    facts = facts_of_folder(cut3)
    asked = bits_per_weight(facts, options).value
    assert measured_bits_per_weight(files, facts, options) == pytest.approx(asked, abs=1e-9)


def test_the_engine_computes_what_transformers_computes(made: Any, cut3: Path, tokens: Path, tmp_path: Path) -> None:
    name, _, model = made
    run_body("score", tmp_path / "base", {"model": cut3, "tokens": tokens}, {"keep_logits": True})
    inputs = {"model": model, "tokens": tokens, "base": tmp_path / "base" / "files"}
    units = run_body("score", tmp_path / "score", inputs)["units"]
    divergence = sum(unit["kl"] for unit in units) / sum(unit["tokens"] for unit in units)
    assert 1e-4 < divergence < 0.1
    target = Vllm(max_model_len=LENGTH, kv_cache_memory_bytes=64 << 20, enforce_eager=True)
    settings = {"max_num_seqs": 4, "enable_prefix_caching": False}
    spec = vllm.spec(f"{name}@vllm", target, Artifact(model, f"sha256:{name}"), settings, CPU)
    files = {
        "tokens": Artifact(tokens, "sha256:tokens"),
        "score": Artifact(tmp_path / "score" / "files", "sha256:score"),
    }
    with executor(tmp_path).session(spec) as session:
        found = session.run(Job("parity", "parity", "core", {"rows": 2}, files)).record
    assert found["mean_abs"] < resolve().parity_mean_ceiling
    assert found["n_tokens"] > 200


OWN_FORWARD = """
import json, sys
from pathlib import Path
import torch
from optpipe.backends.evaluators import dequantize
folder = Path(sys.argv[1])
config = json.loads((folder / "config.json").read_text())["quantization_config"]
modules, _ = dequantize.read(folder)
worst = 0.0
for name, parts in sorted(modules.items()):
    ours = dequantize.unpacked(name, parts, config, torch.float32)
    out, size = ours.shape
    if config["quant_method"] == "gptq":
        from auto_gptq.nn_modules.qlinear.qlinear_cuda_old import QuantLinear
        layer = QuantLinear(4, 64, size, out, False, weight_dtype=torch.float32)
        for part in ("qweight", "qzeros", "g_idx"):
            setattr(layer, part, parts[part])
        layer.scales = parts["scales"].float()
        theirs = layer(torch.eye(size)).t()
    else:
        from awq.utils.packing_utils import dequantize_gemm
        theirs = dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"].float(), 4, 64).t()
    worst = max(worst, float((ours - theirs).abs().max() / ours.abs().max()))
print(len(modules), worst)
"""


def test_we_unpack_as_the_library_itself_does(made: Any) -> None:
    _, _, files = made
    done = run_in("legacy", "-c", OWN_FORWARD, str(files))
    assert done.returncode == 0, done.stderr[-2000:]
    modules, worst = done.stdout.split()[-2:]
    assert int(modules) == 21
    assert float(worst) < 1e-6


def test_a_configuration_of_transformers_5_alone_is_read_right_and_twice_is_the_same(
    cut3: Path, tokens: Path, made: Any, tmp_path: Path
) -> None:
    """Without `rope_theta` transformers 4 would take 10000, and the weights would differ."""
    name, _, files = made
    base = tmp_path / "base"
    shutil.copytree(cut3, base)
    raw = config_of(base)
    assert raw["rope_parameters"]["rope_theta"] == 100000.0
    raw.pop("rope_theta", None)
    (base / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    inputs = {"model": base, "tokens": tokens}
    run_body(f"quantize-{name}", tmp_path / "job", inputs, LIBRARIES[name][0], toolchain="legacy")
    again = tmp_path / "job" / "files"
    assert config_of(again)["rope_theta"] == 100000.0
    assert digest(again / "model.safetensors") == digest(files / "model.safetensors")


def test_a_model_that_is_quantized_already_is_refused(made: Any, tokens: Path, tmp_path: Path) -> None:
    name, _, files = made
    inputs = {"model": files, "tokens": tokens}
    record = run_body(f"quantize-{name}", tmp_path / "job", inputs, LIBRARIES[name][0], toolchain="legacy")
    assert "is quantized already" in record["failure"]["message"]


def test_rope_that_transformers_4_cannot_say_is_refused(cut3: Path, tokens: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(cut3, base)
    by_type = {"full_attention": {"rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    edit_json(base / "config.json", rope_parameters=by_type)
    options = LIBRARIES["autogptq"][0]
    inputs = {"model": base, "tokens": tokens}
    record = run_body("quantize-autogptq", tmp_path / "job", inputs, options, toolchain="legacy")
    assert "differ by layer type" in record["failure"]["message"]


TINY = """
import sys, torch
from transformers import AutoConfig, AutoModelForCausalLM
sizes = dict(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
more = dict(num_key_value_heads=4, max_position_embeddings=128, tie_word_embeddings=False)
torch.manual_seed(0)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(sys.argv[1], **sizes, **more))
for name, parameter in model.named_parameters():
    if name.endswith("bias"):
        parameter.data.normal_()
model.to(torch.bfloat16).save_pretrained(sys.argv[2])
"""


@pytest.mark.parametrize("library", sorted(LIBRARIES))
@pytest.mark.parametrize("family", ["mistral", "qwen2"])
def test_the_other_families_are_quantized_with_their_biases(family: str, library: str, tmp_path: Path) -> None:
    base = tmp_path / "base"
    assert run_in("legacy", "-c", TINY, family, str(base)).returncode == 0
    np.save(tmp_path / "tokens.npy", np.random.default_rng(1).integers(3, 250, (4, 32)).astype("int32"))
    options = LIBRARIES[library][0] | {"group_size": 32}
    inputs = {"model": base, "tokens": tmp_path}
    record = run_body(f"quantize-{library}", tmp_path / "job", inputs, options, toolchain="legacy")
    assert record["count"] == 14, record
    biases = {name for name in tensors_of(base) if name.endswith("bias")}
    assert len(biases) == (6 if family == "qwen2" else 0)
    assert {name for name in tensors_of(tmp_path / "job" / "files") if name.endswith("bias")} == biases


ROUNDED = """
import json, sys
from pathlib import Path
import torch
from auto_gptq.quantization import quantizer
from optpipe.backends.quantizers import autogptq
from optpipe.worker import Work
find, plain = quantizer.Quantizer.find_params, quantizer.quantize
def find_params(self, x, weight=False):
    find(self, x, weight)
    self.scale = self.scale.to(torch.bfloat16).float()
if sys.argv[4] == "bf16":
    quantizer.Quantizer.find_params = find_params
    quantizer.quantize = lambda *arguments: plain(*arguments).to(torch.bfloat16).float()
base, tokens, out = map(Path, sys.argv[1:4])
options = {"library": "autogptq", "method": "gptq", "group_size": 64, "true_sequential": False}
out.mkdir()
autogptq.run(options, Work({"model": base, "tokens": tokens}, {}, out / "files", 1, 1, out))
"""


def test_llm_compressor_rounds_to_bf16_while_it_quantizes_and_that_is_the_difference(
    cut3: Path, tokens: Path, tmp_path: Path
) -> None:
    """Same inputs, order and dampening: a sixth of the codes differ; rounded alike, next to none."""
    base = cut_layers(cut3, tmp_path / "one", 1)
    options = {"method": "gptq", "group_size": 64, "symmetric": True}
    run_body("quantize", tmp_path / "theirs", {"model": base, "tokens": tokens}, options)
    theirs, same = codes_of(tmp_path / "theirs" / "files"), {}
    for scales in ("float32", "bf16"):
        out = tmp_path / scales
        assert run_in("legacy", "-c", ROUNDED, str(base), str(tokens), str(out), scales).returncode == 0
        mine = codes_of(out / "files")
        names = [name for name in mine if name.endswith(("q_proj", "k_proj"))]
        same[scales] = [float((mine[name] == theirs[name]).mean()) for name in names]
    assert max(same["float32"]) < 0.95
    assert min(same["bf16"]) > 0.99


ROWS_LEFT_OUT = """
import sys
from pathlib import Path
import torch
from optpipe.backends.quantizers import legacy
from optpipe.worker import Failure, Work
layer = torch.nn.Linear(2, 2)
work = Work({}, {}, Path(sys.argv[1]), 1, 1, Path(sys.argv[1]))
with legacy.watched([layer], 3, 1, "rows", work):
    layer(torch.ones(int(sys.argv[2]), 4, 2))
"""


def test_rows_that_a_library_drops_are_noticed(tmp_path: Path) -> None:
    assert run_in("legacy", "-c", ROWS_LEFT_OUT, str(tmp_path), "3").returncode == 0
    dropped = run_in("legacy", "-c", ROWS_LEFT_OUT, str(tmp_path), "2")
    assert "2 passes of calibration rows through the layers, 3 were due" in dropped.stderr
