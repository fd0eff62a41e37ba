"""The 4-bit codes of checkpoints in compressed-tensors' and GPTQ's formats, as the same array."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.document import Json
from optpipe.model.folder import headers, weight_files

Codes = Any


def codes_of(folder: Path) -> dict[str, Codes]:
    """{module: uint8 [out, in]}, 8 standing for 0. Both formats pack along the inputs, low bits first."""
    found: dict[str, Codes] = {}
    for file, header in headers(weight_files(folder)).items():
        data = np.memmap(folder / file, dtype="uint8", mode="r")
        for fact in header.tensors:
            module, _, part = fact.name.rpartition(".")
            if part not in ("weight_packed", "qweight"):
                continue
            begin, end = header.spans[fact.name]
            words = data[begin:end].view("uint32").reshape(fact.shape)
            words = words if part == "weight_packed" else words.T
            fields = (words[..., None] >> np.arange(0, 32, 4, dtype="uint32")) & 15
            found[module] = fields.astype("uint8").reshape(len(words), -1)
    return found


def same_codes(one: Path, other: Path) -> Json:
    """Shares of equal codes: of all, of the first layer's q_proj, and of each kind of module in each layer."""
    mine, theirs = codes_of(one), codes_of(other)
    assert mine and mine.keys() == theirs.keys(), "both quantize the same modules"
    equal = {name: int((mine[name] == theirs[name]).sum()) for name in mine}
    shares = {name: round(equal[name] / mine[name].size, 4) for name in sorted(mine)}
    first = next(name for name in shares if ".layers.0." in name and name.endswith("q_proj"))
    total = sum(codes.size for codes in mine.values())
    return {"all": sum(equal.values()) / total, "first": shares[first], "modules": shares}
