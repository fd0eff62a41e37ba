"""transformers' forward pass over a base or a quantized checkpoint, fast on one thread.

What a quantized linear layer means is computed as the engines compute it: INT8 and FP8 activations get one
float32 scale per token, codes are multiplied as codes, scales are applied to the product. Weight-only layers
are decompressed once. Any other scheme runs as compressed-tensors itself simulates it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.backends.evaluators import dequantize
from optpipe.model import loading

if TYPE_CHECKING:
    from collections.abc import Callable

INT8_MAX = 127.0
FP8_MAX = 448.0
FEWEST_ROWS = 17
"""On a GPU, torch's product of int8 matrices takes no fewer rows."""


def device() -> str:
    """Where models are scored: `cuda` where the job was given a GPU, else `cpu`."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def load(folder: Path, dtype: Any, device: str = "cpu") -> Any:
    """The model in evaluation mode on `device`, its quantized layers replaced by what computes them."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    if found := dequantize.stored(folder):
        return dequantize.load(folder, dtype, found, device)
    model = loading.load(folder, dtype, apart=loading.quantized_by_expert(folder)).to(device)
    hook = getattr(model, "ct_decompress_hook", None)
    if hook is None:
        return model
    from compressed_tensors.compressors.base import decompress_module

    hook.remove()
    memory = Memory()
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is None:
            continue
        kind = dynamic(scheme)
        if kind is not None:
            module.forward = KINDS[kind](module, memory, dtype)
            continue
        decompress_module(module)
        module.weight.data = module.weight.data.to(dtype)
        if scheme.input_activations is None and scheme.output_activations is None:
            del module.forward
    return model


def vocabulary(model: Any) -> int:
    return int(model.get_output_embeddings().weight.shape[0])


def logits(model: Any, ids: Any) -> Any:
    """[batch, L, vocabulary], in the model's own dtype and on its device, as `ids` are."""
    return model(input_ids=ids, use_cache=False).logits


def dynamic(scheme: Any) -> str | None:
    """`int` or `float` where weights have 8 bits per channel and activations 8 bits per token."""
    weights, inputs = scheme.weights, scheme.input_activations
    if weights is None or inputs is None or scheme.output_activations is not None:
        return None
    plain = inputs.dynamic is True and inputs.strategy == "token" and inputs.symmetric
    plain = plain and weights.strategy == "channel" and weights.symmetric
    eight = weights.num_bits == inputs.num_bits == 8 and weights.type == inputs.type
    return str(weights.type) if plain and eight else None


class Memory:
    """The last quantized input: q, k, v and gate, up are fed the same tensor one after another."""

    def __init__(self) -> None:
        self.entry: Any = None
        self.codes: Any = None

    def of(self, entry: Any, make: Callable[[Any], tuple[Any, Any]]) -> tuple[Any, Any]:
        if self.entry is not entry:
            self.entry, self.codes = entry, make(entry.reshape(-1, entry.shape[-1]))
        codes: tuple[Any, Any] = self.codes
        return codes


def int8_product(rows: Any, weight: Any, fewest: int) -> Any:
    """int8 [n, in] times int8 [in, out] in int32; fewer rows than `fewest` are filled up with zeros."""
    import torch

    if len(rows) < fewest:
        filled = torch.nn.functional.pad(rows, (0, 0, 0, fewest - len(rows)))
        return torch._int_mm(filled, weight)[: len(rows)]
    return torch._int_mm(rows, weight)


def int8_linear(module: Any, memory: Memory, dtype: Any) -> Callable[[Any], Any]:
    """int8 codes times int8 codes in int32, then the token's and the channel's scale in float32."""
    import torch

    weight = module.weight.data.t()
    scale = module.weight_scale.data.float().reshape(1, -1)
    bias = None if module.bias is None else module.bias.data.float()

    def codes(rows: Any) -> tuple[Any, Any]:
        values = rows.float()
        largest = values.abs().amax(-1, keepdim=True).clamp_(min=1e-10)
        return values.mul_(INT8_MAX / largest).round_().to(torch.int8), largest / INT8_MAX

    def forward(entry: Any) -> Any:
        rows, scales = memory.of(entry, codes)
        out = int8_product(rows, weight, FEWEST_ROWS * rows.is_cuda).float().mul_(scales).mul_(scale)
        if bias is not None:
            out += bias
        return out.to(dtype).reshape(*entry.shape[:-1], out.shape[-1])  # an expert may get no token

    return forward


def fp8_linear(module: Any, memory: Memory, dtype: Any) -> Callable[[Any], Any]:
    """FP8 codes are exact in bf16: they are multiplied there, then scaled in float32."""
    import torch

    weight = module.weight.data.to(dtype)
    scale = module.weight_scale.data.float().reshape(1, -1)
    bias = None if module.bias is None else module.bias.data.float()

    def codes(rows: Any) -> tuple[Any, Any]:
        values = rows.float()
        scales = values.abs().amax(-1, keepdim=True).clamp_(min=1e-10) / FP8_MAX
        return values.div_(scales).clamp_(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).to(dtype), scales

    def forward(entry: Any) -> Any:
        rows, scales = memory.of(entry, codes)
        out = torch.nn.functional.linear(rows, weight).float().mul_(scales).mul_(scale)
        if bias is not None:
            out += bias
        return out.to(dtype).reshape(*entry.shape[:-1], out.shape[-1])  # an expert may get no token

    return forward


KINDS = {"int": int8_linear, "float": fp8_linear}
