"""Checkpoints that are wrong on purpose, made from good ones, for every check that must see them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from optpipe.model.safetensors import read_header

BF16_NAN = 0x7FC0


def unquantized_copy(base: Path, checkpoint: Path, out: Path) -> Path:
    """What a backend leaves that copies the weights: the checkpoint's configuration over the base's bf16."""
    shutil.copytree(checkpoint, out)
    for path in out.glob("*.safetensors"):
        path.unlink()
    for path in base.glob("*.safetensors"):
        shutil.copyfile(path, out / path.name)
    return out


def zeroed_scales(checkpoint: Path, out: Path, modules: str = "*") -> Path:
    """A checkpoint whose scales are all 0: it loads, and every quantized layer answers 0."""
    return edited(checkpoint, out, f"{modules}.weight_scale", lambda tensor: tensor.fill(0))


def nan_weight(folder: Path, out: Path, tensor: str) -> Path:
    """A model with one NaN in one bf16 tensor."""

    def plant(values: Any) -> None:
        values.reshape(-1)[0] = BF16_NAN

    return edited(folder, out, tensor, plant)


def enlarged_scales(folder: Path, out: Path, tensor: str = "*.weight_scale") -> Path:
    """A checkpoint whose matching bf16 tensors are 1.5 times too large: fluent at a glance, wrong."""

    def enlarge(values: Any) -> None:
        wide = (values.astype(np.uint32) << 16).view(np.float32) * np.float32(1.5)
        values[...] = (wide.view(np.uint32) >> 16).astype(np.uint16)

    return edited(folder, out, tensor, enlarge)


def edited(folder: Path, out: Path, pattern: str, change: Callable[[Any], None]) -> Path:
    """A copy of a folder with `change` done to the 16-bit tensors that match; none matching is an error."""
    shutil.copytree(folder, out)
    count = 0
    for path in sorted(out.glob("*.safetensors")):
        header = read_header(path)
        path.chmod(0o644)
        for fact in header.tensors:
            if fact.dtype == "BF16" and fnmatchcase(fact.name, pattern):
                begin = header.spans[fact.name][0]
                values = np.memmap(path, dtype="<u2", mode="r+", offset=begin, shape=fact.shape)
                change(values)
                values.flush()
                count += 1
    if not count:
        raise ValueError(f"{folder}: no BF16 tensor matches {pattern!r}")
    return out


def tensors_of(folder: Path) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """Name -> dtype, shape, bytes of every tensor of a folder."""
    facts = [fact for path in sorted(folder.glob("*.safetensors")) for fact in read_header(path).tensors]
    return {fact.name: (fact.dtype, fact.shape, fact.nbytes) for fact in facts}


def config_of(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / "config.json").read_text(encoding="utf-8")))
