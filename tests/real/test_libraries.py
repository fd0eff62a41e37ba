"""Every method of the libraries beside llm-compressor, on the first layers of a real model: what is left in the files,
whether it is any good, whether it is scored as its library computes it, and whether vLLM serves it."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.quantizers import gptqmodel, modelopt
from optpipe.backends.quantizers.scheme import read
from optpipe.errors import BackendFailed
from optpipe.gates import resolve
from optpipe.model.facts import facts_of_folder
from optpipe.model.memory import bits_per_weight, measured_bits_per_weight
from optpipe.records import Artifact, EngineSpec, Job
from tests.real.bodies import run_body, run_in
from tests.real.planted import config_of, tensors_of
from tests.real.test_engine_vllm_real import CANARY, CPU, executor
from tests.real.test_quantize import KEPT, base_score, digests, texts

pytestmark = pytest.mark.real
__all__ = ["base_score", "texts"]

LIBRARIES = {"gptqmodel": gptqmodel, "modelopt": modelopt}
METHODS: dict[str, tuple[dict[str, Any], float]] = {
    "gptqmodel-gptq": ({"library": "gptqmodel", "method": "gptq", "group_size": 64}, 0.08),
    "gptqmodel-gptq-8": ({"library": "gptqmodel", "method": "gptq", "group_size": 64, "bits": 8}, 0.005),
    "gptqmodel-gptq-asymmetric": (
        {"library": "gptqmodel", "method": "gptq", "group_size": 64, "symmetric": False}, 0.08,
    ),
    "modelopt-awq": ({"library": "modelopt", "method": "awq", "group_size": 64}, 0.15),
    "modelopt-smoothquant": ({"library": "modelopt", "method": "smoothquant"}, 0.08),
    "modelopt-fp8": ({"library": "modelopt", "method": "fp8"}, 0.05),
}
"""Options, and the largest KL divergence from the base (nats per token) that is still sane."""

OWN = {"modelopt": {"hf_quant_config.json"}, "gptqmodel": set()}


def quantize(name: str, base: Path, tokens: Path, job: Path, **more: Any) -> dict[str, Any]:
    options = METHODS[name][0] | more
    library = LIBRARIES[options["library"]]
    return run_body(library.JOB, job, {"model": base, "tokens": tokens}, options, toolchain=library.TOOLCHAIN)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_quantizes_every_layer_is_scored_and_stays_close_to_its_base(
    name: str, cut3: Path, texts: dict[str, Path], base_score: Path, tmp_path: Path
) -> None:
    options, worst = METHODS[name]
    library = options["library"]
    record = quantize(name, cut3, texts["calibrate"], tmp_path / "job")
    files = tmp_path / "job" / "files"
    assert (record.get("count"), record["skipped"], record["tokens_used"]) == (21, ["lm_head"], 8 * 256), record

    kept = {file: digests(files)[file] for file in KEPT}
    assert kept == {file: digests(cut3)[file] for file in KEPT}
    assert {path.name for path in files.iterdir()} == {"config.json", "model.safetensors", *KEPT, *OWN[library]}
    config = config_of(files)
    assert config.pop("quantization_config")["quant_method"] == record["format"]
    assert config == config_of(cut3) and "/tmp" not in (files / "config.json").read_text()

    facts, scheme = facts_of_folder(cut3), asdict(read(options, LIBRARIES[library].SCHEMES))
    asked = bits_per_weight(facts, scheme).value
    assert measured_bits_per_weight(files, facts, scheme) == pytest.approx(asked, abs=1e-9)

    inputs = {"model": files, "tokens": texts["score"], "base": base_score}
    units = run_body("score", tmp_path / "score", inputs)["units"]
    count = sum(unit["tokens"] for unit in units)
    assert 1e-5 < sum(unit["kl"] for unit in units) / count < worst
    base = -np.load(base_score / "token_logprobs.npy").mean(dtype="float64")
    assert math.exp(sum(unit["nll"] for unit in units) / count - base) < 1.5, "a cut's perplexity, against its base's"


@pytest.mark.parametrize("name", ["gptqmodel-gptq", "modelopt-awq", "modelopt-smoothquant", "modelopt-fp8"])
def test_the_same_job_twice_gives_the_same_bytes(
    name: str, cut3: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    for job in ("one", "two"):
        quantize(name, cut3, texts["calibrate"], tmp_path / job)
    assert digests(tmp_path / "one" / "files") == digests(tmp_path / "two" / "files")


@pytest.mark.parametrize("name", ["gptqmodel-gptq", "modelopt-fp8"])
def test_a_selector_leaves_a_layer_as_it_was(name: str, cut3: Path, texts: dict[str, Path], tmp_path: Path) -> None:
    ignore = ["lm_head", {"select": "layers.1.mlp.down_proj", "expect": 1}]
    record = quantize(name, cut3, texts["calibrate"], tmp_path / "job", ignore=ignore)
    layer = "model.layers.1.mlp.down_proj"
    assert (record["count"], record["skipped"]) == (20, [layer, "lm_head"])
    left, base = tensors_of(tmp_path / "job" / "files"), tensors_of(cut3)
    assert [key for key in left if key.startswith(layer)] == [f"{layer}.weight"]
    assert left[f"{layer}.weight"] == base[f"{layer}.weight"]
    again = run_body("score", tmp_path / "score", {"model": tmp_path / "job" / "files", "tokens": texts["score"]})
    assert "failure" not in again


BY_GPTQMODEL = """
import sys, numpy, torch
from gptqmodel import BACKEND, GPTQModel
model = GPTQModel.load(sys.argv[1], device="cpu", backend=BACKEND.GPTQ_TORCH, dtype=torch.bfloat16).model
rows = torch.from_numpy(numpy.load(sys.argv[2]).astype("int64"))
with torch.inference_mode():
    logits = torch.cat([model(input_ids=row[None]).logits for row in rows])[:, :-1].float()
numpy.save(sys.argv[3], logits.log_softmax(-1).gather(-1, rows[:, 1:, None])[..., 0].numpy())
"""

BY_MODELOPT = """
import copy, json, sys, numpy, torch
from pathlib import Path
from optpipe.backends.evaluators import dequantize
from optpipe.backends.quantizers import modelopt
from optpipe.backends.quantizers.scheme import read
from modelopt.torch import quantization
from modelopt.torch.export.unified_export_hf import requantize_resmooth_fused_llm_layers
base, files, calibrate, score = map(Path, sys.argv[1:5])
scheme = read(json.loads(sys.argv[5]), modelopt.SCHEMES)
rows, few = (torch.from_numpy(numpy.load(path / "tokens.npy").astype("int64")) for path in (calibrate, score))
config = json.loads((files / "config.json").read_text())["quantization_config"]
model, plain = modelopt.load(base), modelopt.load(base).float()
names = [name for name, part in model.named_modules() if isinstance(part, torch.nn.Linear) and name != "lm_head"]
modules, _ = dequantize.read(files)
told = {"layers": len(modules), "weights": 0.0, "apart": 0.0, "outputs": 0.0}


def logprobs(of):
    logits = torch.cat([of(input_ids=row[None]).logits for row in few])[:, :-1].float()
    return logits.log_softmax(-1).gather(-1, few[:, 1:, None])


def look(name, layer, entry, theirs):
    ours = ours_of.get_submodule(name)(entry[0])
    told["outputs"] = max(told["outputs"], float((ours - theirs).norm() / theirs.norm()))


with torch.inference_mode():
    loop = lambda _: [model(input_ids=row[None], use_cache=False) for row in rows]
    quantization.quantize(model, modelopt.configuration(scheme, names), loop)
    requantize_resmooth_fused_llm_layers(model)
    ours_of = dequantize.load(files, torch.float32, config)
    model.float()
    for name, parts in modules.items():
        layer = model.get_submodule(name)
        simulated = layer.weight_quantizer(layer.weight.bfloat16()).float()
        weight = dequantize.unpacked(name, parts, config, torch.float32)
        if "input_scale" in parts:  # the codes: `layer` applies both scales
            weight = weight * parts["weight_scale"].float().reshape(-1, 1)
        off, cost = weight - simulated, simulated - layer.weight
        told["weights"] = max(told["weights"], float(off.norm() / cost.norm()))
        told["apart"] = max(told["apart"], float((off.abs() > 0.02 * weight.abs()).float().mean()))
        layer.weight_quantizer.disable()
        layer.weight.data = weight
    hooks = [
        model.get_submodule(name).register_forward_hook(lambda *call, name=name: look(name, *call)) for name in modules
    ]
    theirs = logprobs(model)
    [hook.remove() for hook in hooks]
    told["whole"] = float((logprobs(ours_of) - theirs).abs().mean() / (theirs - logprobs(plain)).abs().mean())
print(json.dumps(told))
"""


@pytest.mark.parametrize("name", ["gptqmodel-gptq", "gptqmodel-gptq-asymmetric"])
def test_a_checkpoint_of_gptqmodel_is_scored_as_its_own_kernel_computes_it(
    name: str, cut3: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    quantize(name, cut3, texts["calibrate"], tmp_path / "job")
    files, theirs = tmp_path / "job" / "files", tmp_path / "theirs.npy"
    run_body("score", tmp_path / "score", {"model": files, "tokens": texts["score"]})
    run_body("score", tmp_path / "base", {"model": cut3, "tokens": texts["score"]})
    script, rows = tmp_path / "theirs.py", str(texts["score"] / "tokens.npy")
    script.write_text(BY_GPTQMODEL, encoding="utf-8")
    done = run_in(gptqmodel.TOOLCHAIN, str(script), str(files), rows, str(theirs), cwd=tmp_path)
    assert theirs.exists(), done.stderr[-2000:]
    ours, plain = (np.load(tmp_path / job / "files" / "token_logprobs.npy") for job in ("score", "base"))
    apart, cost = np.abs(ours - np.load(theirs)).mean(), np.abs(ours - plain).mean()
    assert apart < 0.6 * cost, "what bf16 rounds otherwise is less than what quantizing changed"


ODD_WEIGHTS = {"modelopt-awq": 0.002, "modelopt-smoothquant": 0.0005, "modelopt-fp8": 0.12}
"""Share of a layer's weights that ModelOpt's export may round to the other neighbour than its simulation does: it
divides in bf16, which for FP8 makes ties of what was none."""


@pytest.mark.parametrize("name", sorted(ODD_WEIGHTS))
def test_a_checkpoint_of_modelopt_is_computed_as_its_simulation_computes_the_files_weights(
    name: str, cut3: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    """In float32 and layer by layer on the same inputs: one activation's code that rounds otherwise turns others, so
    whole models in bf16 lie as far apart as quantizing costs, the library's own from its float32 too. The engines' way
    (codes times codes, scales on the product) puts a tie of FP8 on the other side now and then: 2e-4 of the norm."""
    quantize(name, cut3, texts["calibrate"], tmp_path / "job")
    script = tmp_path / "theirs.py"
    script.write_text(BY_MODELOPT, encoding="utf-8")
    more = [str(texts["calibrate"]), str(texts["score"]), json.dumps(METHODS[name][0])]
    done = run_in(modelopt.TOOLCHAIN, str(script), str(cut3), str(tmp_path / "job" / "files"), *more, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["layers"] == 21 and told["outputs"] < 1e-3, told
    assert told["whole"] < 0.5 and told["apart"] < ODD_WEIGHTS[name] and told["weights"] < 1, told


def spec(model: Path) -> EngineSpec:
    target = Vllm(max_model_len=257, kv_cache_memory_bytes=64 << 20, enforce_eager=True)
    settings = {"max_num_seqs": 4, "enable_prefix_caching": False}
    return vllm.spec("m@vllm", target, Artifact(model, f"sha256:{model}"), settings, CPU)


def test_vllm_on_a_cpu_serves_what_gptqmodel_wrote_as_transformers_computes_it(
    cut3: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    quantize("gptqmodel-gptq", cut3, texts["calibrate"], tmp_path / "job")
    files = tmp_path / "job" / "files"
    run_body("score", tmp_path / "score", {"model": files, "tokens": texts["score"]})
    inputs = {
        "tokens": Artifact(texts["score"], "sha256:tokens"),
        "score": Artifact(tmp_path / "score" / "files", "sha256:score"),
    }
    with executor(tmp_path).session(spec(files)) as session:
        found = session.run(Job("parity", "parity", "core", {"rows": 2}, inputs)).record
    assert found["mean_abs"] < resolve().parity_mean_ceiling and found["n_tokens"] > 200


@pytest.mark.parametrize(
    "name", ["gptqmodel-gptq-8", "gptqmodel-gptq-asymmetric", "modelopt-awq", "modelopt-smoothquant", "modelopt-fp8"]
)
def test_vllm_on_a_cpu_refuses_what_the_table_refuses(
    name: str, cut3: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    quantize(name, cut3, texts["calibrate"], tmp_path / "job")
    with pytest.raises(BackendFailed), executor(tmp_path).session(spec(tmp_path / "job" / "files")) as session:
        session.run(CANARY)
