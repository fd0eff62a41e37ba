"""Checkpoints in AWQ's own format by autoawq, which has ended. Standard library only at import."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from optpipe.backends.quantizers import checkpoint, legacy
from optpipe.backends.quantizers.scheme import OUTPUT_HEAD, Block, grouped_problems
from optpipe.errors import Problem
from optpipe.records import Json

if TYPE_CHECKING:
    from optpipe.worker import Work

JOB, TOOLCHAIN = "quantize-autoawq", legacy.TOOLCHAIN
REVISION = 2
VERSION = "0.2.9"


@dataclass(frozen=True)
class AutoAwq(Block):
    """AWQ by autoawq 0.2.9, which has ended upstream: for what was made with it. llm-compressor replaced it."""

    library: Literal["autoawq"]
    """Who quantizes."""
    method: Literal["awq"]
    """Activation-aware weight quantization (https://arxiv.org/abs/2306.00978); activations stay bf16."""
    bits: int = 4
    """Bits per weight: 4, as its format has no other."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size."""
    symmetric: bool = False
    """Only false: its format always has zero points."""
    clip: bool = True
    """Search how far each group's largest weights may be clipped too; as the library does by default."""
    max_tokens: int = 8192
    """Calibration tokens used, whole rows from the first on: every scaling is tried on all of them."""


Scheme = AutoAwq


def validate(scheme: Scheme) -> tuple[Problem, ...]:
    """What is wrong with the values of one scheme; `place` is the field."""
    found = list(grouped_problems(scheme.bits, scheme.group_size, (4,)))
    if scheme.group_size == -1:
        found.append(Problem("group_size", "-1: autoawq makes groups only", "group_size: 128"))
    if scheme.symmetric:
        found.append(Problem("symmetric", "true: AWQ's format always has zero points", "leave it out"))
    if scheme.max_tokens < 1:
        found.append(Problem("max_tokens", f"{scheme.max_tokens} is under 1", "max_tokens: 8192"))
    return tuple(found)


def unmapped(scheme: Scheme, architecture: str) -> str | None:
    """Why `scheme` can't be made of this architecture."""
    return legacy.unmapped("autoawq", architecture)


def run(options: Json, work: Work) -> Json:
    """The `quantize-autoawq` job: `inputs` model and tokens -> a checkpoint folder and its record."""
    scheme = AutoAwq(**options)
    base = work.inputs["model"]
    work.out.mkdir(parents=True, exist_ok=True)
    checkpoint.prepare(work.threads, work.seed)
    rows = checkpoint.tokens(work)
    rows = rows[: max(1, scheme.max_tokens // rows.shape[1])]
    model = legacy.load(base)
    chosen, skipped = checkpoint.choose(model, OUTPUT_HEAD)
    quantize(model, scheme, rows, work)
    legacy.save(model, base, work.out, chosen, quantization(scheme))
    told: Json = {"method": scheme.method, "scheme": dataclasses.asdict(scheme)}
    told["notes"] = [f"autoawq {VERSION} has ended upstream; llm-compressor replaced it (library: llmcompressor)"]
    return checkpoint.record("awq", (chosen, skipped), rows, **told)


def quantize(model: Any, scheme: Scheme, rows: Any, work: Work) -> None:
    """autoawq's own search, in place, on exactly these rows: it is given ids, and their length as its limit."""
    from awq.models._config import AwqConfig
    from awq.models.auto import AWQ_CAUSAL_LM_MODEL_MAP

    kind = model.config.model_type
    whole = AWQ_CAUSAL_LM_MODEL_MAP[kind](model, kind, False, model.config, AwqConfig(), None)
    settings = {"zero_point": True, "q_group_size": scheme.group_size, "w_bit": scheme.bits, "version": "GEMM"}
    with copies_on_a_cpu(), legacy.watched(model.model.layers, len(rows), 1, "autoawq", work):
        whole.quantize(
            None,
            settings,
            rows.tolist(),
            apply_clip=scheme.clip,
            max_calib_samples=len(rows),
            max_calib_seq_len=rows.shape[1],
        )


@contextmanager
def copies_on_a_cpu() -> Iterator[None]:
    """The library keeps weights with `.cpu()` while it tries scales, and puts them back after each: on a CPU that is
    no copy, so every trial would work on what the one before left (KL 0.98 nats instead of 0.03 on three layers)."""
    import torch

    moved = torch.Tensor.cpu

    def copied(tensor: Any, *args: Any, **options: Any) -> Any:
        found = moved(tensor, *args, **options)
        return found.clone() if found is tensor else found

    torch.Tensor.cpu = copied
    try:
        yield
    finally:
        torch.Tensor.cpu = moved


def quantization(scheme: Scheme) -> Json:
    """`quantization_config` as engines read it."""
    return {
        "quant_method": "awq",
        "bits": scheme.bits,
        "group_size": scheme.group_size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": None,
    }
