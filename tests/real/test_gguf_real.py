"""The real SmolLM2 GGUF becomes a Hugging Face folder whose tokenizer is right where transformers' own is not."""

from __future__ import annotations

import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest

from optpipe.model import gguf
from optpipe.rundir import digest_file
from tests.real.bodies import in_quantize, run_body
from tests.real.cuts import cut_layers
from tests.unit.gguf_files import llama, write_gguf

pytestmark = pytest.mark.real

NUMERALS = "½ ² Ⅷ ١٢٣ 12345"
TEXTS = [
    NUMERALS,
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|>",
    "Hello , world ! It 's   2026.\r\n\tdef f(x):\n\n\n    return x  # näïve 你好 🙂",
    "\n\n".join(text for _, text in sorted(pydoc_data.topics.topics.items())),
]
LOOK = """
import json, sys
from transformers import AutoTokenizer
path, file, texts = sys.argv[1], sys.argv[2], json.load(open(sys.argv[3]))
t = AutoTokenizer.from_pretrained(path, **({"gguf_file": file} if file else {}))
ids = [t(text).input_ids for text in texts]
chat = t.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True)
spans = t(texts[0], return_offsets_mapping=True).offset_mapping
print(json.dumps({"ids": ids, "spans": spans, "back": [t.decode(i) for i in ids], "chat": chat, "length": len(t),
                  "bos": t.bos_token_id, "eos": t.eos_token_id, "pad": t.pad_token_id}))
"""


def look(path: Path, texts: Path, file: str = "") -> Any:
    done = in_quantize("-c", LOOK, str(path), file, str(texts))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("texts") / "texts.json"
    path.write_text(json.dumps(TEXTS))
    return path


@pytest.fixture(scope="module")
def ours(converted: tuple[Path, dict[str, Any]], texts: Path) -> Any:
    return look(converted[0], texts)


@pytest.fixture(scope="module")
def theirs(gguf_file: Path, texts: Path) -> Any:
    """What transformers makes of the GGUF's tokenizer by itself."""
    return look(gguf_file.parent, texts, gguf_file.name)


def test_every_text_comes_back_exactly(ours: Any) -> None:
    assert ours["back"] == TEXTS


def test_special_tokens_are_the_files_own(ours: Any, theirs: Any) -> None:
    assert (ours["bos"], ours["eos"], ours["pad"]) == (1, 2, 2)
    assert ours["length"] == 49152
    assert [theirs["eos"], theirs["pad"]] != [2, 2], "transformers has them right by now: drop the rebuilding?"


def test_each_numeral_is_cut_off_from_what_stands_beside_it(ours: Any, theirs: Any) -> None:
    def mixed(found: Any) -> list[str]:
        pieces = [NUMERALS[a:b] for a, b in found["spans"]]
        return [piece for piece in pieces if len(piece) > 1 and any(map(str.isnumeric, piece))]

    assert mixed(ours) == []
    assert ours["ids"][0] != theirs["ids"][0], "transformers splits numerals by now: drop the rebuilding?"
    assert mixed(theirs) != []


def test_control_tokens_are_single_ids(ours: Any) -> None:
    ids = ours["ids"][1]
    assert ids[0] == 1 and ids[-1] == 0 and ids.count(2) == 1


def test_the_template_is_the_files_own_byte_for_byte(
    converted: tuple[Path, dict[str, Any]], ours: Any, gguf_file: Path
) -> None:
    template = gguf.read(gguf_file).metadata["tokenizer.chat_template"]
    assert (converted[0] / "chat_template.jinja").read_bytes() == template.encode()
    assert ours["chat"].endswith("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")


def test_configuration_and_record(converted: tuple[Path, dict[str, Any]]) -> None:
    folder, record = converted
    config = json.loads((folder / "config.json").read_text())
    assert config["rms_norm_eps"] == 1e-5
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert (config["eos_token_id"], config["pad_token_id"]) == (2, 2)
    assert "_name_or_path" not in config
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    assert record["dtype"] == "bfloat16"
    assert record["was"] == "Q4_1"
    assert any("was Q4_1: 4-bit once" in note for note in record["notes"])
    assert any("rms_norm_eps" in note for note in record["notes"])
    names = {p.name for p in folder.iterdir()}
    assert names == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }


def test_weights_are_bf16_and_complete(converted: tuple[Path, dict[str, Any]], gguf_file: Path) -> None:
    from optpipe.model.folder import tensors_of_folder
    from optpipe.model.gguf_names import hf_tensors

    written = {t.name: t.shape for t in tensors_of_folder(converted[0])}
    assert written == {t.name: t.shape for t in hf_tensors(gguf.read(gguf_file))}
    assert {t.dtype for t in tensors_of_folder(converted[0])} == {"BF16"}


def test_a_cut_of_the_model_loads_and_a_second_conversion_has_the_same_bytes(
    converted: tuple[Path, dict[str, Any]], gguf_file: Path, tmp_path: Path
) -> None:
    cut = cut_layers(converted[0], tmp_path / "cut", 3)
    program = (
        "import sys; from transformers import AutoModelForCausalLM as A; m = A.from_pretrained(sys.argv[1]);"
        "print(m.config.num_hidden_layers, len(m.model.layers))"
    )
    assert in_quantize("-c", program, str(cut)).stdout.split() == ["3", "3"]
    run_body("gguf", tmp_path / "again", {"gguf": gguf_file})
    for file in converted[0].iterdir():
        assert digest_file(tmp_path / "again" / "files" / file.name) == digest_file(file), file.name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.pre": "brand-new"}, "'brand-new'; known: gpt-2, llama-bpe, qwen2, refact, smollm"),
        ({"tokenizer.ggml.pre": None}, "tokenizer.ggml.pre is None; known:"),
        ({"tokenizer.ggml.model": "llama"}, "tokenizer.ggml.model is 'llama'"),
        ({"tokenizer.ggml.merges": ["a b c"]}, "a merge of 3 parts"),
        ({"tokenizer.ggml.token_type": [3]}, "6 tokens, but 1 token types"),
        ({"tokenizer.ggml.eos_token_id": 99}, "eos_token_id is 99, but there are 6 tokens"),
        ({"tokenizer.ggml.tokens": ["a"] * 6}, "5 of 6 tokens stand there twice"),
        ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges is not a list of str"),
    ],
)
def test_a_tokenizer_that_cannot_be_rebuilt_is_a_definite_failure(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    file = write_gguf(tmp_path / "m.gguf", llama(**changes))
    failure = run_body("gguf", tmp_path / "job", {"gguf": file})["failure"]
    assert message in failure["message"]
    assert failure["transient"] is False


def test_a_small_model_of_another_make_converts_and_has_its_bos_added(tmp_path: Path) -> None:
    file = write_gguf(tmp_path / "m.gguf", llama(**{"tokenizer.ggml.add_bos_token": True}))
    record = run_body("gguf", tmp_path / "job", {"gguf": file})
    assert "failure" not in record, record
    texts = tmp_path / "texts.json"
    texts.write_text(json.dumps(["ab"]))
    found = look(tmp_path / "job" / "files", texts)
    assert found["ids"] == [[1, 4]], "<|start|> ab"
    assert found["pad"] is None
    assert found["eos"] == 0


def test_a_truncated_file_fails_with_the_tensor(tmp_path: Path, gguf_file: Path) -> None:
    cut = tmp_path / "cut.gguf"
    with gguf_file.open("rb") as file:
        cut.write_bytes(file.read(50_000_000))
    failure = run_body("gguf", tmp_path / "job", {"gguf": cut})["failure"]
    assert "truncated" in failure["message"] and str(cut) in failure["message"]
    assert failure["transient"] is False


def test_the_pre_tokenizers_of_other_makes_are_the_librarys_own_patterns() -> None:
    """Qwen2's and Llama 3's, as the installed transformers has them for those models."""
    program = (
        "from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as q;"
        "from transformers.convert_slow_tokenizer import TikTokenConverter as c; import inspect;"
        "l = inspect.signature(c.__init__).parameters['pattern'].default;"
        "from optpipe.backends.converters import tokenizer as t; print(t.QWEN2 == q, t.LLAMA3 == l)"
    )
    assert in_quantize("-c", program).stdout.split() == ["True", "True"]
