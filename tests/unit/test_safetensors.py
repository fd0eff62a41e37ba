"""safetensors files are read as the reference library writes them, and anything else is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from optpipe.errors import InputError
from optpipe.model.safetensors import map_tensor, read_header
from tests.models import bf16, write_safetensors

ONE = {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}


def raw_file(path: Path, header: Any, data: bytes, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def test_reads_what_the_reference_library_writes(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    arrays = {
        "f32": np.arange(6, dtype=np.float32).reshape(2, 3),
        "i8": np.arange(-4, 4, dtype=np.int8),
        "empty": np.empty((0, 4), np.float16),
        "scalar": np.array(7, np.int64),
    }
    path = tmp_path / "é a.safetensors"
    reference.save_file(arrays, path, metadata={"format": "pt"})
    header = read_header(path)
    assert header.metadata == {"format": "pt"}
    assert {t.name: t.shape for t in header.tensors} == {k: v.shape for k, v in arrays.items()}
    for fact in header.tensors:
        np.testing.assert_array_equal(map_tensor(path, header, fact), arrays[fact.name])


def test_the_reference_library_reads_what_the_test_writer_writes(tmp_path: Path) -> None:
    reference = pytest.importorskip("safetensors.numpy")
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_safetensors(tmp_path / "m.safetensors", {"x": values})
    np.testing.assert_array_equal(reference.load_file(tmp_path / "m.safetensors")["x"], values)


def test_bf16_comes_as_16_bits_and_widens_exactly(tmp_path: Path) -> None:
    values = np.array([0.0, 1.0, -2.5, 3.0e38], np.float32)
    path = write_safetensors(tmp_path / "m.safetensors", {"w": bf16(values)})
    header = read_header(path)
    raw = map_tensor(path, header, header.tensors[0])
    assert raw.dtype == np.uint16
    np.testing.assert_allclose((raw.astype(np.uint32) << 16).view(np.float32), values, rtol=2**-8)


DAMAGED = {
    "nothing in it": (b"", "0 bytes"),
    "LFS pointer": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
        "LFS pointer",
    ),
    "a web page": (b"<!DOCTYPE html><html>no such model</html>", "is text"),
    "absurd header size": (
        (1 << 60).to_bytes(8, "little") + b"{}" * 40,
        "header of 1152921504606846976 bytes",
    ),
    "cut inside the header": ((500).to_bytes(8, "little") + b'{"a":', "truncated"),
    "a header that is no JSON": ((4).to_bytes(8, "little") + b'{"a"', "not JSON"),
    "a header that is a list": ((2).to_bytes(8, "little") + b"[]", "not a mapping"),
}


@pytest.mark.parametrize("kind", DAMAGED)
def test_a_file_that_is_none_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    content, expected = DAMAGED[kind]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(InputError, match=expected) as caught:
        read_header(path)
    assert caught.value.place == str(path) and caught.value.hint


def entry(**changes: Any) -> dict[str, Any]:
    return {"a": ONE["a"] | changes}


WRONG = {
    "truncated data": (ONE, b"\0" * 7, "1 bytes are missing"),
    "more data than tensors": (ONE, b"\0" * 9, "1 bytes after the last tensor"),
    "unknown dtype": (entry(dtype="F7"), b"\0" * 8, "'F7' is not known"),
    "negative size": (entry(shape=[-2]), b"\0" * 8, "not a list of sizes"),
    "boolean size": (entry(shape=[True, 2]), b"\0" * 8, "not a list of sizes"),
    "size against shape": (entry(shape=[3]), b"\0" * 8, "8 bytes for F32 .3.; 12 are expected"),
    "offsets backwards": (entry(data_offsets=[8, 0]), b"\0" * 8, "not .begin, end."),
    "an entry without offsets": ({"a": {"dtype": "F32"}}, b"", "has no dtype, shape and data_offsets"),
    "a hole": (entry(data_offsets=[4, 12]), b"\0" * 12, "leaves a hole"),
    "overlap": (
        ONE | {"b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}},
        b"\0" * 12,
        "overlaps",
    ),
    "one name twice": (
        b'{"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"I8","shape":[1],"data_offsets":[0,1]}}',
        b"\0",
        "'a' twice",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_header_names_the_tensor_and_the_value(tmp_path: Path, kind: str) -> None:
    header, data, expected = WRONG[kind]
    path = raw_file(tmp_path / "model.safetensors", header, data)
    with pytest.raises(InputError, match=expected) as caught:
        read_header(path)
    assert str(path) in str(caught.value.place) and caught.value.hint


def test_a_header_whose_length_looks_like_text_is_read(tmp_path: Path) -> None:
    text = json.dumps(ONE).encode()
    path = raw_file(tmp_path / "m.safetensors", text + b" " * (0x3C20 - len(text)), b"\0" * 8)
    assert [t.name for t in read_header(path).tensors] == ["a"]
