"""Checkpoints in compressed-tensors format, made by llm-compressor.

The methods themselves are in `llmcompressor_schemes.py`. Standard library only: what needs torch is imported
inside `run`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

from optpipe.backends.quantizers import llmcompressor_schemes as schemes
from optpipe.backends.quantizers.llmcompressor_schemes import SCHEMES, Scheme
from optpipe.backends.quantizers.scheme import grouped_problems, read
from optpipe.errors import Problem
from optpipe.records import Json

if TYPE_CHECKING:
    from optpipe.worker import Work

JOB, TOOLCHAIN = "quantize", "quantize"
"""The kind of its jobs in `worker.BODIES`, and the toolchain that they run in."""

REVISION = 5
"""Raised when results of this file or of a `llmcompressor_*.py` beside it change."""

# fmt: off
BOTH_MAPPED = (
    "Afmoe", "Bloom", "Cohere", "Cohere2", "Cohere2Moe", "DeepseekV2", "DeepseekV3", "Ernie4_5_Moe",
    "Gemma2", "Gemma3", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa", "Granite", "Llama", "Mistral",
    "Nanbeige", "Phi3", "Phi3V", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Qwen3_5", "Qwen3_5Moe",
    "SeedOss",
)
# fmt: on
AWQ_MAPPED = (*BOTH_MAPPED, "Exaone4", "Olmo", "Olmo3", "Qwen3Next", "Step3p5")
MAPPED = {
    "smoothquant": (*BOTH_MAPPED, "Mixtral"),
    "awq": AWQ_MAPPED,
    "awq-gptq": AWQ_MAPPED,
    "spinquant": ("Llama",),
}
"""The `...ForCausalLM` families for which llm-compressor 0.14 knows which layer feeds which."""


def validate(scheme: Scheme) -> tuple[Problem, ...]:
    """What is wrong with the values of one scheme; `place` is the field."""
    return (*grouping_problems(scheme), *calibrating_problems(scheme))


def grouping_problems(scheme: Scheme) -> Iterator[Problem]:
    if not isinstance(scheme, schemes.Grouped):
        return
    allowed = (4,) if isinstance(scheme, schemes.Mixed) else (4, 8)
    yield from grouped_problems(scheme.bits, scheme.group_size, allowed)
    if isinstance(scheme, schemes.Mixed) and not scheme.int8:
        yield Problem("int8", "names no layer", "int8: [down_proj], or method: gptq")


def calibrating_problems(scheme: Scheme) -> Iterator[Problem]:
    if isinstance(scheme, (schemes.Awq, schemes.AwqGptq)):
        if scheme.grid < 3:
            yield Problem("grid", f"{scheme.grid} is under 3", "grid: 20")
        if scheme.max_tokens < 1:
            yield Problem("max_tokens", f"{scheme.max_tokens} is under 1", "max_tokens: 8192")
    if isinstance(scheme, schemes.SmoothQuant) and not 0 <= scheme.strength <= 1:
        yield Problem("strength", f"{scheme.strength} is not in 0..1", "strength: 0.8")
    if isinstance(scheme, schemes.Rounded) and not 0 < scheme.dampening <= 1:
        yield Problem("dampening", f"{scheme.dampening} is not in 0..1, above 0", "0.01 is usual")
    if isinstance(scheme, schemes.AutoRound):
        for name, value in (("iterations", scheme.iterations), ("batch", scheme.batch)):
            if value < 1:
                yield Problem(name, f"{value} is under 1", "iterations: 200, batch: 8")


def unmapped(scheme: Scheme, architecture: str) -> str | None:
    """Why `scheme` can't be made of this architecture: smoothing needs to know which layer feeds which."""
    families = MAPPED.get(scheme.method)
    if families is None or architecture.removesuffix("ForCausalLM") in families:
        return None
    return f"{scheme.method} on {architecture}: llm-compressor has no mapping of its layers; gptq needs none"


def run(options: Json, work: Work) -> Json:
    """The `quantize` job: `inputs` model and, where needed, tokens -> a checkpoint folder and its record."""
    from optpipe.backends.quantizers import llmcompressor_run

    scheme = read(options, SCHEMES)
    return {**llmcompressor_run.quantize(scheme, work), "scheme": dataclasses.asdict(scheme)}
