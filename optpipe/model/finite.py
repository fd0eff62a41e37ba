"""Finds NaN and infinity in weights without converting them: the exponent's bits say it all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from optpipe.model.safetensors import Array, Header, map_tensor
from optpipe.records import TensorFact

CHUNK_BYTES = 1 << 19
"""Half a megabyte: the chunk and its masked copy stay in a core's second-level cache."""

EXPONENTS: dict[str, tuple[str, int]] = {
    "F64": ("<u8", 0x7FF0_0000_0000_0000),
    "F32": ("<u4", 0x7F80_0000),
    "C64": ("<u4", 0x7F80_0000),
    "F16": ("<u2", 0x7C00),
    "BF16": ("<u2", 0x7F80),
    "F8_E5M2": ("|u1", 0x7C),
    "F8_E4M3": ("|u1", 0x7F),
    "F8_E8M0": ("|u1", 0xFF),
    "F8_E4M3FNUZ": ("|u1", 0x80),
    "F8_E5M2FNUZ": ("|u1", 0x80),
}
"""Per dtype the unsigned view and the bits that are all set in what is not finite (E4M3: only in NaN)."""

FNUZ = ("F8_E4M3FNUZ", "F8_E5M2FNUZ")
"""Dtypes in which the code of a negative zero means NaN, and none an infinity. Floats of 4 and 6 bits have neither."""


def nonfinite(path: Path, header: Header) -> Iterator[tuple[TensorFact, tuple[int, ...], str]]:
    """(tensor, index, `NaN` or `inf`) for the first such value of each tensor of a file."""
    for fact in header.tensors:
        if fact.dtype not in EXPONENTS or fact.nbytes == 0:
            continue
        array = map_tensor(path, header, fact)
        found = first_nonfinite(array, fact.dtype)
        if found is not None:
            flat, word = found
            flat //= 2 if fact.dtype == "C64" else 1
            yield fact, tuple(int(k) for k in np.unravel_index(flat, fact.shape)), word


def first_nonfinite(array: Array, dtype: str) -> tuple[int, str] | None:
    """The flat index of the first value that is not finite, and which it is; None if all are."""
    kind, mask = EXPONENTS[dtype]
    values = array.reshape(-1).view(kind)
    size = CHUNK_BYTES // values.itemsize
    masked = np.empty(min(size, values.size), kind)
    bits = np.array(mask, kind)
    for start in range(0, values.size, size):
        chunk = values[start : start + size]
        part = masked[: chunk.size]
        if dtype in FNUZ:
            np.multiply(chunk == bits, bits, out=part)
        else:
            np.bitwise_and(chunk, bits, out=part)
        if part.max() == bits:
            at = int(np.argmax(part == bits))
            return start + at, word_for(int(chunk[at]), dtype)
    return None


def word_for(value: int, dtype: str) -> str:
    """`inf` where the mantissa is empty, else `NaN`; E4M3 and E8M0 have no infinity."""
    if dtype in (*FNUZ, "F8_E4M3", "F8_E8M0"):
        return "NaN"
    mask = EXPONENTS[dtype][1]
    mantissa = value & ((mask & -mask) - 1)
    return "NaN" if mantissa else "inf"
