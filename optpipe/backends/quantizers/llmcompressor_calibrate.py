"""llm-compressor's passes over a model, one road per method. Imports torch lazily."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

from optpipe.backends.quantizers import llmcompressor_schemes as schemes
from optpipe.backends.quantizers.llmcompressor_experts import Coverage, counted

if TYPE_CHECKING:
    from optpipe.worker import Work

BATCH_TOKENS = 2048
"""Tokens of one of AWQ's passes: over fewer, its products of small matrices take a fifth longer."""


@dataclass
class Notes:
    """What the record tells beside the names: losses per module, sentences a reader must know, and of a mixture of
    experts which of them the text of the last pass reached."""

    losses: dict[str, float] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


def calibrate(model: Any, scheme: schemes.Scheme, named: dict[str, list[str]], rows: Any, notes: Notes) -> None:
    """llm-compressor's own passes over the model, in its order; `model` holds the result.

    `named`: the modules that stay (`ignore`) and those in INT8 among others (`int8`); rows: int64 [rows, length].
    """
    import llmcompressor
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier

    from optpipe.backends.quantizers import llmcompressor_gptq

    def passes(modifiers: list[Any], ids: Any = None, count: int = 1, **more: Any) -> None:
        more |= {"dataset": None if ids is None else loader(ids, count), "shuffle_calibration_samples": False}
        with nullcontext(notes.coverage) if ids is None else counted(model, ids.numel()) as notes.coverage:
            llmcompressor.oneshot(model=model, recipe=modifiers, **more)

    common = {"config_groups": groups(scheme, named["int8"]), "ignore": named["ignore"]}
    if isinstance(scheme, schemes.SmoothQuant):
        passes([SmoothQuantModifier(smoothing_strength=scheme.strength)], rows, pipeline="basic")
    if isinstance(scheme, schemes.SpinQuant):
        if model.get_output_embeddings().weight is model.get_input_embeddings().weight:
            notes.sentences.append("its rotations made two tables of the tied embeddings")
        passes([rotation(model.config.hidden_size)])
        del model.transform_config  # all of it is folded into the weights: nothing is left for engines to do
    if isinstance(scheme, (schemes.Awq, schemes.AwqGptq)):
        unpinned()
        few = first_rows(rows, scheme.max_tokens)
        passes([AWQModifier(n_grid=scheme.grid), QuantizationModifier(**common)], few, together(*few.shape))
    if by_gptq(scheme):
        passes([llmcompressor_gptq.modifier(scheme, common, notes)], rows)
    elif isinstance(scheme, schemes.AutoRound):
        passes([learned(scheme, common)], rows)
    elif not isinstance(scheme, schemes.Awq):
        passes([QuantizationModifier(**common)], rows if isinstance(scheme, schemes.Nvfp4) else None)


def loader(rows: Any, count: int = 1) -> Any:
    """The rows in their order, `count` to a batch."""
    from torch.utils.data import DataLoader

    return DataLoader([{"input_ids": row} for row in rows], batch_size=count)


def first_rows(rows: Any, max_tokens: int) -> Any:
    return rows[: max(1, max_tokens // rows.shape[1])]


def together(rows: int, length: int) -> int:
    """Rows per forward pass: a divisor of `rows`, so that all passes are alike, up to BATCH_TOKENS tokens."""
    return max(n for n in range(1, rows + 1) if n == 1 or (rows % n == 0 and n * length <= BATCH_TOKENS))


def by_gptq(scheme: schemes.Scheme) -> TypeGuard[schemes.Rounded]:
    """Whether the weights are rounded by GPTQ, not to nearest."""
    return isinstance(scheme, schemes.Rounded) and getattr(scheme, "weights", "gptq") == "gptq"


def rotation(hidden_size: int) -> Any:
    """Hadamard rotations R1 and R2; R1 in blocks of the largest power of two that divides the hidden size."""
    from llmcompressor.modifiers.transform.spinquant import SpinQuantModifier

    return SpinQuantModifier(
        rotations=["R1", "R2"], transform_type="hadamard", transform_block_size=hidden_size & -hidden_size
    )


def learned(scheme: schemes.AutoRound, common: dict[str, Any]) -> Any:
    """AutoRound's modifier, which seeds itself; torch.compile would want a compiler."""
    from llmcompressor.modifiers.autoround import AutoRoundModifier

    return AutoRoundModifier(
        iters=scheme.iterations, batch_size=scheme.batch, enable_torch_compile=False, **common
    )


def groups(scheme: schemes.Scheme, int8: list[str]) -> dict[str, Any]:
    """compressed-tensors' config groups of a scheme, spelt out: the presets only know groups of 128.

    Modules that `int8` names come first with the library and with engines: exact names before classes.
    """
    if isinstance(scheme, (schemes.Nvfp4, schemes.Mxfp4)):
        from compressed_tensors.quantization import preset_name_to_scheme

        return {"group_0": preset_name_to_scheme(scheme.method.upper(), ["Linear"])}
    if isinstance(scheme, schemes.Fp8):
        return {"group_0": eight_bits("float", ["Linear"])}
    if isinstance(scheme, (schemes.SmoothQuant, schemes.Int8)):
        return {"group_0": eight_bits("int", ["Linear"])}
    channel = scheme.group_size == -1
    size = {"strategy": "channel"} if channel else {"strategy": "group", "group_size": scheme.group_size}
    weights = {"num_bits": scheme.bits, "type": "int", "symmetric": scheme.symmetric, "dynamic": False}
    found: dict[str, Any] = {"group_0": {"targets": ["Linear"], "weights": {**weights, **size}}}
    return found | ({"group_1": eight_bits("int", int8)} if int8 else {})


def eight_bits(kind: str, targets: list[str]) -> dict[str, Any]:
    """W8A8: weights per output channel, activations per token as they come."""
    plain = {"num_bits": 8, "type": kind, "symmetric": True}
    return {
        "targets": targets,
        "weights": {**plain, "strategy": "channel", "dynamic": False},
        "input_activations": {**plain, "strategy": "token", "dynamic": True},
    }


def unpinned() -> None:
    """AWQ pins its cached activations for a GPU and crashes where there is none."""
    import torch
    from llmcompressor.pipelines.cache import IntermediatesCache

    if not torch.accelerator.is_available():
        IntermediatesCache.pin_memory = lambda self, *names, **more: None


def row_passes(scheme: schemes.Scheme, rows: int, length: int) -> int:
    """How often a row passes each decoder layer, all rows together; AutoRound's last steps are estimated."""
    if isinstance(scheme, schemes.AutoRound):
        return rows * 3 + scheme.iterations * min(scheme.batch, rows)
    total = rows * isinstance(scheme, schemes.SmoothQuant)
    total += 2 * rows * (by_gptq(scheme) or isinstance(scheme, (schemes.Awq, schemes.Nvfp4)))
    if isinstance(scheme, schemes.AwqGptq):
        total += 2 * min(rows, max(1, scheme.max_tokens // length))
    return total


@contextmanager
def watched(model: Any, scheme: schemes.Scheme, rows: Any, work: Work) -> Iterator[None]:
    """Progress from the calls of the decoder layers: each row passes each layer a known number of times."""
    kinds = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    total = max(1, len(layers) * (0 if rows is None else row_passes(scheme, *rows.shape)))
    done, told = 0, 0.0

    def count(module: Any, args: Any, output: Any) -> None:
        nonlocal done, told
        done += (output[0] if isinstance(output, tuple) else output).shape[0]
        now = time.monotonic()
        if now - told > 1:
            told = now
            work.progress(min(done, total), total, f"{scheme.method}: {len(layers)} layers")

    work.progress(0, total, "model loaded")
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    exact = done and not isinstance(scheme, schemes.AutoRound)
    work.progress(done if exact else total, total, "saving")
