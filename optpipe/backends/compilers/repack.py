"""compressed-tensors W4A16 to GPTQ's own format without changing a value: the same codes, packed the other way.

Both pack eight codes of 4 bits, offset by 8, along a layer's inputs, and zero points along its outputs; GPTQ has the
axes the other way round and stores each zero point less one. Dequantized, both are (code - zero) * scale.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.records import Json

BITS, PER_WORD = 4, 8
PARTS = ("weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx")


def to_gptq(model: Path, stored: Json, out: Path) -> Path:
    """The checkpoint in GPTQ's format at `out`. Failure for another scheme than plain W4A16."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    group, symmetric = layout(stored)
    out.mkdir(parents=True)
    for path in sorted(model.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and path.name != "model.safetensors.index.json":
            shutil.copyfile(path, out / path.name)
    tensors: dict[str, Any] = {}
    for path in sorted(model.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    modules = sorted(name.removesuffix(".weight_packed") for name in tensors if name.endswith(".weight_packed"))
    for module in modules:
        taken = {part: tensors.pop(f"{module}.{part}", None) for part in PARTS}
        tensors |= {f"{module}.{name}": value for name, value in repacked(taken, module).items()}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    config["quantization_config"] = {
        "quant_method": "gptq",
        "bits": BITS,
        "group_size": group,
        "sym": symmetric,
        "desc_act": False,
        "checkpoint_format": "gptq",
    }
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    return out


def layout(stored: Json) -> tuple[int, bool]:
    """(group size, symmetric) of a checkpoint's one scheme."""
    groups = list((stored.get("config_groups") or {}).values())
    weights = groups[0]["weights"] if len(groups) == 1 else {}
    plain = weights.get("num_bits") == BITS and weights.get("type") == "int" and not groups[0].get("input_activations")
    if stored.get("format") != "pack-quantized" or not plain or not weights.get("group_size"):
        found = f"{stored.get('format')} of {len(groups)} schemes, {weights.get('num_bits')} bits"
        hint = "the builder reads 4-bit weights in groups, nothing else"
        raise Failure(f"not W4A16 in groups: {found}", hint=hint)
    return int(weights["group_size"]), bool(weights.get("symmetric", True))


def repacked(parts: dict[str, Any], module: str) -> dict[str, Any]:
    """qweight [in / 8, out], qzeros [groups, out / 8], scales [groups, out], g_idx [in] of one layer."""
    import torch

    if parts["weight_g_idx"] is not None:
        raise Failure(f"{module} orders its groups by activation", hint="quantize without act_order: group")
    rows, columns = (int(size) for size in parts["weight_shape"])
    if rows % PER_WORD or columns % PER_WORD:
        raise Failure(f"{module} is {rows} x {columns}: no multiple of {PER_WORD}, so its words cannot be repacked")
    scales = parts["weight_scale"]
    groups = scales.shape[1]
    zeros = torch.full((groups, rows), PER_WORD, dtype=torch.int32)
    if parts["weight_zero_point"] is not None:
        zeros = unpacked(parts["weight_zero_point"].t())
    return {
        "qweight": parts["weight_packed"].t().contiguous(),
        "qzeros": packed((zeros - 1) & (2**BITS - 1)),
        "scales": scales.t().contiguous(),
        "g_idx": torch.arange(columns, dtype=torch.int32) // (columns // groups),
    }


def unpacked(words: Any) -> Any:
    """int32 words [n, m] to their eight codes each, the lowest bits first: int32 [n, 8 m]."""
    import torch

    shifts = torch.arange(0, 32, BITS, dtype=torch.int32)
    codes = (words.unsqueeze(-1) >> shifts) & (2**BITS - 1)
    return codes.reshape(words.shape[0], -1)


def packed(codes: Any) -> Any:
    """Codes [n, m] to int32 words [n, m / 8], the lowest bits first."""
    import torch

    shifts = torch.arange(0, 32, BITS, dtype=torch.int64)
    grouped = codes.to(torch.int64).reshape(codes.shape[0], -1, PER_WORD)
    words = (grouped << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).to(torch.int32).contiguous()
