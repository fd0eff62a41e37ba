"""Wrong models and texts end with exit 2 before a toolchain is installed or a job is run; nothing is left behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests import models
from tests.unit.wrong import Refused, check_refusal, here, optpipe

RECIPE = """\
version: 1
name: tiny
model: {source: model}
calibration: {text: {source: python-docs, part: calibrate}, samples: 8, sequence_length: 128}
checkpoints:
  gptq: {method: gptq, bits: 4, group_size: 32}
  int8: {method: int8}
targets:
  vllm: {engine: vllm, max_model_len: 512}
texts:
  python: {source: python-docs, part: score}
load: {scenario: steady, concurrency: 4, input_tokens: 128, output_tokens: 32, requests: 100}
slo: {ttft_ms: {p90: 2000}}
"""
MACHINE = {"name": "small", "cpu": "x86", "cores": 4, "memory_bytes": 16 << 30, "instruction_set": "avx2"}


def no_shard(folder: Path) -> None:
    models.tiny_llama(folder, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()


def no_tensor(folder: Path) -> None:
    models.tiny_llama(folder)
    path = folder / "model.safetensors"
    rewrite(path, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))


def rewrite(path: Path, change: Callable[[models.Tensors], object]) -> None:
    """Read a safetensors file of BF16 tensors, change the tensors, write it again."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    header.pop("__metadata__")
    tensors = {}
    for name, fact in header.items():
        start, end = fact["data_offsets"]
        raw = data[8 + size + start : 8 + size + end]
        tensors[name] = np.frombuffer(raw, np.uint16).reshape(fact["shape"]).copy()
    change(tensors)
    models.write_safetensors(path, tensors)


def lfs_pointer(folder: Path) -> None:
    models.tiny_llama(folder)
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 269060552\n"
    (folder / "model.safetensors").write_text(pointer, encoding="utf-8")


def truncated(folder: Path) -> None:
    models.tiny_llama(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def nan(folder: Path) -> None:
    models.tiny_llama(folder)

    def plant(tensors: models.Tensors) -> None:
        tensors["model.layers.0.mlp.down_proj.weight"][3, 5] = 0x7FC0

    rewrite(folder / "model.safetensors", plant)


def pickle_only(folder: Path) -> None:
    models.tiny_llama(folder)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")


def big_tokenizer(folder: Path) -> None:
    models.tiny_llama(folder)
    models.write_tokenizer(folder, 285)
    path = folder / "tokenizer.json"
    tokens = json.loads(path.read_text(encoding="utf-8"))["added_tokens"]
    models.edit_json(path, added_tokens=[*tokens, {**tokens[0], "id": 320, "content": "<|more|>"}])


def no_tokenizer(folder: Path) -> None:
    models.tiny_llama(folder)
    (folder / "tokenizer.json").unlink()


def code_missing(folder: Path) -> None:
    models.tiny_llama(folder, model_type="ours", auto_map={"AutoModelForCausalLM": "modeling_ours.Ours"})


def code_untrusted(folder: Path) -> None:
    code_missing(folder)
    (folder / "modeling_ours.py").write_text("class Ours: ...\n", encoding="utf-8")


def no_config(folder: Path) -> None:
    models.tiny_llama(folder)
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    models.tiny_llama(folder)
    (folder / "config.json").write_text('{"hidden_size": 64,', encoding="utf-8")


def other_sizes(folder: Path) -> None:
    models.tiny_llama(folder)
    models.edit_json(folder / "config.json", intermediate_size=256)


def empty(folder: Path) -> None:
    folder.mkdir()


WRONG: dict[str, tuple[Callable[[Path], None], tuple[str, ...]]] = {
    "a shard is missing": (no_shard, ("model-00002-of-00003.safetensors", "is missing")),
    "a tensor is missing": (no_tensor, ("model.layers.1.mlp.up_proj.weight is missing",)),
    "a pointer of Git LFS": (lfs_pointer, ("model.safetensors", "LFS", "git lfs pull")),
    "a truncated file": (truncated, ("model.safetensors", "bytes")),
    "pickled weights alone": (pickle_only, ("pytorch_model.bin", "safetensors")),
    "more tokens than rows": (big_tokenizer, ("tokenizer.json", "320", "vocab_size")),
    "no tokenizer": (no_tokenizer, ("no tokenizer",)),
    "its code is missing": (code_missing, ("modeling_ours.py", "auto_map")),
    "its code is not trusted": (code_untrusted, ("modeling_ours.py", "trust_remote_code")),
    "no configuration": (no_config, ("config.json",)),
    "a broken configuration": (broken_config, ("config.json", "JSON")),
    "sizes of another model": (other_sizes, ("up_proj.weight is [128, 64]", "[256, 64]")),
    "an empty folder": (empty, ("config.json",)),
}


def refuse(folder: Path, *arguments: str, recipe: str = RECIPE, process: bool = False) -> Refused:
    (folder / "recipe.yaml").write_text(recipe, encoding="utf-8")
    return (optpipe if process else here)(*arguments, cwd=folder, home=folder / "home")


@pytest.mark.parametrize("name", WRONG)
def test_plan_and_build_refuse_a_wrong_model(name: str, tmp_path: Path) -> None:
    make, shown = WRONG[name]
    make(tmp_path / "model")
    check_refusal(refuse(tmp_path, "plan", "recipe.yaml"), tmp_path, *shown)
    check_refusal(refuse(tmp_path, "build", "recipe.yaml"), tmp_path, *shown)
    assert not (tmp_path / "home" / "toolchains").exists()


def test_build_names_the_weight_that_is_not_a_number_before_anything_is_installed(tmp_path: Path) -> None:
    nan(tmp_path / "model")
    found = refuse(tmp_path, "build", "recipe.yaml", process=True)
    check_refusal(found, tmp_path, "model.layers.0.mlp.down_proj.weight[3, 5] is NaN", "damaged")
    assert not (tmp_path / "home" / "toolchains").exists()
    assert refuse(tmp_path, "plan", "recipe.yaml").code == 0, "a plan reads no weights"


def test_a_name_of_the_hub_that_is_a_folder_elsewhere_is_explained(tmp_path: Path) -> None:
    found = refuse(tmp_path, "plan", "recipe.yaml", process=True)
    check_refusal(found, tmp_path, "'model' is not there", place=r"recipe\.yaml:3:17: model\.source")


# ---------------------------------------------------------------- recipes that are wrong for this model


@pytest.mark.parametrize(
    ("ignore", "shown"),
    [
        ("['layers.7.*']", ("checkpoints.gptq.ignore.0", "'layers.7.*' matches none of 14")),
        ("[lm_head, dwn_proj]", ("checkpoints.gptq.ignore.1", "'dwn_proj'", "did you mean 'down_proj'")),
        ("[{select: 'layers.1.*', expect: 6}]", ("checkpoints.gptq.ignore.0", "matches 7 layers", "expect: 7")),
        ("['re:(']", ("checkpoints.gptq.ignore", "'re:('", "regular expression")),
    ],
)
def test_a_selector_that_does_not_match_is_refused_at_its_place(
    ignore: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    models.tiny_llama(tmp_path / "model")
    recipe = RECIPE.replace("group_size: 32", f"group_size: 32, ignore: {ignore}")
    found = refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe)
    check_refusal(found, tmp_path, *shown, place=r"recipe\.yaml:6:\d+: checkpoints\.gptq\.ignore")


def test_a_selector_of_a_mixed_scheme_is_refused_at_its_place(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    recipe = RECIPE.replace("method: gptq", "method: mixed, int8: [lm_head, dwn_proj]")
    assert recipe != RECIPE
    found = refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe)
    shown = ("checkpoints.gptq.int8.1", "'dwn_proj'", "did you mean 'down_proj'")
    check_refusal(found, tmp_path, *shown, place=r"recipe\.yaml:6:\d+: checkpoints\.gptq\.int8")


def test_a_length_beyond_the_model_is_refused_at_its_place(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model", max_position_embeddings=100)
    found = refuse(tmp_path, "plan", "recipe.yaml")
    check_refusal(found, tmp_path, "160 tokens", "100 positions", place=r"recipe\.yaml:12:1: load")
    assert "recipe.yaml:4:90: calibration.sequence_length: 128 tokens" in found.err


# ---------------------------------------------------------------- what refuses one candidate


def planned(folder: Path, recipe: str, *more: str) -> tuple[Refused, dict[str, list[str]]]:
    """The plan, and each refused candidate's reasons with what would work."""
    (folder / "machine.json").write_text(json.dumps(MACHINE), encoding="utf-8")
    found = refuse(folder, "plan", "recipe.yaml", "--json", "--hardware", "machine.json", *more, recipe=recipe)
    assert found.code == 0, found.err
    plan = json.loads(found.out)
    refused: dict[str, list[str]] = {}
    for no in plan["refused"]:
        refused.setdefault(no["candidate"], []).append(f"{no['reason']} -> {no['nearest']}")
    assert {one["candidate"]["name"] for one in plan["feasible"]} >= {"base@vllm", "int8@vllm"}
    return found, refused


def test_a_group_that_does_not_divide_is_refused_with_the_layers_and_one_that_does(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model", hidden=96, num_attention_heads=3, num_key_value_heads=1)
    _, refused = planned(tmp_path, RECIPE.replace("group_size: 32", "group_size: 128"))
    (reason,) = refused["gptq@vllm"]
    assert "group_size 128 does not divide" in reason and "gate_proj (96)" in reason
    assert reason.endswith("-> group_size: 32")


def test_a_head_that_is_tied_is_not_quantized(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    _, refused = planned(tmp_path, RECIPE.replace("group_size: 32", "group_size: 32, ignore: [layers.0.mlp.down_proj]"))
    assert any("lm_head shares its weights" in reason for reason in refused["gptq@vllm"])


def test_one_of_three_layers_that_engines_fuse_is_not_left_out(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    _, refused = planned(tmp_path, RECIPE.replace("group_size: 32", "group_size: 32, ignore: [lm_head, k_proj]"))
    (reason,) = refused["gptq@vllm"]
    assert "engines fuse" in reason and "self_attn.k_proj would stay unquantized" in reason


def test_smoothing_needs_to_know_the_architecture(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model", architectures=["OursForCausalLM"])
    _, refused = planned(tmp_path, RECIPE.replace("  int8:", "  sq: {method: smoothquant}\n  int8:"))
    (reason,) = refused["sq@vllm"]
    assert "OursForCausalLM" in reason and "no mapping" in reason


def test_a_plan_in_which_nothing_works_is_refused_with_every_reason(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    (tmp_path / "machine.json").write_text(json.dumps(MACHINE | {"memory_bytes": 1 << 28}), encoding="utf-8")
    found = refuse(tmp_path, "plan", "recipe.yaml", "--hardware", "machine.json")
    check_refusal(found, tmp_path, "base@vllm: serving needs", "int8@vllm: serving needs", "gptq@vllm")


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("data", "shown"),
    [
        ("", ("text.jsonl", "empty", "'text'")),
        ("\n\n", ("text.jsonl", "empty")),
        ('{"content": "a b c"}\n', ("text.jsonl:1", "'text'", "content")),
        ('{"text": "a"}\n{"text": \n', ("text.jsonl:2", "not JSON")),
        ('{"text": 5}\n', ("text.jsonl:1", "'5'")),
        ('{"text": "a few words"}\n' * 3, ("texts.mine", "3 documents", "32 rows of 256 tokens")),
    ],
    ids=["empty", "blank rows", "another column", "not JSON", "a number", "too short"],
)
def test_a_text_that_cannot_be_scored_is_refused_by_file_and_column(
    data: str, shown: tuple[str, ...], tmp_path: Path
) -> None:
    models.tiny_llama(tmp_path / "model")
    (tmp_path / "text.jsonl").write_text(data, encoding="utf-8")
    recipe = RECIPE.replace("python: {source: python-docs, part: score}", "mine: {source: text.jsonl}")
    check_refusal(refuse(tmp_path, "build", "recipe.yaml", recipe=recipe), tmp_path, *shown)
    check_refusal(refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe), tmp_path, *shown)


def test_a_large_text_is_refused_by_its_first_row_in_a_plan(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    (tmp_path / "text.jsonl").write_text('{"content": "a"}\n' + "\n" * 33_000_000, encoding="utf-8")
    recipe = RECIPE.replace("python: {source: python-docs, part: score}", "mine: {source: text.jsonl}")
    found = refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe)
    check_refusal(found, tmp_path, "text.jsonl:1", "no column 'text'", "content")


def test_text_that_is_calibrated_on_and_scored_under_another_name_is_refused(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    for name in ("seen", "scored"):
        lines = [f"{name} alone {k} " * 40 for k in range(8)] + [f"in both of them {k} " * 40 for k in range(8)]
        rows = [json.dumps({"text": line}) for line in lines]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    recipe = RECIPE.replace("python: {source: python-docs, part: score}", "mine: {source: scored.jsonl}")
    recipe = recipe.replace("{source: python-docs, part: calibrate}", "{source: seen.jsonl}")
    found = refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe)
    check_refusal(found, tmp_path, "texts.mine", "% of this text is also calibrated on", "part: calibrate")


def test_chats_need_a_chat_template(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    chat = json.dumps({"messages": [{"role": "user", "content": "how are you " * 900}]})
    (tmp_path / "chats.jsonl").write_text(chat, encoding="utf-8")
    recipe = RECIPE.replace("{source: python-docs, part: calibrate}", "{source: chats.jsonl, column: messages}")
    assert refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe).code == 0
    models.edit_json(tmp_path / "model" / "tokenizer_config.json", chat_template=None)
    found = refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe)
    check_refusal(found, tmp_path, "calibration.text", "no chat template", "chat_template.jinja")
    (tmp_path / "model" / "chat_template.jinja").write_text(models.TEMPLATE, encoding="utf-8")
    assert refuse(tmp_path, "plan", "recipe.yaml", recipe=recipe).code == 0


def test_what_is_unusual_but_loads_is_a_note_of_the_plan(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    models.edit_json(tmp_path / "model" / "generation_config.json", do_sample=False, temperature=0.6)
    models.edit_json(tmp_path / "model" / "config.json", bos_token_id=50256, pad_token_id=-1)
    (tmp_path / "model" / "chat_template.jinja").write_text("{{ messages[0].content }}", encoding="utf-8")
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(b"\x80\x02")
    found = refuse(tmp_path, "plan", "recipe.yaml")
    assert found.code == 0, found.err
    for shown in ("do_sample false", "different chat templates", "pytorch_model.bin beside the safetensors"):
        assert shown in found.out
    assert "note: config.json: bos_token_id: 50256 is not a row of the model" in found.out


def test_too_little_calibration_text_is_refused(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    recipe = RECIPE.replace("samples: 8", "samples: 60000")
    found = refuse(tmp_path, "build", "recipe.yaml", recipe=recipe)
    check_refusal(found, tmp_path, "60000 rows of 128 tokens", place=r"recipe\.yaml:4:\d+: calibration\.text")
