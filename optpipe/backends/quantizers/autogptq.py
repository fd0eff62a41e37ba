"""Checkpoints in GPTQ's own format by auto-gptq, which has ended. Standard library only at import."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from optpipe.backends.quantizers import checkpoint, legacy
from optpipe.backends.quantizers.scheme import OUTPUT_HEAD, Block, grouped_problems
from optpipe.errors import Problem
from optpipe.records import Json
from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.worker import Work

JOB, TOOLCHAIN = "quantize-autogptq", legacy.TOOLCHAIN
REVISION = 1
VERSION = "0.7.1"


@dataclass(frozen=True)
class AutoGptq(Block):
    """GPTQ by auto-gptq 0.7.1, which has ended upstream: for what was made with it. GPTQModel replaced it."""

    symmetric: ClassVar[bool] = True

    library: Literal["autogptq"]
    """Who quantizes."""
    method: Literal["gptq"]
    """Second-order weight quantization (https://arxiv.org/abs/2210.17323), symmetric; activations stay bf16."""
    bits: int = 4
    """Bits per weight: 4 or 8."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size. -1 is one scale per output channel."""
    dampening: float = 0.01
    """Share of the Hessian's mean diagonal added to it."""
    activation_order: bool = True
    """Quantize the columns with the largest activations first, in groups as they lie; costs nothing at run time."""
    true_sequential: bool = True
    """Within a layer each group of modules sees what those before it were rounded to; four passes, not one."""


Scheme = AutoGptq


def validate(scheme: Scheme) -> tuple[Problem, ...]:
    """What is wrong with the values of one scheme; `place` is the field."""
    found = list(grouped_problems(scheme.bits, scheme.group_size, (4, 8)))
    if not 0 < scheme.dampening < 1:
        found.append(Problem("dampening", f"{scheme.dampening} is not between 0 and 1", "0.01 is usual"))
    return tuple(found)


def unmapped(scheme: Scheme, architecture: str) -> str | None:
    """Why `scheme` can't be made of this architecture."""
    return legacy.unmapped("auto-gptq", architecture)


def run(options: Json, work: Work) -> Json:
    """The `quantize-autogptq` job: `inputs` model and tokens -> a checkpoint folder and its record."""
    scheme = AutoGptq(**options)
    base = work.inputs["model"]
    work.out.mkdir(parents=True, exist_ok=True)
    checkpoint.prepare(work.threads, work.seed)
    rows = checkpoint.tokens(work)
    model = legacy.load(base)
    chosen, skipped = checkpoint.choose(model, OUTPUT_HEAD)
    quantize(model, scheme, rows, work)
    legacy.save(model, base, work.out, chosen, quantization(scheme))
    told: Json = {"method": scheme.method, "scheme": dataclasses.asdict(scheme)}
    told["notes"] = [f"auto-gptq {VERSION} has ended upstream; GPTQModel replaced it (library: gptqmodel)"]
    return checkpoint.record("gptq", (chosen, skipped), rows, **told)


def quantize(model: Any, scheme: Scheme, rows: Any, work: Work) -> None:
    """auto-gptq's own passes, in place; it asks for CUDA by name, which is the CPU here."""
    import torch
    from auto_gptq.modeling import GPTQ_CAUSAL_LM_MODEL_MAP, BaseQuantizeConfig, _base

    _base.CUDA_0 = _base.CPU
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *arguments: None
    config = BaseQuantizeConfig(
        bits=scheme.bits,
        group_size=scheme.group_size,
        damp_percent=scheme.dampening,
        desc_act=scheme.activation_order,
        static_groups=scheme.activation_order,
        sym=True,
        true_sequential=scheme.true_sequential,
    )
    whole = GPTQ_CAUSAL_LM_MODEL_MAP[model.config.model_type](model, False, config)
    samples = [{"input_ids": row[None], "attention_mask": row.new_ones(1, len(row))} for row in rows]
    passes = 1 + (len(whole.inside_layer_modules) if scheme.true_sequential else 1)
    with legacy.watched(model.model.layers, len(rows), passes, "auto-gptq", work):
        try:
            whole.quantize(samples, batch_size=1)
        except torch.linalg.LinAlgError as error:
            hint = f"dampening: {min(0.9, 10 * scheme.dampening):g}, or more calibration text"
            text = f"a Hessian is not positive definite at dampening {scheme.dampening}: {error}"
            raise Failure(text, hint=hint) from error


def quantization(scheme: Scheme) -> Json:
    """`quantization_config` as engines read it: groups lie as they are, so nothing is to be reordered."""
    return {
        "quant_method": "gptq",
        "bits": scheme.bits,
        "group_size": scheme.group_size,
        "sym": True,
        "desc_act": False,
        "lm_head": False,
        "checkpoint_format": "gptq",
        "damp_percent": scheme.dampening,
        "static_groups": scheme.activation_order,
        "true_sequential": scheme.true_sequential,
        "meta": {"quantizer": [f"auto_gptq:{VERSION}"]},
    }
