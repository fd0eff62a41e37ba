"""llm-compressor's GPTQ with the same results in less time on a CPU, and a record of what happened.

Three changes, none of which changes a bit of the result: the product of a layer's input with itself is
computed once for all modules that share that input (q, k, v; gate and up of all experts); a block's columns are
worked on transposed and in place; a Hessian that can't be factorized is dampened more instead of given up.

Experts that no router chose on the calibration text are rounded to nearest.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from optpipe.backends.quantizers import llmcompressor_schemes as schemes
from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.backends.quantizers.llmcompressor_calibrate import Notes

LARGEST_DAMPENING = 1.0


def modifier(scheme: schemes.Rounded, common: dict[str, Any], notes: Notes) -> Any:
    """A GPTQModifier for `scheme`; per-module losses and fallbacks go to `notes`."""
    import torch
    from compressed_tensors.utils.impl_backend import ImplBackend
    from llmcompressor.modifiers.gptq import GPTQModifier, base, gptq_quantize
    from llmcompressor.modifiers.gptq.helpers import assign_batches
    from pydantic import PrivateAttr

    class GPTQ(GPTQModifier):  # type: ignore[misc]
        _shared: list[tuple[Any, Any]] = PrivateAttr(default_factory=list)
        _now: list[str] = PrivateAttr(default_factory=list)

        def calibrate_module(self, module: Any, args: tuple[Any, ...], _output: Any) -> None:
            entry = args[0]
            if not isinstance(module, torch.nn.Linear) or entry.ndim not in (2, 3):
                super().calibrate_module(module, args, _output)
                return
            product = self.product(entry)
            if module not in self._hessians:
                self._hessians[module] = torch.zeros_like(product)
                self._num_samples[module] = torch.zeros((), device=entry.device)
            self._hessians[module] += product
            self._num_samples[module] += entry.shape[0] if entry.ndim == 3 else 1

        def product(self, entry: Any) -> Any:
            """2 x^T x of an input; the last two are kept, for between two experts lies what only one of them sees."""
            found = next((product for known, product in self._shared if known is entry), None)
            if found is None:
                flat = math.sqrt(2) * entry.reshape(-1, entry.shape[-1]).t().to(torch.float32)
                found = flat.matmul(flat.t())
            self._shared = [(entry, found), *(pair for pair in self._shared if pair[0] is not entry)][:2]
            return found

        def compress_module_list(self, module_list: list[Any]) -> None:
            self._shared = []
            for batch in assign_batches(module_list, self.batched_quantization, self.block_size):
                self._now[:] = [self._module_names[module] for module in batch]
                unreached = [module for module in batch if not notes.coverage.reached(self._module_names[module])]
                for module in unreached:  # GPTQ with nothing known of the inputs rounds to nearest
                    self._hessians[module] = torch.eye(len(self._hessians[module])).to(self._hessians[module])
                super().compress_module_list(batch)
                for module in unreached:
                    del notes.losses[self._module_names[module]]

    order = "static" if getattr(scheme, "activation_order", True) else None
    made = GPTQ(dampening_frac=scheme.dampening, actorder=order, **common)
    base.quantize_weight = recorded(base.quantize_weight, made._now, notes)
    gptq_quantize.factorize_hessian = dampened(gptq_quantize.factorize_hessian, made._now, notes)
    ImplBackend.register("gptq_block_update", fits_block, -1)(block_on_cpu)
    return made


def recorded(plain: Any, names: list[str], notes: Notes) -> Any:
    """llm-compressor's `quantize_weight`, whose losses are kept under the modules' names."""

    def quantize_weight(**arguments: Any) -> Any:
        weights, losses, fallbacks = plain(**arguments)
        for name, loss, fallback in zip(names, losses.tolist(), fallbacks.tolist()):
            notes.losses[name] = loss
            if fallback:
                notes.sentences.append(
                    f"{name}: its Hessian is not positive definite at dampening {LARGEST_DAMPENING:g}: "
                    "rounded to nearest"
                )
        return weights, losses, fallbacks

    return quantize_weight


def dampened(plain: Any, names: list[str], notes: Notes) -> Any:
    """llm-compressor's `factorize_hessian`, tried again with ten times the dampening where it gives up."""
    import torch

    def attempt(weights: Any, hessians: Any, percdamp: float, fallbacks: Any) -> Any:
        try:
            return plain(weights, hessians, percdamp, fallbacks)
        except torch.linalg.LinAlgError:  # positive definite itself, its inverse is not
            fallbacks.fill_(True)
            return torch.eye(hessians.shape[-1]).to(hessians).expand_as(hessians).clone()

    def factorize_hessian(weights: Any, hessians: Any, percdamp: float, fallbacks: Any) -> Any:
        original = hessians.clone()
        if not torch.isfinite(original).all():
            raise Failure(f"activations into {', '.join(names)} are not finite on the calibration text")
        factors = attempt(weights, hessians, percdamp, fallbacks)
        for index in fallbacks.nonzero().flatten().tolist():
            one, dampening = slice(index, index + 1), percdamp
            while fallbacks[index] and dampening < LARGEST_DAMPENING:
                dampening = min(10 * dampening, LARGEST_DAMPENING)
                fallbacks[index] = False
                factors[one] = attempt(weights[one], original[one].clone(), dampening, fallbacks[one])
            if not fallbacks[index]:
                notes.sentences.append(f"{names[index]}: dampening raised to {dampening:g}")
        return factors

    return factorize_hessian


def block_on_cpu(
    W1: Any, Hinv1: Any, Q1: Any, Err1: Any, losses1: Any, *, quant_args: Any, i1: int, **scales: Any
) -> None:
    """One block of columns, in place, as llm-compressor's eager `gptq_block_update` does it, bit for bit.

    W1, Q1, Err1, losses1: float32 [1, rows, width]; Hinv1: float32 [1, width, width]. Columns lie transposed,
    so that each is contiguous; only the columns still to come are updated.
    """
    import torch
    from compressed_tensors.quantization.utils import calculate_range
    from llmcompressor.modifiers.gptq.helpers import column_scale_window

    rows, width = W1.shape[1:]
    step, zero = column_scale_window(**scales, quant_args=quant_args, num_rows=rows, i1=i1, i2=i1 + width)
    low, high = (float(bound) for bound in calculate_range(quant_args, W1.device))
    kept = step.dtype
    step = step[0].t().to(torch.float32).contiguous()
    zero = None if zero is None else zero[0].t().contiguous()
    todo, inverse = W1[0].t().contiguous(), Hinv1[0]
    rounded, errors, spread = torch.empty_like(todo), torch.empty_like(todo), torch.empty_like(todo)
    for i in range(width):
        now, error = rounded[i], errors[i]
        torch.div(todo[i], step[i], out=now)
        if zero is not None:
            now.add_(zero[i])
        now.clamp_(low, high).round_()
        if zero is not None:
            now.sub_(zero[i])
        now.mul_(step[i])
        now.copy_(now.to(kept))
        torch.sub(todo[i], now, out=error).div_(inverse[i, i])
        torch.mul(inverse[i, i + 1 :, None], error, out=spread[i + 1 :])
        todo[i + 1 :].sub_(spread[i + 1 :])
    Q1[0], Err1[0] = rounded.t(), errors.t()
    torch.square(Err1, out=losses1)


def fits_block(W1: Any, *tensors: Any, quant_args: Any, **more: Any) -> bool:
    return bool(W1.device.type == "cpu" and W1.ndim == 3 and W1.shape[0] == 1 and quant_args.type == "int")
