"""ONNX Runtime GenAI on CPU: the target's options, what is compiled for it, and how it is served.

Standard library only; the library runs in its toolchain. It has no server of its own and batches continuously on
GPUs only, so `onnxruntime_server.py` serves its generators over HTTP, one token of each request in turn.
Names of builder options as of onnxruntime-genai 0.18.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from optpipe.backends.engines.files import yaml_text
from optpipe.errors import Problem
from optpipe.records import Artifact, Compiling, EngineSpec, Hardware, Json, Needs, Tool
from optpipe.toolchains import Toolchain

PACKAGES: tuple[str, ...] = ("onnxruntime-genai",)
NOTES: tuple[str, ...] = ()
OFFLINE: Tool | None = None
SERVER = "optpipe.backends.engines.onnxruntime_server"
REVISION = 1
"""Raised when the server answers or schedules otherwise; part of every key."""
BITS = {"int8": 8.0, "int4": 4.0}
SEQUENCES = 4
"""Requests that are answered at once where nobody says so."""
FATAL = (r"[Aa]ddress already in use", r"Traceback \(most recent call last\)")
DEFINITE = (r"RuntimeError: .*(not supported|Unsupported|unknown model)",)


@dataclass(frozen=True)
class OnnxRuntime:
    """Compile to an ONNX graph and serve with ONNX Runtime GenAI on a CPU. What stands here changes the numbers."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}

    engine: Literal["onnxruntime"] = "onnxruntime"
    """Which engine."""
    precision: Literal["fp32", "int8", "int4"] = "fp32"
    """Of the base's linear layers: int8 and int4 are rounded to nearest in blocks by ONNX Runtime's own quantizer.
    A 4-bit checkpoint keeps its own codes."""
    block_size: Literal[16, 32, 64, 128, 256] = 32
    """Weights that share a scale where the compiler itself quantizes."""
    symmetric: bool = True
    """Blocks without zero points where the compiler itself quantizes."""
    accuracy_level: Literal[1, 4] = 1
    """How quantized layers compute: 1 in float32, 4 with activations rounded to 8 bits (faster with VNNI)."""
    quantize_head: bool = False
    """Quantize the output head too."""
    max_model_len: int | None = None
    """Tokens of the longest sequence; by default what the model allows."""


def toolchain(hardware: Hardware) -> str:
    """The name of the toolchain; it computes on the CPU wherever it runs."""
    return "onnxruntime-cpu"


def problems(target: OnnxRuntime, place: str, managed: bool) -> tuple[Problem, ...]:
    """Keys that speak against each other."""
    if target.precision == "fp32" and target.quantize_head:
        text = "the head is quantized with the other layers, and precision fp32 quantizes none of the base's"
        return (Problem(f"{place}.quantize_head", text, "precision: int8, or leave it out"),)
    return ()


def refused(target: OnnxRuntime, place: str, chain: Toolchain, hardware: Hardware) -> tuple[Problem, ...]:
    """Nothing is known of an environment of the user's own before it is used."""
    return ()


def here(
    target: OnnxRuntime, hardware: Hardware, release: str | None
) -> Iterator[tuple[str, str, str | None, str]]:
    """Nothing that its toolchain does not bring."""
    yield from ()


def settled(target: OnnxRuntime, chain: Toolchain) -> OnnxRuntime:
    """As the recipe says it, whatever the release."""
    return target


def compiling(target: OnnxRuntime, scheme: Json | None, hardware: Hardware) -> Compiling:
    """A graph from the base, or from a 4-bit checkpoint whose codes it keeps."""
    options: Json = {"accuracy_level": target.accuracy_level, "quantize_head": target.quantize_head}
    rounds = "activations rounded to 8 bits" if target.accuracy_level == 4 else "computed in float32"
    changes = [rounds] if target.accuracy_level == 4 else []
    bits = None
    if scheme is not None:
        how = f"graph with the checkpoint's 4-bit codes, {rounds}"
    elif target.precision == "fp32":
        options["precision"], how, changes = target.precision, "float32 graph", []
    else:
        options |= {"precision": target.precision, "block_size": target.block_size, "symmetric": target.symmetric}
        rounded = f"weights rounded to {target.precision} in blocks of {target.block_size}"
        how, bits = f"graph, {rounded}, {rounds}", BITS[target.precision]
        changes.insert(0, rounded)
    if target.quantize_head:
        changes.append("the head is quantized")
    limits = {"max_model_len": target.max_model_len} if target.max_model_len else {}
    told = ", ".join(changes) or None
    return Compiling(how, "compile-onnxruntime", options, limits, "score-onnxruntime", told, bits)


# ---------------------------------------------------------------- serving


def flags(settings: Mapping[str, Any]) -> Json:
    """Settings as the server's file has them: dashes, no nulls."""
    return {name.replace("_", "-"): value for name, value in settings.items() if value is not None}


def argv(model: str, served_name: str) -> tuple[str, ...]:
    """What follows the toolchain's python."""
    place = ("--host", "{host}", "--port", "{port}", "--served-model-name", served_name)
    return ("-m", SERVER, model, "--config", "{config}", *place)


def devices(flat: Mapping[str, Any]) -> int:
    return 0


def spec(
    title: str,
    target: OnnxRuntime,
    model: Artifact,
    settings: Mapping[str, Any],
    hardware: Hardware,
    threads: int = 1,
) -> EngineSpec:
    """Everything that a session needs to serve the compiled `model` so."""
    own = {"max_num_seqs": SEQUENCES, "max_model_len": target.max_model_len, "threads": threads}
    flat = dict(sorted({**flags(own), **flags(settings), "revision": REVISION}.items()))
    return EngineSpec(
        title=title,
        engine="onnxruntime",
        toolchain=toolchain(hardware),
        model=model,
        served_name=title,
        config=flat,
        config_text=yaml_text(flat),
        argv=argv(str(model.path), title),
        environment={"OMP_NUM_THREADS": str(threads), "PYTHONPATH": "{source}"},
        needs=Needs(cpus=threads),
        fatal=FATAL,
        definite=DEFINITE,
    )


def search_space(hardware: Hardware, widths: Sequence[int]) -> dict[str, tuple[Any, ...]]:
    """How many requests are answered at once: few finish each sooner, many begin each sooner."""
    return {"max_num_seqs": (1, 2, 8, 16, 32)}


def promising(hardware: Hardware) -> tuple[Json, ...]:
    """Nothing is known to be better than the default."""
    return ()


def infeasible(settings: Mapping[str, Any], max_model_len: int) -> str | None:
    return None
