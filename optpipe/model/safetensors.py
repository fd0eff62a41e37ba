"""Reads safetensors files: the header checked in full, the tensors as memory-mapped numpy arrays.

    8 bytes   N, little endian
    N bytes   JSON: {name: {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}}
    the rest  tensor data, without holes

A file that is anything else raises InputError with what was found, what was expected and what to do.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from optpipe.errors import InputError
from optpipe.records import TensorFact

Array = npt.NDArray[Any]

BITS = {
    **{"F64": 64, "F32": 32, "F16": 16, "BF16": 16, "C64": 64},
    **{"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8},
    **{"F6_E2M3": 6, "F6_E3M2": 6, "F4": 4},
    **{"I64": 64, "I32": 32, "I16": 16, "I8": 8, "U64": 64, "U32": 32, "U16": 16, "U8": 8, "BOOL": 8},
}
"""Bits of one element of each safetensors dtype."""

RAW: dict[str, str] = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "C64": "<c8"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1"},
    **{"U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1"},
}
"""The numpy dtype of the mapped array; what numpy has no type for comes as raw bytes (BF16: 16 bits)."""

MAX_HEADER = 100_000_000
LFS_POINTER = b"version https://git-lfs"
FETCH = "fetch the file again and compare its size with the source's"


@dataclass(frozen=True)
class Header:
    """A checked header: tensors in file order, and where each one's bytes lie in the file."""

    place: str
    tensors: tuple[TensorFact, ...]
    spans: dict[str, tuple[int, int]]
    metadata: dict[str, str]


def read_header(path: Path) -> Header:
    """The header of a file, checked against the file's size; no tensor data is read."""
    try:
        with path.open("rb") as file:
            size = path.stat().st_size
            length = header_length(file.read(64), str(path), size)
            file.seek(8)
            text = file.read(length)
    except OSError as error:
        fail(str(path), f"cannot be read: {error.strerror}", "check that it is there and who may read it")
    return parse_header(text, path.name, str(path), size)


def header_length(start: bytes, place: str, size: int) -> int:
    """N from the first bytes of a file of `size` bytes; also what a remote reader asks first."""
    if start.startswith(LFS_POINTER):
        fail(place, "this is a Git LFS pointer, not the weights", "run `git lfs pull` in the model's folder")
    if len(start) < 8:
        fail(place, f"{size} bytes; a safetensors file has at least 10", FETCH)
    if all(9 <= byte < 127 for byte in start[:8]):
        fail(place, f"starts with {start[:24]!r}, which is text, not safetensors", FETCH)
    length = int.from_bytes(start[:8], "little")
    if not 2 <= length <= MAX_HEADER:
        fail(
            place,
            f"names a header of {length} bytes; 2 to {MAX_HEADER} is expected",
            "this is no safetensors file, or its start is damaged: " + FETCH,
        )
    if 8 + length > size:
        fail(place, f"truncated: {size} bytes, the header alone ends at {8 + length}", FETCH)
    return length


def parse_header(text: bytes, file: str, place: str, size: int) -> Header:
    """The header from its JSON; `file` is the name in each fact, `size` that of the whole file."""
    entries = header_json(text, place)
    metadata = entries.pop("__metadata__", {})
    start = 8 + len(text)
    tensors, spans = [], {}
    for name, entry in entries.items():
        fact, begin, end = tensor_entry(name, entry, file, place)
        tensors.append(fact)
        spans[name] = (start + begin, start + end)
    check_spans(spans, start, size, place)
    return Header(place, tuple(tensors), spans, metadata if isinstance(metadata, dict) else {})


def header_json(text: bytes, place: str) -> dict[str, Any]:
    try:
        entries = json.loads(text, object_pairs_hook=lambda pairs: unique(pairs, place))
    except (ValueError, RecursionError) as error:  # not UTF-8, not JSON, a number of 5000 digits
        fail(place, f"the header is not JSON: {error}", FETCH)
    if not isinstance(entries, dict):
        fail(place, f"the header is a {type(entries).__name__}, not a mapping of tensors", FETCH)
    return entries


def unique(pairs: list[tuple[str, Any]], place: str) -> dict[str, Any]:
    """A JSON object whose keys stand once: of two tensors of one name the last would win in silence."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        fail(place, f"the header names {twice!r} twice", "write the file again with a safetensors library")
    return found


def tensor_entry(name: str, entry: Any, file: str, place: str) -> tuple[TensorFact, int, int]:
    where = f"{place}: {name}"
    if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
        fail(where, f"{entry!r:.80} has no dtype, shape and data_offsets", FETCH)
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in BITS:
        fail(where, f"dtype {dtype!r:.40} is not known", f"known: {', '.join(BITS)}")
    if not whole_numbers(shape):
        fail(where, f"shape {shape!r:.80} is not a list of sizes", FETCH)
    if not whole_numbers(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        fail(where, f"data_offsets {offsets!r:.80} are not [begin, end]", FETCH)
    bits = prod(shape) * BITS[dtype]
    begin, end = offsets
    if bits != 8 * (end - begin):
        fail(where, f"{end - begin} bytes for {dtype} {shape}; {bits / 8:g} are expected", FETCH)
    return TensorFact(name, dtype, tuple(shape), end - begin, file), begin, end


def whole_numbers(value: Any) -> bool:
    """A list of sizes: no booleans, no negative or absurd ones."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < 1 << 62 for item in value)


def check_spans(spans: dict[str, tuple[int, int]], start: int, size: int, place: str) -> None:
    """Tensor data must cover the file from the header to the end: no overlap, no hole, nothing missing."""
    ordered = sorted(spans.items(), key=lambda item: item[1])
    if ordered and ordered[-1][1][1] > size:
        name, (_, end) = ordered[-1]
        fail(
            place,
            f"truncated: {size} bytes, but {name} ends at {end} ({end - size} bytes are missing)",
            FETCH,
        )
    last = ordered[-1][1][1] if ordered else start
    if last < size:
        fail(place, f"{size - last} bytes after the last tensor belong to none", FETCH)
    edges = [("the header", (0, start)), *ordered]
    for (before, (_, end)), (name, (begin, _)) in pairwise(edges):
        if begin != end:
            kind = "overlaps" if begin < end else "leaves a hole after"
            fail(
                f"{place}: {name}",
                f"begins at {begin}, which {kind} {before} (ends at {end})",
                "write the file again with a safetensors library",
            )


def fail(place: str, message: str, hint: str) -> NoReturn:
    raise InputError(message, place=place, hint=hint)


# ---------------------------------------------------------------- tensors


def map_tensor(path: Path, header: Header, fact: TensorFact) -> Array:
    """A read-only memory-mapped array in its shape; BF16 as uint16, 8-bit and smaller floats as raw bytes."""
    begin, end = header.spans[fact.name]
    kind = np.dtype(RAW.get(fact.dtype, "|u1"))
    shape = fact.shape if BITS[fact.dtype] >= 8 else (end - begin,)
    if begin == end:
        return np.empty(shape, kind)
    return np.memmap(path, dtype=kind, mode="r", offset=begin, shape=shape)
