"""Small models for real tests: a real model cut down to its first layers. Standard library only."""

from __future__ import annotations

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def cut_layers(folder: Path, out: Path, layers: int) -> Path:
    """Copy a Hugging Face folder with one safetensors file, keeping the first `layers` layers.

    Everything that is not a numbered layer (embeddings, norm, tokenizer) stays byte for byte, so the
    cut is a model of the same vocabulary and widths: text of it is poor, all mechanics are real.
    """
    out.mkdir(parents=True, exist_ok=True)
    for file in sorted(folder.iterdir()):
        if file.is_file() and file.suffix != ".safetensors" and file.name != "config.json":
            shutil.copyfile(file, out / file.name)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config["num_hidden_layers"] < layers:
        raise ValueError(f"{folder}: {config['num_hidden_layers']} layers, cannot keep {layers}")
    config["num_hidden_layers"] = layers
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    cut_file(folder / "model.safetensors", out / "model.safetensors", layers)
    return out


def cut_file(source: Path, target: Path, layers: int) -> None:
    """Copy the tensors of the first `layers` layers and of no layer, in the order of the file."""
    with source.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(size))
        metadata = header.pop("__metadata__", None)
        kept = {name: spec for name, spec in header.items() if number(name) < layers}
        ordered = sorted(kept.items(), key=lambda item: item[1]["data_offsets"][0])
        new: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
        position = 0
        for name, spec in ordered:
            start, end = spec["data_offsets"]
            new[name] = {**spec, "data_offsets": [position, position + end - start]}
            position += end - start
        text = json.dumps(new, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with target.open("wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            for _, spec in ordered:
                start, end = spec["data_offsets"]
                file.seek(8 + size + start)
                out.write(file.read(end - start))


def number(name: str) -> int:
    """The layer that a tensor belongs to, -1 for none."""
    found = LAYER.search(name)
    return int(found[1]) if found else -1
