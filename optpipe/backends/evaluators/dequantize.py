"""Loads checkpoints that transformers does not read here: GPTQ's and AWQ's own formats, ModelOpt's.

Packed weights are unpacked to the model's dtype once. Where activations are quantized too, with fixed scales,
codes are multiplied as codes and the scales applied to the product, as the engines do it. Formats as the libraries
that write them read them: GPTQModel 7.7, autoawq 0.2.9, ModelOpt 0.47.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from optpipe.model.loading import whole
from optpipe.worker import Failure

FORMATS = ("gptq", "awq", "modelopt")
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in an int32 of AWQ's GEMM layout the eight columns lie."""
FP8_MAX, INT8_MIN, INT8_MAX = 448.0, -128, 127
PARTS = ("qweight", "qzeros", "scales", "g_idx", "weight", "weight_scale", "input_scale", "pre_quant_scale", "bias")

Tensors = dict[str, Any]


def stored(folder: Path) -> dict[str, Any] | None:
    """The quantization_config of a checkpoint in one of FORMATS, else None."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    found = config.get("quantization_config") or {}
    return found if found.get("quant_method") in FORMATS else None


def load(folder: Path, dtype: Any, config: Mapping[str, Any], device: str = "cpu") -> Any:
    """The model on `device`, to evaluate, with plain linear layers in `dtype`; Failure where tensors are missing."""
    import transformers

    plain = transformers.AutoConfig.from_pretrained(folder)
    del plain.quantization_config
    modules, state = read(folder)
    static = {}
    for name, parts in modules.items():
        state[f"{name}.weight"] = unpacked(name, parts, config, dtype)
        if "bias" in parts:
            state[f"{name}.bias"] = parts["bias"]
        if "input_scale" in parts or "pre_quant_scale" in parts:
            static[name] = parts
    kind = transformers.MODEL_FOR_CAUSAL_LM_MAPPING[type(plain)]
    model, info = kind.from_pretrained(
        None, config=plain, state_dict=state, dtype=dtype, output_loading_info=True
    )
    whole((*info["missing_keys"], *(str(key[0]) for key in info["mismatched_keys"])))
    model.to(device)
    for name, parts in static.items():
        module = model.get_submodule(name)
        module.forward = layer(module, {part: tensor.to(device) for part, tensor in parts.items()}, dtype)
    return model.eval()


def read(folder: Path) -> tuple[dict[str, Tensors], Tensors]:
    """{module: {part: tensor}} of what is quantized, and all other tensors by their names."""
    from safetensors.torch import load_file

    tensors: Tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(path)
    names = {name.rpartition(".")[0] for name in tensors if name.endswith((".scales", ".weight_scale"))}
    modules: dict[str, Tensors] = {name: {} for name in names}
    rest: Tensors = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        if module in names and part in PARTS:
            modules[module][part] = tensor
        else:
            rest[name] = tensor
    return modules, rest


def unpacked(name: str, parts: Tensors, config: Mapping[str, Any], dtype: Any) -> Any:
    """A module's weight [out, in]: plain values, or with fixed activation scales the codes' values in `dtype`."""
    method = config["quant_method"]
    if method == "modelopt":
        return modelopt(parts, dtype)
    if method == "gptq":
        return gptq(parts, config, dtype)
    if config.get("version", "gemm") != "gemm":
        raise Failure(f"{name}: AWQ's {config['version']} layout is not known", hint="version: gemm")
    return awq(parts, dtype)


def fields(words: Any, bits: int) -> Any:
    """int32 words to their fields of `bits`, lowest first: [..., n] -> [..., n * 32 / bits]."""
    import torch

    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values = torch.bitwise_right_shift(words[..., None], shifts) & ((1 << bits) - 1)
    return values.flatten(-2)


def gptq(parts: Tensors, config: Mapping[str, Any], dtype: Any) -> Any:
    """qweight int32 [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups, out], g_idx [in].

    The format `gptq` stores zero points less one in each field (with borrows), `gptq_v2` as they are.
    """
    bits = int(config["bits"])
    if bits not in (2, 4, 8):
        raise Failure(f"GPTQ's own format in {bits} bits is not read here", hint="2, 4 or 8 bits")
    zeros = parts["qzeros"]
    if config.get("checkpoint_format", "gptq") == "gptq":
        ones = sum(1 << shift for shift in range(0, 32, bits))
        zeros = zeros + (ones - (1 << 32) if ones >= 1 << 31 else ones)
    codes = fields(parts["qweight"].t(), bits)
    group = parts["g_idx"].long() if "g_idx" in parts else even_groups(codes.shape[1], len(zeros))
    offsets, scales = fields(zeros, bits), parts["scales"]
    return ((codes - offsets[group].t()).float() * scales[group].t().float()).to(dtype)


def even_groups(inputs: int, groups: int) -> Any:
    import torch

    return torch.arange(inputs) // (inputs // groups)


def awq(parts: Tensors, dtype: Any) -> Any:
    """qweight int32 [in, out / 8], qzeros [groups, out / 8], scales [groups, out]; columns in AWQ_ORDER."""
    import torch

    order = torch.tensor(AWQ_ORDER)

    def columns(words: Any) -> Any:
        return fields(words, 4).unflatten(-1, (-1, 8))[..., order].flatten(-2)

    codes, zeros = columns(parts["qweight"]), columns(parts["qzeros"])
    each = codes.shape[0] // zeros.shape[0]
    spread = zeros.repeat_interleave(each, 0), parts["scales"].repeat_interleave(each, 0)
    return ((codes - spread[0]).float() * spread[1].float()).t().contiguous().to(dtype)


def modelopt(parts: Tensors, dtype: Any) -> Any:
    """INT4: uint8 [out / 2, in], two output channels a byte, scales [out, groups]. INT8 and FP8 stay codes where
    activations have a scale, for `layer` to apply both."""
    import torch

    weight, scale = parts["weight"], parts["weight_scale"].float()
    if weight.dtype == torch.uint8:
        both = torch.stack([weight & 15, weight >> 4], 1).flatten(0, 1).to(torch.int8)
        codes = both - 16 * (both > 7)
        return (codes.float() * scale.repeat_interleave(weight.shape[1] // scale.shape[1], 1)).to(dtype)
    if "input_scale" in parts:
        return weight.to(dtype)
    return (weight.float() * (scale[:, None] if scale.ndim else scale)).to(dtype)


def layer(module: Any, parts: Tensors, dtype: Any) -> Callable[[Any], Any]:
    """The forward pass of a linear layer whose input is smoothed, and quantized with one fixed scale."""
    import torch

    smooth = parts["pre_quant_scale"].to(dtype) if "pre_quant_scale" in parts else None
    given = parts["input_scale"].float() if "input_scale" in parts else None
    product = None if given is None else given * parts["weight_scale"].float()
    bias = None if module.bias is None else module.bias.data.float()
    weight = parts["weight"].t()

    def multiplied(rows: Any) -> Any:
        scaled = rows.reshape(-1, rows.shape[-1]).float() / given  # no div_: other layers read float32 rows too
        if weight.dtype == torch.int8:
            return torch._int_mm(scaled.round_().clamp_(INT8_MIN, INT8_MAX).to(torch.int8), weight)
        codes = scaled.clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)
        return torch.nn.functional.linear(codes.to(dtype), module.weight)

    def forward(entry: Any) -> Any:
        rows = entry if smooth is None else entry * smooth
        if product is None:
            return torch.nn.functional.linear(rows, module.weight, module.bias)
        out = multiplied(rows).float().mul_(product)
        if bias is not None:
            out += bias
        return out.to(dtype).reshape(*entry.shape[:-1], -1)

    return forward
