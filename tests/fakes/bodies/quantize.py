"""`quantize`: rounds to nearest, whatever the method, and writes a compressed-tensors checkpoint.

Orders: `spoil` rounds other weights, `leave` forgets one layer.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes import orders, tiny
from tests.models import Tensors, write_json, write_safetensors

REVISION = 1
FORGOTTEN = "layers.1.self_attn.k_proj"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json")
BITS = {**dict.fromkeys(("int8", "smoothquant", "fp8"), (8, 0)), "nvfp4": (4, 32)}
"""Bits and group of methods that say them by their name; a scale of NVFP4 has one byte, the fake's have two."""
FLOATS = {"fp8": ("channel", "token"), "nvfp4": ("tensor_group", "tensor_group")}
"""What a checkpoint's configuration says of weights and activations, whose numbers are the fake's own."""
NOTE = "the calibration text reached all of the fake's layers"


def run(options: Json, work: Work) -> Json:
    word = orders.obey("quantize", options["method"], work.folder.name.split(".")[0])
    base = work.inputs["model"]
    bits, group = BITS.get(options["method"], (4, options.get("group_size", 0)))
    tensors: Tensors = {}
    layers = []
    for number, (name, array) in enumerate(tiny.read(base / "model.safetensors").items()):
        module = name.removesuffix(".weight")
        if array.ndim == 2 and "_proj" in module and not (word == "leave" and module.endswith(FORGOTTEN)):
            values = 3 * tiny.floats(array)[::-1] if word == "spoil" else tiny.floats(array)
            tensors |= tiny.quantized(module, values, bits, group)
            layers.append(module)
        else:
            tensors[name] = array
        work.progress(number + 1, 100, "layers")
    save(base, work.out, tensors, scheme_of(options["method"], bits, group))
    kind = "pack-quantized" if bits == 4 else "int-quantized"
    notes = [NOTE] if options["method"] == "gptq" else []
    return {"method": options["method"], "format": kind, "layers": layers, "notes": notes}


def scheme_of(method: str, bits: int, group: int) -> Json:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "group_size": group or None}
    one: Json = {"weights": weights}
    if method in FLOATS:
        own, inputs = FLOATS[method]
        one = {"weights": weights | {"type": "float", "strategy": own}, "input_activations": {"strategy": inputs}}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": one}}


def save(base: Path, out: Path, tensors: Tensors, scheme: Json) -> None:
    for name in TOKENIZER:
        shutil.copy(base / name, out / name)
    config = json.loads((base / "config.json").read_text()) | {"quantization_config": scheme}
    write_json(out / "config.json", config)
    write_safetensors(out / "model.safetensors", tensors)
