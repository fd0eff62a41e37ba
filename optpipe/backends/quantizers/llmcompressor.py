"""Checkpoints in compressed-tensors format, made by llm-compressor.

One frozen dataclass per method is the recipe's block, its documentation and what the worker gets.
Standard library only: what needs torch is imported inside `run`.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from optpipe.errors import Problem, did_you_mean
from optpipe.records import Json

if TYPE_CHECKING:
    from optpipe.worker import Work

REVISION = 2
"""Raised when results of this file or of a `llmcompressor_*.py` beside it change."""

CONFIG: Json = {"extra": "forbid", "use_attribute_docstrings": True}
OUTPUT_HEAD = ("lm_head",)


@dataclass(frozen=True)
class Select:
    """A selector of modules that says how many it must match."""

    __pydantic_config__: ClassVar[Json] = CONFIG

    select: str
    """Whole dotted segments, `*` being any part of one (`layers.1.*` is not layers.10); or `re:...`."""
    expect: int | None = None
    """How many modules must match; another number is an error."""


@dataclass(frozen=True)
class Gptq:
    """GPTQ: weights rounded column by column, each column's error spread over those still to come."""

    __pydantic_config__: ClassVar[Json] = CONFIG
    needs_calibration: ClassVar[bool] = True

    method: Literal["gptq"] = "gptq"
    """Second-order weight quantization (https://arxiv.org/abs/2210.17323); activations stay bf16."""
    bits: int = 4
    """Bits per weight: 4 or 8."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size. -1 is one scale per output channel."""
    symmetric: bool = True
    """Without a zero point; an asymmetric group costs `bits` more and loses less."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    dampening: float = 0.01
    """Share of the Hessian's mean diagonal added to it; raised tenfold, with a note, where too little."""
    activation_order: bool = True
    """Quantize the columns with the largest activations first; costs nothing at run time."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Awq:
    """AWQ: channels scaled by what their activations weigh, then rounded to nearest."""

    __pydantic_config__: ClassVar[Json] = CONFIG
    needs_calibration: ClassVar[bool] = True

    method: Literal["awq"] = "awq"
    """Activation-aware weight quantization (https://arxiv.org/abs/2306.00978); activations stay bf16."""
    bits: int = 4
    """Bits per weight: 4 or 8."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size. -1 is one scale per output channel."""
    symmetric: bool = True
    """Without a zero point; an asymmetric group costs `bits` more and loses less."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    grid: int = 20
    """Scalings tried per group of layers; time grows with it."""
    max_tokens: int = 8192
    """Calibration tokens used, whole rows from the first on: every scaling is tried on all of them."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class SmoothQuant:
    """SmoothQuant: activation outliers moved into the weights, then both in INT8 (W8A8)."""

    __pydantic_config__: ClassVar[Json] = CONFIG
    needs_calibration: ClassVar[bool] = True
    bits: ClassVar[int] = 8

    method: Literal["smoothquant"] = "smoothquant"
    """Smoothing (https://arxiv.org/abs/2211.10438), then INT8: weights per channel, activations per token."""
    strength: float = 0.8
    """How much of the activations' range moves into the weights, 0 to 1."""
    weights: Literal["gptq", "rtn"] = "gptq"
    """How the smoothed weights are rounded: by GPTQ, or to nearest (a third of the time)."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    dampening: float = 0.01
    """As for GPTQ; unused where weights are rounded to nearest."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Int8:
    """INT8 W8A8: weights rounded to nearest per channel, activations per token as they come."""

    __pydantic_config__: ClassVar[Json] = CONFIG
    needs_calibration: ClassVar[bool] = False
    bits: ClassVar[int] = 8

    method: Literal["int8"] = "int8"
    """Round to nearest; needs no calibration text."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Fp8:
    """FP8 (E4M3) W8A8: weights rounded to nearest per channel, activations per token as they come."""

    __pydantic_config__: ClassVar[Json] = CONFIG
    needs_calibration: ClassVar[bool] = False
    bits: ClassVar[int] = 8

    method: Literal["fp8"] = "fp8"
    """Round to nearest; needs no calibration text, and hardware that computes in FP8 to be fast."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


Scheme = Gptq | Awq | SmoothQuant | Int8 | Fp8
"""The closed union that a recipe's `checkpoints:` block is read into, told apart by `method`."""

SCHEMES: dict[str, type[Scheme]] = {
    "gptq": Gptq,
    "awq": Awq,
    "smoothquant": SmoothQuant,
    "int8": Int8,
    "fp8": Fp8,
}

# fmt: off
BOTH_MAPPED = (
    "Afmoe", "Bloom", "Cohere", "Cohere2", "Cohere2Moe", "DeepseekV2", "DeepseekV3", "Ernie4_5_Moe",
    "Gemma2", "Gemma3", "Glm4Moe", "Glm4MoeLite", "GlmMoeDsa", "Granite", "Llama", "Mistral",
    "Nanbeige", "Phi3", "Phi3V", "Qwen2", "Qwen2Moe", "Qwen3", "Qwen3Moe", "Qwen3_5", "Qwen3_5Moe",
    "SeedOss",
)
# fmt: on
MAPPED = {
    "smoothquant": (*BOTH_MAPPED, "Mixtral"),
    "awq": (*BOTH_MAPPED, "Exaone4", "Olmo", "Olmo3", "Qwen3Next", "Step3p5"),
}
"""The `...ForCausalLM` families for which llm-compressor 0.14 knows which layer feeds which."""


def read(options: Json) -> Scheme:
    """The scheme in a job's options (plain JSON of one of the dataclasses)."""
    method = options.get("method")
    if method not in SCHEMES:
        raise ValueError(f"method: {method!r} is not known; {did_you_mean(str(method), list(SCHEMES))}")
    values = {key: value for key, value in options.items() if key != "ignore"}
    ignore = options.get("ignore", OUTPUT_HEAD)
    return SCHEMES[method](**values, ignore=tuple(Select(**i) if isinstance(i, dict) else i for i in ignore))


def validate(scheme: Scheme) -> tuple[Problem, ...]:
    """What is wrong with the values of one scheme; `place` is the field."""
    problems = []
    if isinstance(scheme, (Gptq, Awq)):
        if scheme.bits not in (4, 8):
            problems.append(Problem("bits", f"{scheme.bits} is not 4 or 8", "bits: 4"))
        if scheme.group_size != -1 and (scheme.group_size < 1 or scheme.group_size % 8):
            problems.append(
                Problem(
                    "group_size",
                    f"{scheme.group_size} is not -1 or a positive multiple of 8",
                    "32, 64 and 128 are what engines have kernels for",
                )
            )
    if isinstance(scheme, Awq) and scheme.grid < 3:
        problems.append(Problem("grid", f"{scheme.grid} is under 3", "grid: 20"))
    if isinstance(scheme, Awq) and scheme.max_tokens < 1:
        problems.append(Problem("max_tokens", f"{scheme.max_tokens} is under 1", "max_tokens: 8192"))
    if isinstance(scheme, SmoothQuant) and not 0 <= scheme.strength <= 1:
        problems.append(Problem("strength", f"{scheme.strength} is not in 0..1", "strength: 0.8"))
    if isinstance(scheme, (Gptq, SmoothQuant)) and not 0 < scheme.dampening <= 1:
        problems.append(Problem("dampening", f"{scheme.dampening} is not in 0..1, above 0", "0.01 is usual"))
    return tuple(problems)


def unmapped(scheme: Scheme, architecture: str) -> str | None:
    """Why `scheme` can't be made of this architecture: smoothing needs to know which layer feeds which."""
    families = MAPPED.get(scheme.method)
    if families is None or architecture.removesuffix("ForCausalLM") in families:
        return None
    return f"{scheme.method} on {architecture}: llm-compressor has no mapping of its layers; gptq needs none"


def run(options: Json, work: Work) -> Json:
    """The `quantize` job: `inputs` model and, where needed, tokens -> a checkpoint folder and its record."""
    from optpipe.backends.quantizers import llmcompressor_run

    scheme = read(options)
    return {**llmcompressor_run.quantize(scheme, work), "scheme": dataclasses.asdict(scheme)}
