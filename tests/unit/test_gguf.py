"""Reading the front of GGUF files, and what it says in Hugging Face terms."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest

from optpipe.errors import InputError
from optpipe.model import gguf
from optpipe.model.gguf_names import hf_config, hf_name, hf_tensors, shortest
from tests.unit.gguf_files import TENSORS, llama, write_gguf


def test_metadata_and_tensors_come_back_as_written(tmp_path: Path) -> None:
    meta = llama(**{"general.languages": ["en", "fr"], "x.flag": True, "x.empty": []})
    front = gguf.read(write_gguf(tmp_path / "m.gguf", meta))
    single = struct.unpack("<f", struct.pack("<f", 1e-5))[0]
    assert front.metadata == meta | {"llama.attention.layer_norm_rms_epsilon": single}
    assert {t.name: (t.dtype, t.shape) for t in front.tensors} == TENSORS
    q = next(t for t in front.tensors if t.name == "blk.0.attn_q.weight")
    assert q.nbytes == 64 * 64 // 32 * 20, "Q4_1 keeps 32 weights in 20 bytes"
    assert front.architecture == "llama"
    assert front.get("block_count") == 1
    assert front.get("nothing") is None


def test_the_type_of_most_weights_says_what_the_model_was(tmp_path: Path) -> None:
    assert gguf.read(write_gguf(tmp_path / "q.gguf")).quantized == "Q4_1"
    plain = {name: ("F16" if dtype != "F32" else dtype, shape) for name, (dtype, shape) in TENSORS.items()}
    assert gguf.read(write_gguf(tmp_path / "f.gguf", tensors=plain)).quantized is None
    assert [gguf.bits_of(t) for t in ("Q4_1", "Q8_0", "IQ2_XS", "MXFP4", "Q6_K")] == [4, 8, 2, 4, 6]


def test_a_file_cut_anywhere_is_an_input_error_never_something_else(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    cut = tmp_path / "cut.gguf"
    for size in [*range(0, 1200, 7), len(whole) - 1]:
        cut.write_bytes(whole[:size])
        with pytest.raises(InputError) as error:
            gguf.read(cut)
        assert str(cut) in str(error.value)


def test_the_missing_end_of_a_tensor_is_named_with_its_bytes(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:-200])
    with pytest.raises(InputError, match=r"'output_norm.weight' needs bytes \d+ to \d+, .* truncated"):
        gguf.read(tmp_path / "cut.gguf")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file ends at 0 bytes"),
        (b"version https://git-lfs.github.com/spec/v1\n", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(30), "not a GGUF file"),
        (b"GGUF" + struct.pack("<I", 1) + bytes(30), "version 1 is not 2 or 3"),
        (b"GGUF" + struct.pack(">I", 3) + bytes(30), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "a length of"),
        (b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62), "a length of"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2) + b"\xff\xfe" + bytes(9), "not UTF-8"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 77), "value type 77"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 9) * 9, "nested"),
    ],
)
def test_what_is_no_whole_gguf_is_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.gguf"
    content = content.replace(struct.pack("<I", 9) * 9, (struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 9))
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        gguf.read(path)


def test_one_part_of_a_split_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="one part of 3"):
        gguf.read(write_gguf(tmp_path / "m.gguf", llama(**{"split.count": 3})))


def test_rows_that_are_no_whole_blocks_are_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", tensors={"token_embd.weight": ("Q4_1", (6, 48))})
    with pytest.raises(InputError, match="rows of 48 are not whole Q4_1 blocks of 32"):
        gguf.read(path)


def test_the_configuration_in_hugging_face_terms(tmp_path: Path) -> None:
    config = hf_config(gguf.read(write_gguf(tmp_path / "m.gguf")))
    assert config == {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "max_position_embeddings": 128,
        "vocab_size": 6,
        "rms_norm_eps": 1e-5,
        "rope_theta": 100000.0,
        "tie_word_embeddings": True,
        "dtype": "bfloat16",
    }


def test_an_architecture_that_is_not_converted_is_named_with_the_known_ones(tmp_path: Path) -> None:
    front = gguf.read(write_gguf(tmp_path / "m.gguf", llama(**{"general.architecture": "lama"})))
    with pytest.raises(InputError, match=r"'lama'(.|\n)*did you mean 'llama'"):
        hf_config(front)


def test_a_size_that_is_missing_is_named_by_its_key(tmp_path: Path) -> None:
    front = gguf.read(write_gguf(tmp_path / "m.gguf", llama(**{"llama.block_count": None})))
    with pytest.raises(InputError, match=r"llama\.block_count is None"):
        hf_config(front)


def test_tensor_names(tmp_path: Path) -> None:
    names = {t.name for t in hf_tensors(gguf.read(write_gguf(tmp_path / "m.gguf")))}
    assert {"model.embed_tokens.weight", "model.norm.weight", "model.layers.0.mlp.down_proj.weight"} <= names
    assert all(name.startswith("model.") for name in names)
    assert hf_name("blk.12.attn_k.bias") == "model.layers.12.self_attn.k_proj.bias"
    assert hf_name("blk.0.ffn_norm.weight") == "model.layers.0.post_attention_layernorm.weight"
    assert hf_name("blk.0.ffn_norm.weight", gemma=True) == "model.layers.0.pre_feedforward_layernorm.weight"
    assert hf_name("output.weight") == "lm_head.weight"
    assert hf_name("rope_freqs.weight") == "rope_freqs.weight"


def test_numbers_rounded_to_float32_come_back_as_they_were_written() -> None:
    for written in (1e-5, 1e-6, 0.1, 10000.0, 500000.0, 1.7015e38, 0.02, 3.0517578125e-05):
        stored = struct.unpack("<f", struct.pack("<f", written))[0]
        assert shortest(stored) == written
    for other in (0.1, 1e300, math.inf, 7, "7", None, True):
        assert shortest(other) == other, "what was no float32 stays"
    assert math.isnan(shortest(math.nan))
