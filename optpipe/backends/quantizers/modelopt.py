"""Checkpoints in ModelOpt's Hugging Face format, for TensorRT-LLM. Standard library only at import."""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from optpipe.backends.quantizers import checkpoint
from optpipe.backends.quantizers.scheme import OUTPUT_HEAD, Block, Select, grouped_problems, read
from optpipe.errors import Problem
from optpipe.records import Json

if TYPE_CHECKING:
    from optpipe.worker import Work

JOB, TOOLCHAIN = "quantize-modelopt", "modelopt"
REVISION = 1

OWN_CONFIG = "hf_quant_config.json"
"""Which TensorRT-LLM reads beside config.json."""


@dataclass(frozen=True)
class ModelOptAwq(Block):
    """INT4 AWQ by ModelOpt: channels scaled by what their activations weigh, then rounded to nearest."""

    library: Literal["modelopt"]
    """Who quantizes."""
    method: Literal["awq"]
    """Activation-aware weight quantization (https://arxiv.org/abs/2306.00978), symmetric; activations stay bf16."""
    bits: Literal[4] = 4
    """Bits per weight."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size. TensorRT-LLM has kernels for 64 and 128."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    step: float = 0.1
    """Between the scalings tried, from 0 to 1; a smaller one takes longer."""


@dataclass(frozen=True)
class ModelOptSmoothQuant(Block):
    """SmoothQuant by ModelOpt: INT8 weights per channel, INT8 activations with one scale per layer."""

    bits: ClassVar[int] = 8

    library: Literal["modelopt"]
    """Who quantizes."""
    method: Literal["smoothquant"]
    """Smoothing (https://arxiv.org/abs/2211.10438), then both in INT8, rounded to nearest; scales are fixed."""
    strength: float = 0.8
    """How much of the activations' range moves into the weights, 0 to 1 (the library's own default, which lost more
    than twice as much on the layers tried)."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""


@dataclass(frozen=True)
class ModelOptFp8(Block):
    """FP8 (E4M3) by ModelOpt: one scale per layer for weights and one for activations, both fixed."""

    bits: ClassVar[int] = 8

    library: Literal["modelopt"]
    """Who quantizes."""
    method: Literal["fp8"]
    """Round to nearest; calibration finds each layer's scale of its activations."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""


Scheme = ModelOptAwq | ModelOptSmoothQuant | ModelOptFp8
"""Told apart by `method`."""
SCHEMES: dict[str, type[Scheme]] = {"awq": ModelOptAwq, "smoothquant": ModelOptSmoothQuant, "fp8": ModelOptFp8}


def validate(scheme: Scheme) -> tuple[Problem, ...]:
    """What is wrong with the values of one scheme; `place` is the field."""
    found: list[Problem] = []
    if isinstance(scheme, ModelOptAwq):
        found += grouped_problems(scheme.bits, scheme.group_size, (4,))
        if scheme.group_size == -1:
            found.append(Problem("group_size", "-1: ModelOpt packs 4 bits in groups only", "group_size: 128"))
        if not 0 < scheme.step <= 0.5:
            found.append(Problem("step", f"{scheme.step} is not in 0..0.5, above 0", "step: 0.1"))
    if isinstance(scheme, ModelOptSmoothQuant) and not 0 <= scheme.strength <= 1:
        found.append(Problem("strength", f"{scheme.strength} is not in 0..1", "strength: 0.8"))
    return tuple(found)


def unmapped(scheme: Scheme, architecture: str) -> str | None:
    """ModelOpt scales each layer by itself and needs to know no layer's neighbours."""
    return None


def run(options: Json, work: Work) -> Json:
    """The `quantize-modelopt` job: `inputs` model and tokens -> a checkpoint folder and its record."""
    scheme = read(options, SCHEMES)
    base = work.inputs["model"]
    work.out.mkdir(parents=True, exist_ok=True)
    checkpoint.prepare(work.threads, work.seed)
    checkpoint.refuse_quantized(base)
    rows = checkpoint.tokens(work)
    model = load(base)
    chosen, skipped = checkpoint.choose(model, scheme.ignore)
    checkpoint.refuse_tied(model, chosen)
    quantize(model, scheme, chosen, rows, work)
    export(model, base, work.out)
    checkpoint.check_quantized(work.out, chosen)
    told: Json = {"method": scheme.method, "scheme": dataclasses.asdict(scheme)}
    return checkpoint.record("modelopt", (chosen, skipped), rows, **told)


def load(base: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, use_safetensors=True)
    return model.to(device).eval()


def configuration(scheme: Scheme, chosen: list[str]) -> Json:
    """The library's own configuration of a scheme: everything off but the quantizers of the chosen modules."""
    weights: Json
    inputs: Json | None = None
    algorithm: str | Json = "max"
    if isinstance(scheme, ModelOptAwq):
        weights = {"num_bits": 4, "block_sizes": {-1: scheme.group_size, "type": "static"}}
        algorithm = {"method": "awq_lite", "alpha_step": scheme.step}
    elif isinstance(scheme, ModelOptSmoothQuant):
        weights, inputs = {"num_bits": 8, "axis": 0}, {"num_bits": 8, "axis": None}
        algorithm = {"method": "smoothquant", "alpha": scheme.strength}
    else:
        weights, inputs = {"num_bits": (4, 3), "axis": None}, {"num_bits": (4, 3), "axis": None}
    quantizers: list[Json] = [{"quantizer_name": "*", "enable": False}]
    for name in chosen:
        quantizers.append({"quantizer_name": f"{name}.weight_quantizer", "cfg": weights})
        if inputs:
            quantizers.append({"quantizer_name": f"{name}.input_quantizer", "cfg": inputs})
    return {"quant_cfg": quantizers, "algorithm": algorithm}


def quantize(model: Any, scheme: Scheme, chosen: list[str], rows: Any, work: Work) -> None:
    """Calibrate and quantize in place, with progress from the rows that pass: once, or once per look of AWQ."""
    import modelopt.torch.quantization as quantization
    import torch

    passes = 2 if isinstance(scheme, ModelOptAwq) else 1
    total, done, told = passes * len(rows), 0, 0.0
    work.progress(0, total, "model loaded")

    def forward(_: Any) -> None:
        nonlocal done, told
        for row in rows:
            model(input_ids=row[None].to(model.device), use_cache=False)
            done += 1
            if time.monotonic() - told > 1:
                told = time.monotonic()
                work.progress(min(done, total), total, f"{scheme.method}: rows")

    loop: Callable[[Any], None] = forward
    with torch.inference_mode():
        quantization.quantize(model, configuration(scheme, chosen), loop)
    work.progress(total, total, "saving")


def export(model: Any, base: Path, out: Path) -> None:
    """The library's export; config.json of the base with its quantization_config, other files as in the base."""
    import torch
    from modelopt.torch.export import export_hf_checkpoint

    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=out)
    theirs = json.loads((out / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    checkpoint.beside(base, out, (OWN_CONFIG,))
    checkpoint.write_config(base, out, theirs)
