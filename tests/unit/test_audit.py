"""The audit names every fault of a model folder, and passes the unusual ones that load."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.errors import Problem
from optpipe.model.audit import audit, audit_notes
from optpipe.model.audit_tokenizer import pieces
from optpipe.model.finite import EXPONENTS, first_nonfinite
from tests.models import (
    bf16,
    edit_json,
    tiny_gpt2,
    tiny_llama,
    tiny_mixtral,
    tokenizer_json,
    write_json,
    write_safetensors,
    write_shards,
)

INDEX = "model.safetensors.index.json"
SECOND = "model-00002-of-00003.safetensors"


def one(problems: tuple[Problem, ...]) -> Problem:
    assert len(problems) == 1, [str(problem) for problem in problems]
    assert problems[0].hint
    return problems[0]


def tensors(folder: Path) -> dict[str, Any]:
    from optpipe.model.safetensors import map_tensor, read_header

    path = folder / "model.safetensors"
    header = read_header(path)
    return {fact.name: np.array(map_tensor(path, header, fact)) for fact in header.tensors}


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """The folder with its tensors changed."""
    found = tensors(folder)
    change(found)
    write_safetensors(folder / "model.safetensors", found)
    return folder


# ---------------------------------------------------------------- what is fine


@pytest.mark.parametrize("make", [tiny_llama, tiny_gpt2, tiny_mixtral])
def test_a_whole_model_has_no_problem(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    folder = make(tmp_path / "m")
    assert audit(folder) == () and audit_notes(folder) == ()


def test_shards_and_an_untied_head_are_fine(tmp_path: Path) -> None:
    assert audit(tiny_llama(tmp_path / "m", layers=12, shards=3, tie_word_embeddings=False)) == ()


def test_a_path_with_spaces_and_accents_is_fine(tmp_path: Path) -> None:
    assert audit(tiny_llama(tmp_path / "modèle à moi 模型 #1%20")) == ()


def test_a_read_only_folder_is_fine(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", shards=2)
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert audit(folder) == ()
    finally:
        folder.chmod(0o755)


def test_a_symlinked_hub_cache_is_fine(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "m", shards=2)
    blobs, snapshot = tmp_path / "models--a--b/blobs", tmp_path / "models--a--b/snapshots/abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    for number, path in enumerate(sorted(source.iterdir())):
        shutil.move(path, blobs / f"{number:064x}")
        (snapshot / path.name).symlink_to(Path("../../blobs") / f"{number:064x}")
    assert audit(snapshot) == ()


def test_pickles_beside_safetensors_are_a_note(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x02")
    assert audit(folder) == ()
    assert "pytorch_model.bin beside the safetensors" in audit_notes(folder)[0]


# ---------------------------------------------------------------- files


def test_only_a_pickle_is_refused_with_how_to_convert_it(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    found = one(audit(folder))
    assert "has only pytorch_model.bin" in found.message and "safe_serialization" in str(found.hint)


def test_an_empty_folder_says_what_a_model_folder_holds(tmp_path: Path) -> None:
    messages = " ".join(str(problem) for problem in audit(tmp_path))
    assert "config.json" in messages and "has no model.safetensors" in messages


def test_a_missing_shard_names_its_tensors(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", shards=3)
    (folder / SECOND).unlink()
    found = one(audit(folder))
    assert found.place.endswith(SECOND) and "is missing" in found.message
    assert "model.layers.0.mlp" in str(found.hint)


def test_a_tensor_missing_from_its_shard_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", shards=3)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = SECOND
    write_json(folder / INDEX, index)
    found = one(audit(folder))
    assert found.place.endswith(SECOND) and "model.norm.weight is missing here" in found.message
    assert "it stands in model-00003" in found.message


def test_a_tensor_missing_from_shard_and_index_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", layers=3)
    left = tensors(folder)
    del left["model.layers.1.self_attn.q_proj.weight"]
    (folder / "model.safetensors").unlink()
    write_shards(folder, left, shards=3)
    found = one(audit(folder))
    assert "model.layers.1.self_attn.q_proj.weight is missing" in found.message
    assert "layer 1 of 3" in str(found.hint)


def test_a_tensor_that_the_index_lacks_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", shards=3)
    index = json.loads((folder / INDEX).read_text())
    del index["weight_map"]["model.norm.weight"]
    write_json(folder / INDEX, index)
    assert "model.norm.weight is not in the index" in one(audit(folder)).message


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    found = tensors(folder)
    (folder / "model.safetensors").unlink()
    write_safetensors(folder / "model-1.safetensors", found)
    write_safetensors(folder / "model-2.safetensors", {"model.norm.weight": found["model.norm.weight"]})
    places = dict.fromkeys(found, "model-1.safetensors") | {"model.norm.weight": "model-2.safetensors"}
    write_json(folder / INDEX, {"weight_map": places})
    assert "model.norm.weight stands in model-1.safetensors too" in one(audit(folder)).message


@pytest.mark.parametrize("name", ["../other.safetensors", "/etc/model.safetensors", "a/b.safetensors", 7])
def test_an_index_that_leaves_the_folder_is_refused(tmp_path: Path, name: Any) -> None:
    folder = tiny_llama(tmp_path / "m", shards=2)
    index = json.loads((folder / INDEX).read_text())
    index["weight_map"]["model.norm.weight"] = name
    write_json(folder / INDEX, index)
    assert "is not the name of a file in this folder" in one(audit(folder)).message


def test_a_truncated_file_says_how_much_is_missing(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    found = one(audit(folder))
    assert found.place == str(path) and "100 bytes are missing" in found.message


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_an_lfs_pointer_is_named(tmp_path: Path, name: str) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / name).write_text("version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 269060552\n")
    found = one(audit(folder))
    assert found.place.endswith(name) and "Git LFS pointer" in found.message
    assert "git lfs pull" in str(found.hint)


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors").symlink_to("../blobs/gone")
    assert "leads nowhere" in one(audit(folder)).message


# ---------------------------------------------------------------- tensors


def test_every_missing_tensor_of_every_layer_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    rewrite(folder, lambda found: [found.pop(name) for name in list(found) if "k_proj" in name])
    assert [problem.message for problem in audit(folder)] == [
        f"model.layers.{k}.self_attn.k_proj.weight is missing" for k in (0, 1)
    ]


def test_a_layer_too_few_is_found(tmp_path: Path) -> None:
    folder = tiny_gpt2(tmp_path / "m")
    edit_json(folder / "config.json", n_layer=3)
    assert all("h.2." in problem.message for problem in audit(folder)) and audit(folder)


def test_a_missing_expert_is_found(tmp_path: Path) -> None:
    folder = tiny_mixtral(tmp_path / "m", experts=4)
    rewrite(folder, lambda found: [found.pop(name) for name in list(found) if ".experts.3." in name])
    messages = [problem.message for problem in audit(folder)]
    assert len(messages) == 6 and "experts.3.w1.weight is missing" in messages[0]


def test_a_head_that_is_not_tied_and_not_there_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_json(folder / "config.json", tie_word_embeddings=False)
    found = one(audit(folder))
    assert "lm_head.weight is missing" in found.message and "tie_word_embeddings" in str(found.hint)


def test_a_tied_head_that_differs_is_named_and_one_that_is_equal_is_fine(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    rewrite(folder, lambda found: found.update({"lm_head.weight": found["model.embed_tokens.weight"]}))
    assert audit(folder) == ()
    rewrite(folder, lambda found: found.update({"lm_head.weight": found["lm_head.weight"][::-1].copy()}))
    assert "lm_head.weight differs from model.embed_tokens.weight" in one(audit(folder)).message


def test_a_shape_that_is_not_the_configuration_s_is_named(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_json(folder / "config.json", intermediate_size=256)
    problems = audit(folder)
    assert len(problems) == 6
    assert "mlp.down_proj.weight is [64, 128]; the configuration asks for [64, 256]" in problems[0].message


VALUES = [
    ("F64", np.float64, np.nan),
    ("F32", np.float32, -np.inf),
    ("F16", np.float16, np.nan),
    ("BF16", None, np.inf),
    ("BF16", None, np.nan),
]


@pytest.mark.parametrize(("code", "kind", "value"), VALUES)
def test_a_value_that_is_not_finite_names_tensor_index_and_kind(
    tmp_path: Path, code: str, kind: Any, value: float
) -> None:
    folder = tiny_llama(tmp_path / "m")

    def damage(found: dict[str, Any]) -> None:
        weight = np.zeros((64, 64), np.float32)
        weight[5, 7] = value
        found["model.layers.1.self_attn.q_proj.weight"] = (
            bf16(weight) if kind is None else weight.astype(kind)
        )

    found = one(audit(rewrite(folder, damage)))
    word = "NaN" if np.isnan(value) else "inf"
    assert found.message == f"model.layers.1.self_attn.q_proj.weight[5, 7] is {word} ({code})"
    assert audit(folder, values=False) == ()


@pytest.mark.parametrize(
    ("dtype", "code", "word"),
    [
        ("F8_E4M3", 0x7F, "NaN"),
        ("F8_E4M3", 0xFF, "NaN"),
        ("F8_E5M2", 0x7C, "inf"),
        ("F8_E5M2", 0xFE, "NaN"),
        ("F8_E8M0", 0xFF, "NaN"),
        ("BF16", 0xFF80, "inf"),
        ("F16", 0x7C01, "NaN"),
    ],
)
def test_codes_that_are_not_finite_are_found_anywhere(dtype: str, code: int, word: str) -> None:
    kind = np.dtype(EXPONENTS[dtype][0])
    values = np.zeros(1_300_001, kind)
    assert first_nonfinite(values, dtype) is None
    values[-1] = code
    assert first_nonfinite(values, dtype) == (1_300_000, word)


def test_the_largest_finite_values_pass() -> None:
    for dtype, code in (
        ("F8_E4M3", 0x7E),
        ("F8_E5M2", 0x7B),
        ("BF16", 0x7F7F),
        ("F16", 0xFBFF),
        ("F8_E8M0", 0xFE),
    ):
        assert first_nonfinite(np.full(9, code, EXPONENTS[dtype][0]), dtype) is None


def test_many_problems_of_one_kind_are_counted(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", layers=12)
    edit_json(folder / "config.json", intermediate_size=256)
    problems = audit(folder)
    assert len(problems) == 21 and problems[-1].message == "and 16 more of this kind"


# ---------------------------------------------------------------- tokenizer and configuration


def big_tokenizer(tokens: int) -> dict[str, Any]:
    value = tokenizer_json(285)
    value["model"]["vocab"] |= {f"extra{k}": k for k in range(285, tokens - 1)}
    value["added_tokens"].append({**value["added_tokens"][0], "id": tokens - 1, "content": "<|last|>"})
    return value


@pytest.mark.parametrize(
    ("rows", "tokens", "fits"), [(32000, 32004, False), (151936, 151646, True), (320, 320, True)]
)
def test_the_tokenizer_may_have_fewer_tokens_than_the_model_but_not_more(
    tmp_path: Path, rows: int, tokens: int, fits: bool
) -> None:
    folder = tiny_llama(tmp_path / "m", vocab_size=rows)
    write_json(folder / "tokenizer.json", big_tokenizer(tokens))
    problems = audit(folder)
    if fits:
        assert problems == ()
    else:
        found = one(problems)
        assert found.message == "has token ids up to 32003, but the model has 32000 rows (vocab_size)"


def test_a_model_without_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    assert "has no tokenizer" in one(audit(folder)).message


def test_a_sentencepiece_model_is_counted_and_added_tokens_too(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    piece = b"\x0a\x09\x0a\x02ab\x15\0\0\0\0"
    (folder / "tokenizer.model").write_bytes(piece * 300 + b"\x12\x02\x08\x01")
    assert pieces(folder / "tokenizer.model") == 300 and audit(folder) == ()
    write_json(folder / "added_tokens.json", {"<extra>": 320})
    assert "up to 320" in one(audit(folder)).message
    (folder / "tokenizer.model").write_bytes(piece * 300 + b"\x0a\x7fcut")
    assert "no SentencePiece model" in one(audit(folder)).message


def test_sampling_settings_without_sampling_are_a_note(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_json(folder / "generation_config.json", do_sample=False, temperature=0.6, top_p=1.0)
    assert audit(folder) == ()
    assert audit_notes(folder) == (
        "generation_config.json has do_sample false, so temperature: 0.6 has no effect; it is kept as it is",
    )


def test_a_broken_generation_configuration_is_an_error(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m")
    (folder / "generation_config.json").write_text("{")
    assert "is not JSON" in one(audit(folder)).message


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"hidden_size": None}, "names no hidden size"),
        ({"num_hidden_layers": "two"}, "num_hidden_layers: 'two' is not a size"),
        ({"vocab_size": -1}, "vocab_size: -1 is not a size"),
    ],
)
def test_a_configuration_without_a_size_is_refused(
    tmp_path: Path, change: dict[str, Any], expected: str
) -> None:
    folder = tiny_llama(tmp_path / "m")
    edit_json(folder / "config.json", **change)
    assert expected in one(audit(folder)).message


# ---------------------------------------------------------------- the model's own code

OWN = {"model_type": "own", "auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}}


def test_own_code_that_is_missing_is_an_error_even_if_trusted(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", **OWN)
    found = one(audit(folder, trust_remote_code=True))
    assert "needs modeling_own.py, which is not in the folder" in found.message


def test_own_code_runs_only_where_it_is_trusted(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", **OWN)
    (folder / "modeling_own.py").write_text("class OwnForCausalLM: ...\n")
    assert "trust_remote_code: true" in str(one(audit(folder)).hint)
    assert audit(folder, trust_remote_code=True) == ()


def test_what_own_code_imports_from_its_side_must_be_there_too(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", **OWN)
    (folder / "modeling_own.py").write_text("from .configuration_own import OwnConfig\n")
    assert "needs configuration_own.py" in one(audit(folder, trust_remote_code=True)).message


def test_own_code_of_a_known_architecture_is_not_run_and_noted(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", **OWN | {"model_type": "llama"})
    (folder / "modeling_own.py").write_text("class OwnForCausalLM: ...\n")
    assert audit(folder) == ()
    assert "modeling_own.py" in audit_notes(folder)[0]


def test_code_in_another_repository_is_refused(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "m", auto_map={"AutoModelForCausalLM": "other/repo--modeling.Own"})
    assert "code in another repository" in one(audit(folder, trust_remote_code=True)).message
