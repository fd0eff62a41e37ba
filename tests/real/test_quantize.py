"""Every method on the first layers of a real model: what is left in the files, and whether it is any good."""

from __future__ import annotations

import hashlib
import json
import pydoc_data.topics
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.backends.quantizers.llmcompressor import MAPPED
from optpipe.backends.quantizers.llmcompressor_schemes import SCHEMES
from optpipe.backends.quantizers.scheme import read
from optpipe.model.facts import facts_of_folder
from optpipe.model.memory import bits_per_weight, measured_bits_per_weight
from optpipe.model.schemes import DATA_FREE, linear_bytes, parts, weight_bytes
from tests.models import edit_json, llama_config, tiny_gpt2, tiny_llama, tiny_mixtral
from tests.real.bodies import in_quantize, run_body
from tests.real.planted import config_of, tensors_of

pytestmark = pytest.mark.real

METHODS: dict[str, tuple[dict[str, Any], str, float]] = {
    "gptq": ({"method": "gptq", "group_size": 64, "symmetric": False}, "pack-quantized", 0.06),
    "awq": ({"method": "awq", "group_size": 64, "symmetric": False}, "pack-quantized", 0.06),
    "smoothquant": ({"method": "smoothquant"}, "int-quantized", 0.02),
    "int8": ({"method": "int8"}, "int-quantized", 0.02),
    "fp8": ({"method": "fp8"}, "float-quantized", 0.02),
    "w8a16": ({"method": "rtn"}, "pack-quantized", 0.01),
    "w8a16-gptq": ({"method": "gptq", "bits": 8, "group_size": -1}, "pack-quantized", 0.01),
    "mixed": ({"method": "mixed", "group_size": 64, "symmetric": False}, "mixed-precision", 0.06),
    "awq-gptq": (
        {"method": "awq-gptq", "group_size": 64, "symmetric": False, "max_tokens": 1024}, "pack-quantized", 0.06,
    ),
    "nvfp4": ({"method": "nvfp4"}, "nvfp4-pack-quantized", 0.2),
    "mxfp4": ({"method": "mxfp4"}, "mxfp4-pack-quantized", 0.4),
    "autoround": ({"method": "autoround", "group_size": 64, "iterations": 10, "batch": 2}, "pack-quantized", 0.1),
    "spinquant": ({"method": "spinquant", "group_size": 64, "symmetric": False}, "pack-quantized", 0.06),
}
"""Options, format, and the largest KL divergence from the base (nats per token) that is still sane."""

KEPT = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json")


@pytest.fixture(scope="module")
def texts(cut3: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Rows of the standard library's help topics: `calibrate` and `score` share none."""
    folder = tmp_path_factory.mktemp("texts")
    source = folder / "topics.jsonl"
    topics = [json.dumps({"text": text}) for _, text in sorted(pydoc_data.topics.topics.items())]
    source.write_text("\n".join(topics) + "\n", encoding="utf-8")
    rows = {}
    for name, first, count in (("calibrate", 0, 8), ("score", 8, 4)):
        options = {"length": 256, "first_row": first, "rows": count, "template": False, "min_rows": count}
        record = run_body("tokens", folder / name, {"model": cut3, "text": source}, options)
        assert record["rows"] == count
        rows[name] = folder / name / "files"
    return rows


@pytest.fixture(scope="module")
def base_score(cut3: Path, texts: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base") / "job"
    run_body("score", folder, {"model": cut3, "tokens": texts["score"]}, {"keep_logits": True})
    return folder / "files"


@pytest.fixture
def random_rows(tmp_path: Path) -> Path:
    """Ids for the tiny random models: 4 rows of 64."""
    folder = tmp_path / "rows"
    folder.mkdir()
    np.save(folder / "tokens.npy", np.random.default_rng(1).integers(3, 285, (4, 64)).astype("int32"))
    return folder


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("method", sorted(METHODS))
def test_a_method_quantizes_every_layer_and_stays_close_to_its_base(
    method: str, cut3: Path, texts: dict[str, Path], base_score: Path, tmp_path: Path
) -> None:
    options, form, worst = METHODS[method]
    job = tmp_path / "job"
    record = run_body("quantize", job, {"model": cut3, "tokens": texts["calibrate"]}, options)
    files = job / "files"
    assert (record["format"], record["count"], record["skipped"]) == (form, 21, ["lm_head"])
    assert record["tokens_used"] == (0 if options["method"] in DATA_FREE else 8 * 256)

    assert {path.name for path in files.iterdir()} == {"config.json", "model.safetensors", *KEPT}
    assert {name: digests(files)[name] for name in KEPT} == {name: digests(cut3)[name] for name in KEPT}
    unties = {"tie_word_embeddings": False} if method == "spinquant" else {}
    kept = {k: v for k, v in config_of(files).items() if k != "quantization_config"}
    assert kept == config_of(cut3) | unties
    assert any("two tables" in note for note in record["notes"]) == bool(unties)

    told = [json.loads(line) for line in (job / "progress.jsonl").read_text().splitlines()]
    assert [line["done"] for line in told] == sorted(line["done"] for line in told)
    assert told[-1]["done"] == told[-1]["total"]

    check_sizes(cut3, files, asdict(read(options, SCHEMES)))

    inputs = {"model": files, "tokens": texts["score"], "base": base_score}
    units = run_body("score", tmp_path / "score", inputs)["units"]
    divergence = sum(unit["kl"] for unit in units) / sum(unit["tokens"] for unit in units)
    assert 1e-4 < divergence < worst


def check_sizes(base: Path, files: Path, options: dict[str, Any]) -> None:
    """Each layer takes exactly the bytes that the plan counts on; all else is as in the base."""
    facts, before, after = facts_of_folder(base), tensors_of(base), tensors_of(files)
    for layout, linears in parts(facts, options):
        for layer, out, inputs in linears:
            del before[f"{layer}.weight"]
            own = [name for name in after if name.startswith(f"{layer}.")]
            assert sum(after.pop(name)[2] for name in own) == linear_bytes(layout, out, inputs), layer
    if options["method"] == "spinquant":
        before["lm_head.weight"] = before["model.embed_tokens.weight"]
    assert after == before
    assert facts_of_folder(files).weight_bytes == weight_bytes(facts, options)
    asked = bits_per_weight(facts, options).value
    assert measured_bits_per_weight(files, facts, options) == pytest.approx(asked, abs=1e-9)


@pytest.mark.parametrize("method", sorted(METHODS.keys() - {"int8", "fp8", "w8a16", "w8a16-gptq", "mxfp4"}))
def test_the_same_job_twice_gives_the_same_bytes(
    method: str, cut3: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    inputs = {"model": cut3, "tokens": texts["calibrate"]}
    options = METHODS[method][0] | ({"iterations": 3} if method == "autoround" else {})
    for name in ("first", "second"):
        run_body("quantize", tmp_path / name, inputs, options)
    assert digests(tmp_path / "first" / "files") == digests(tmp_path / "second" / "files")


LIBRARY = """
import os, sys
os.environ["TQDM_DISABLE"] = "1"
import llmcompressor, numpy, torch
from llmcompressor.modifiers.gptq import GPTQModifier
from torch.utils.data import DataLoader
from transformers import AutoModelForCausalLM
torch.set_num_threads(1)
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16)
rows = torch.from_numpy(numpy.load(sys.argv[2] + "/tokens.npy").astype("int64"))
weights = dict(num_bits=int(sys.argv[4]), type="int", symmetric=sys.argv[4] == "8", dynamic=False)
weights |= dict(strategy="channel") if sys.argv[4] == "8" else dict(strategy="group", group_size=64)
recipe = GPTQModifier(config_groups={"g": {"targets": ["Linear"], "weights": weights}}, ignore=["lm_head"])
data = DataLoader([{"input_ids": row} for row in rows], batch_size=1)
llmcompressor.oneshot(model=model, dataset=data, recipe=recipe, shuffle_calibration_samples=False)
model.save_pretrained(sys.argv[3], save_compressed=True)
"""


@pytest.mark.parametrize(
    ("bits", "options"),
    [
        ("4", {"method": "gptq", "group_size": 64, "symmetric": False}),
        ("8", {"method": "gptq", "bits": 8, "group_size": -1}),
    ],
)
def test_the_faster_gptq_gives_the_librarys_own_bytes(
    bits: str, options: dict[str, Any], cut3: Path, texts: dict[str, Path], tmp_path: Path
) -> None:
    run_body("quantize", tmp_path / "job", {"model": cut3, "tokens": texts["calibrate"]}, options)
    out = tmp_path / "library"
    done = in_quantize("-c", LIBRARY, str(cut3), str(texts["calibrate"]), str(out), bits)
    assert done.returncode == 0, done.stderr[-2000:]
    ours, theirs = digests(tmp_path / "job" / "files"), digests(out)
    assert ours["model.safetensors"] == theirs["model.safetensors"]


def test_a_selector_keeps_whole_segments_only(random_rows: Path, tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base", layers=12)
    options = {"method": "int8", "ignore": ["lm_head", {"select": "layers.1.*", "expect": 7}]}
    record = run_body("quantize", tmp_path / "job", {"model": base}, options)
    kept = [name for name in record["skipped"] if name != "lm_head"]
    assert len(kept) == 7
    assert all(name.startswith("model.layers.1.") for name in kept)
    assert record["count"] == 11 * 7


@pytest.mark.parametrize(
    ("ignore", "says"),
    [
        (["lm_head", {"select": "layers.1.*", "expect": 8}], "'layers.1.*' matches 7 layers"),
        (["lm_head", "down_porj"], "'down_porj' matches none"),
        (["layers", "lm_head"], "leaves none"),
        (["down_proj"], "lm_head shares its weights with the input embeddings"),
    ],
)
def test_an_ignore_list_that_cannot_be_meant_fails_before_the_work(
    ignore: list[Any], says: str, tmp_path: Path
) -> None:
    base = tiny_llama(tmp_path / "base")
    record = run_body("quantize", tmp_path / "job", {"model": base}, {"method": "int8", "ignore": ignore})
    assert says in record["failure"]["message"]
    assert record["failure"]["transient"] is False


def test_smoothing_an_architecture_without_a_mapping_is_a_definite_failure(random_rows: Path, tmp_path: Path) -> None:
    base = tiny_mixtral(tmp_path / "base")
    inputs = {"model": base, "tokens": random_rows}
    record = run_body("quantize", tmp_path / "job", inputs, {"method": "awq", "group_size": 32})
    assert "awq on MixtralForCausalLM" in record["failure"]["message"]
    assert record["failure"]["transient"] is False


def test_a_model_without_linear_layers_is_refused(tmp_path: Path) -> None:
    record = run_body("quantize", tmp_path / "job", {"model": tiny_gpt2(tmp_path / "base")}, {"method": "int8"})
    assert "leaves none of 1 linear modules" in record["failure"]["message"]


def test_experts_are_layers_like_any_other_and_the_router_stays(random_rows: Path, tmp_path: Path) -> None:
    base = tiny_mixtral(tmp_path / "base", experts=4)
    inputs = {"model": base, "tokens": random_rows}
    record = run_body("quantize", tmp_path / "job", inputs, {"method": "gptq", "group_size": 32})
    assert record["count"] == 2 * (4 + 4 * 3)
    assert not [name for name in record["layers"] if name.endswith(".gate")]


def test_a_method_that_calibrates_says_that_its_text_is_missing(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    record = run_body("quantize", tmp_path / "job", {"model": base}, {"method": "gptq", "group_size": 32})
    assert "needs calibration text" in record["failure"]["message"]


def test_a_hessian_that_is_not_positive_definite_is_dampened_more_and_noted(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    rows = tmp_path / "rows"
    rows.mkdir()
    np.save(rows / "tokens.npy", np.full((2, 32), 5, dtype="int32"))
    options = {"method": "gptq", "group_size": 32, "dampening": 1e-9}
    record = run_body("quantize", tmp_path / "job", {"model": base, "tokens": rows}, options)
    assert any("dampening raised to" in note for note in record["notes"])
    assert record["count"] == 14


def test_a_generation_configuration_that_transformers_refuses_is_kept_as_it_is(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    wrong = b'{"do_sample": false, "temperature": 0.2,\n "top_p": 0.5}'
    (base / "generation_config.json").write_bytes(wrong)
    run_body("quantize", tmp_path / "job", {"model": base}, {"method": "int8"})
    assert (tmp_path / "job" / "files" / "generation_config.json").read_bytes() == wrong


def test_code_that_auto_map_names_is_copied_or_missed_by_name(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    edit_json(base / "config.json", auto_map={"AutoConfig": "configuration_own.OwnConfig"})
    record = run_body("quantize", tmp_path / "without", {"model": base}, {"method": "int8"})
    assert "configuration_own.py" in record["failure"]["message"]
    (base / "configuration_own.py").write_text("# never run\n")
    run_body("quantize", tmp_path / "with", {"model": base}, {"method": "int8"})
    assert (tmp_path / "with" / "files" / "configuration_own.py").read_text() == "# never run\n"


def test_a_base_that_is_quantized_already_is_refused(tmp_path: Path) -> None:
    base = tiny_llama(tmp_path / "base")
    run_body("quantize", tmp_path / "once", {"model": base}, {"method": "int8"})
    record = run_body("quantize", tmp_path / "twice", {"model": tmp_path / "once" / "files"}, {"method": "int8"})
    assert "is quantized already (compressed-tensors)" in record["failure"]["message"]


def test_the_list_of_mapped_architectures_is_the_librarys(tmp_path: Path) -> None:
    script = (
        "import json\n"
        "from llmcompressor.modifiers.transform.awq import dynamic_mappings as a\n"
        "from llmcompressor.modifiers.transform.awq.mappings import AWQ_MAPPING_REGISTRY\n"
        "from llmcompressor.modifiers.transform.smoothquant import dynamic_mappings as s\n"
        "from llmcompressor.modifiers.transform.smoothquant.utils import MAPPINGS_REGISTRY\n"
        "from llmcompressor.modifiers.transform.spinquant.mappings import SPINQUANT_MAPPING_REGISTRY\n"
        "awq = {*AWQ_MAPPING_REGISTRY, *a.AWQ_DYNAMIC_MAPPING_REGISTRY}\n"
        "spin = {*SPINQUANT_MAPPING_REGISTRY} - {'Cohere2MoeForCausalLM'}  # which wants preparing first\n"
        "known = {'awq': awq, 'awq-gptq': awq, 'spinquant': spin,\n"
        "         'smoothquant': {*MAPPINGS_REGISTRY, *s.SMOOTHQUANT_DYNAMIC_MAPPING_REGISTRY}}\n"
        "print(json.dumps({k: sorted(n[:-11] for n in v if n.endswith('ForCausalLM')) for k, v in known.items()}))\n"
    )
    done = in_quantize("-c", script)
    assert json.loads(done.stdout.splitlines()[-1]) == {name: sorted(list_) for name, list_ in MAPPED.items()}
    assert llama_config(1, 64)["architectures"][0].removesuffix("ForCausalLM") in MAPPED["awq"]
