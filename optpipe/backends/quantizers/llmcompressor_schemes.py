"""The methods of llm-compressor: each class is the recipe's block, its documentation and what the worker gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from optpipe.backends.quantizers.scheme import OUTPUT_HEAD, Block, Select


@dataclass(frozen=True)
class Gptq(Block):
    """GPTQ: weights rounded column by column, each column's error spread over those still to come."""

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
class Awq(Block):
    """AWQ: channels scaled by what their activations weigh, then rounded to nearest."""

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
class SmoothQuant(Block):
    """SmoothQuant: activation outliers moved into the weights, then both in INT8 (W8A8)."""

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
class Int8(Block):
    """INT8 W8A8: weights rounded to nearest per channel, activations per token as they come."""

    needs_calibration: ClassVar[bool] = False
    bits: ClassVar[int] = 8

    method: Literal["int8"] = "int8"
    """Round to nearest; needs no calibration text."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Fp8(Block):
    """FP8 (E4M3) W8A8: weights rounded to nearest per channel, activations per token as they come."""

    needs_calibration: ClassVar[bool] = False
    bits: ClassVar[int] = 8

    method: Literal["fp8"] = "fp8"
    """Round to nearest; needs no calibration text, and hardware that computes in FP8 to be fast."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Rtn(Block):
    """Weights rounded to nearest, activations as they are: no calibration, seconds of work."""

    needs_calibration: ClassVar[bool] = False

    method: Literal["rtn"] = "rtn"
    """Round to nearest. In 8 bits (W8A16) next to nothing is lost; in 4 bits gptq and awq lose far less."""
    bits: int = 8
    """Bits per weight: 4 or 8."""
    group_size: int = -1
    """Weights that share a scale; divides every layer's input size. -1 is one scale per output channel."""
    symmetric: bool = True
    """Without a zero point; an asymmetric group costs `bits` more and loses less."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Mixed(Block):
    """4-bit weights in most layers, INT8 W8A8 in those that a selector names; all rounded by GPTQ."""

    method: Literal["mixed"] = "mixed"
    """Two schemes in one checkpoint: the layers that suffer most keep 8 bits."""
    int8: tuple[str | Select, ...] = ("down_proj",)
    """Selectors of linear modules in INT8 W8A8. What an engine fuses (q, k, v; gate, up) goes together."""
    bits: int = 4
    """Bits per weight of all other layers, whose activations stay bf16."""
    group_size: int = 128
    """Of those layers: weights that share a scale; divides their input sizes. -1 is one per output channel."""
    symmetric: bool = True
    """Of those layers: without a zero point; an asymmetric group costs `bits` more and loses less."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    dampening: float = 0.01
    """Share of the Hessian's mean diagonal added to it; raised tenfold, with a note, where too little."""
    activation_order: bool = True
    """Quantize the columns with the largest activations first; costs nothing at run time."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class AwqGptq(Block):
    """AWQ followed by GPTQ: channels scaled by AWQ, then the scaled weights rounded column by column."""

    method: Literal["awq-gptq"] = "awq-gptq"
    """AWQ's search, then GPTQ on the text seen through the scaled model; the time of both."""
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
    """Calibration tokens that AWQ uses, whole rows from the first on; GPTQ uses all."""
    dampening: float = 0.01
    """Share of the Hessian's mean diagonal added to it; raised tenfold, with a note, where too little."""
    activation_order: bool = True
    """Quantize the columns with the largest activations first; costs nothing at run time."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Nvfp4(Block):
    """NVFP4 W4A4: 4-bit floats in groups of 16 with an FP8 scale, weights and activations alike."""

    bits: ClassVar[int] = 4

    method: Literal["nvfp4"] = "nvfp4"
    """Round to nearest; calibration finds each layer's scale of its activations. Blackwell computes in it."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class Mxfp4(Block):
    """MXFP4 W4A4: 4-bit floats in groups of 32 whose scale is a power of two, weights and activations alike."""

    needs_calibration: ClassVar[bool] = False
    bits: ClassVar[int] = 4

    method: Literal["mxfp4"] = "mxfp4"
    """Round to nearest (the OCP Microscaling format); needs no calibration text. Loses more than nvfp4."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class AutoRound(Block):
    """AutoRound: rounding and clipping learned layer by layer with signed gradient descent."""

    symmetric: ClassVar[bool] = True

    method: Literal["autoround"] = "autoround"
    """Learned rounding (https://arxiv.org/abs/2309.05516), symmetric; activations stay bf16. Hours without a GPU."""
    bits: int = 4
    """Bits per weight: 4 or 8."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size. -1 is one scale per output channel."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    iterations: int = 200
    """Steps of descent per layer; time grows with it."""
    batch: int = 8
    """Calibration rows per step."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


@dataclass(frozen=True)
class SpinQuant(Block):
    """SpinQuant: weights turned by Hadamard rotations that cancel out, which spreads outliers, then rounded."""

    method: Literal["spinquant"] = "spinquant"
    """Rotations R1 and R2, not learned (https://arxiv.org/abs/2405.16406), folded into the weights: nothing at
    run time, but tied embeddings become two tables, and the checkpoint grows by one."""
    bits: int = 4
    """Bits per weight: 4 or 8."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size. -1 is one scale per output channel."""
    symmetric: bool = True
    """Without a zero point; an asymmetric group costs `bits` more and loses less."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    dampening: float = 0.01
    """As for GPTQ, which rounds the rotated weights."""
    activation_order: bool = True
    """Quantize the columns with the largest activations first; costs nothing at run time."""
    library: Literal["llmcompressor"] = "llmcompressor"
    """Who quantizes."""


Grouped = Gptq | Awq | Rtn | Mixed | AwqGptq | AutoRound | SpinQuant
"""Methods with `bits` and `group_size`, whose activations stay as they are (in most layers)."""


Rounded = Gptq | SmoothQuant | Mixed | AwqGptq | SpinQuant
"""Methods whose weights GPTQ can round."""


Scheme = Gptq | Awq | SmoothQuant | Int8 | Fp8 | Rtn | Mixed | AwqGptq | Nvfp4 | Mxfp4 | AutoRound | SpinQuant
"""The closed union that a recipe's `checkpoints:` block is read into, told apart by `method`."""

SCHEMES: dict[str, type[Scheme]] = {one.method: one for one in get_args(Scheme)}
