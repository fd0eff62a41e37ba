"""Reads the front of a GGUF file: metadata and tensor descriptions, no weights. Standard library only.

Layout (GGUF 2 and 3, little endian): magic, version, counts, key-value pairs, tensor infos, padding, data.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from optpipe.errors import InputError
from optpipe.records import TensorFact

MAGIC = b"GGUF"
MAX_LENGTH = 1 << 30
MAX_NESTING = 4

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9

TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17),
}  # fmt: skip
"""GGML type number -> name, elements per block, bytes per block."""


def bits_of(dtype: str) -> int:
    """Bits of one weight by a block type's name: `Q4_1` -> 4, `IQ2_XS` -> 2, `MXFP4` -> 4."""
    return int(next(letter for letter in dtype if letter.isdigit()))


FLOATS = ("F64", "F32", "F16", "BF16")


@dataclass(frozen=True)
class Gguf:
    """The front of one file; tensors keep GGUF's names, shapes are in row-major (PyTorch) order."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[TensorFact, ...]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))

    def get(self, key: str) -> Any:
        """A value of the architecture's own section, e.g. `get("block_count")`, or None."""
        return self.metadata.get(f"{self.architecture}.{key}")

    @property
    def quantized(self) -> str | None:
        """The block type that most weights have, e.g. `Q4_1`; None where it is a plain float."""
        elements: dict[str, int] = {}
        for tensor in self.tensors:
            elements[tensor.dtype] = elements.get(tensor.dtype, 0) + math.prod(tensor.shape)
        most = max(elements, key=lambda dtype: elements[dtype], default="F32")
        return None if most in FLOATS else most


class _Front:
    """A cursor over the file that names the byte at which something is wrong."""

    def __init__(self, file: BinaryIO, path: Path, size: int) -> None:
        self.file, self.path, self.size = file, path, size

    def fail(self, message: str, at: int | None = None) -> InputError:
        place = f"{self.path}: byte {self.file.tell() if at is None else at}"
        return InputError(message, place=place, hint="download the file again, or compare its SHA-256")

    def take(self, count: int) -> bytes:
        at = self.file.tell()
        data = self.file.read(count) if count <= self.size - at else b""
        if len(data) != count:
            raise self.fail(f"the file ends at {self.size} bytes where {count} more were expected", at)
        return data

    def number(self, code: str) -> Any:
        return struct.unpack("<" + code, self.take(struct.calcsize("<" + code)))[0]

    def length(self) -> int:
        value = int(self.number("Q"))
        if value > min(MAX_LENGTH, self.size):
            raise self.fail(f"a length of {value} in a file of {self.size} bytes", self.file.tell() - 8)
        return value

    def text(self) -> str:
        at = self.file.tell()
        raw = self.take(self.length())
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"a string that is not UTF-8: {raw[:40]!r}", at) from error

    def value(self, kind: int, depth: int = 0) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            return self.array(depth + 1)
        if kind not in SCALARS:
            raise self.fail(f"value type {kind} is none of GGUF's 0 to 12", self.file.tell() - 4)
        return self.number(SCALARS[kind])

    def array(self, depth: int) -> list[Any]:
        kind, count = int(self.number("I")), self.length()
        if depth > MAX_NESTING:
            raise self.fail(f"arrays nested deeper than {MAX_NESTING}")
        if kind in SCALARS:
            code = f"<{count}{SCALARS[kind]}"
            return list(struct.unpack(code, self.take(struct.calcsize(code))))
        return [self.value(kind, depth) for _ in range(count)]


def read(path: Path) -> Gguf:
    """The metadata and tensor list of a GGUF file; what is not one, or is cut short, is an InputError."""
    size = path.stat().st_size
    with path.open("rb") as file:
        front = _Front(file, path, size)
        version = _version(front)
        tensors, pairs = front.length(), front.length()
        metadata: dict[str, Any] = {}
        for _ in range(pairs):
            key = front.text()
            metadata[key] = front.value(int(front.number("I")))
        _whole(front, metadata)
        infos = [_info(front) for _ in range(tensors)]
        start = _aligned(front, file.tell(), metadata)
        facts = tuple(_fact(front, info, start) for info in infos)
    return Gguf(path, version, metadata, facts)


def _version(front: _Front) -> int:
    magic = front.take(4)
    if magic != MAGIC:
        raise InputError(
            f"starts with {magic!r}, not with {MAGIC!r}: not a GGUF file",
            place=str(front.path),
            hint="a Git LFS pointer starts with b'vers': run `git lfs pull`" if magic == b"vers" else "fetch it again",
        )
    version = int(front.number("I"))
    if version not in (2, 3):
        raise front.fail(f"GGUF version {version} is not 2 or 3 (big-endian files are not read)", 4)
    return version


def _whole(front: _Front, metadata: dict[str, Any]) -> None:
    parts = metadata.get("split.count", 1)
    if isinstance(parts, int) and parts > 1:
        raise InputError(
            f"one part of {parts} of a split model",
            place=str(front.path),
            hint="merge the parts first (llama-gguf-split --merge)",
        )


def _info(front: _Front) -> tuple[str, tuple[int, ...], int, int]:
    """Name, shape in row-major order, type number, offset from the start of the data."""
    name, dimensions = front.text(), int(front.number("I"))
    if not 1 <= dimensions <= 8:
        raise front.fail(f"tensor {name!r} has {dimensions} dimensions, expected 1 to 8")
    shape = tuple(int(front.number("Q")) for _ in range(dimensions))
    return name, shape[::-1], int(front.number("I")), int(front.number("Q"))


def _aligned(front: _Front, position: int, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment < 1:
        raise front.fail(f"general.alignment is {alignment!r}, expected a positive number")
    return -(-position // alignment) * alignment


def _fact(front: _Front, info: tuple[str, tuple[int, ...], int, int], start: int) -> TensorFact:
    name, shape, number, offset = info
    if number not in TYPES:
        raise front.fail(f"tensor {name!r} has the unknown GGML type {number}")
    dtype, block, width = TYPES[number]
    if shape[-1] % block:
        raise front.fail(f"tensor {name!r}: rows of {shape[-1]} are not whole {dtype} blocks of {block}")
    nbytes = math.prod(shape) // block * width
    if start + offset + nbytes > front.size:
        raise front.fail(
            f"tensor {name!r} needs bytes {start + offset} to {start + offset + nbytes}, "
            f"but the file ends at {front.size}: it is truncated",
            front.size,
        )
    return TensorFact(name, dtype, shape, nbytes, front.path.name)
