"""TensorRT-LLM, written against its documented interface and not run on hardware here: the target's options, the
YAML of `trtllm-serve --config`, the command.

Two generations, told apart by the version that is found. From 1.3 on the checkpoint is served as it is (PyTorch
backend); up to 1.2 `trtllm-build` makes an engine folder first. Standard library only. Names of options as in the
source of 1.2 and 1.3: llmapi/llm_args.py, commands/serve.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from optpipe.backends.engines.files import yaml_text
from optpipe.errors import Problem
from optpipe.records import Artifact, Compiling, EngineSpec, Hardware, Json, Needs, Tool
from optpipe.toolchains import Toolchain
from optpipe.toolchains.trtllm import builds, no_build

PACKAGES: tuple[str, ...] = ("tensorrt-llm",)
LAUNCHER = "optpipe.backends.engines.tensorrt_llm_run"
TOOLCHAIN = "tensorrt_llm"
UNSEEN = "not run on hardware here: optpipe was tested against TensorRT-LLM's documented interface with stand-ins"
NOTES: tuple[str, ...] = (UNSEEN,)
OFFLINE: Tool | None = Tool("trtllm-bench", "offline-tensorrt-llm")
READY_S = 3600.0
"""Loading, autotuning, capturing graphs."""
BATCH, TOKENS, LENGTH = 256, 8192, 2048
"""Sizes that an engine is built for where the target names none."""
WORKERS = r"mpi4py\.futures"
FATAL = (
    r"[Aa]ddress already in use",
    r"Failed to bind socket",
    r"Executor worker (died|returned error)",
    r"(CUDA out of memory|torch\.(cuda\.)?OutOfMemoryError)",
    r"MPI_ABORT was invoked",
    r"optpipe: .*",
)
DEFINITE = (
    r"Extra inputs are not permitted",
    r"\d+ validation errors? for \w*LlmArgs",
    r"No such option: --\w+",
    r"Unsupported (weights_quant_strategy|inputs_quant_strategy|quant_bits|group_size)",
    r"Unknown architecture",
    r"optpipe: .*",
)


@dataclass(frozen=True)
class TensorRtLlm:
    """Serve with TensorRT-LLM, from an environment of your own. What stands here can change the model's numbers or
    is built into an engine, so it belongs to the candidate."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}

    engine: Literal["tensorrt_llm"] = "tensorrt_llm"
    """Which engine."""
    backend: Literal["auto", "pytorch", "tensorrt"] = "auto"
    """`pytorch` serves the checkpoint as it is; `tensorrt` an engine that `trtllm-build` makes, up to release 1.2;
    auto: the first from 1.3 on, the second before."""
    dtype: Literal["auto", "bfloat16", "float16"] = "auto"
    """Type of activations and unquantized weights; auto is the checkpoint's own."""
    kv_cache_dtype: Literal["auto", "fp8", "nvfp4"] = "auto"
    """Type of the KV cache; auto is what the checkpoint says, else that of the activations."""
    tensor_parallel_size: int = 1
    """GPUs that share each layer."""
    max_model_len: int | None = None
    """Tokens of the longest sequence (its max_seq_len); by default what the model allows, and 2048 in an engine."""
    max_batch_size: int | None = None
    """Most requests at once; by default its own 2048, and 256 in an engine."""
    max_num_tokens: int | None = None
    """Most tokens of one step; by default 8192."""
    chunked_prefill: bool = False
    """Cut long prompts into pieces; may be tuned too."""
    cuda_graphs: bool | None = None
    """Capture CUDA graphs with padded batches, or none at all; by default as TensorRT-LLM does."""
    engine_args: Json = field(default_factory=dict)
    """Further keys of `trtllm-serve --config`, nested or with dots (`kv_cache_config.host_cache_size`); checked
    against the release that is found."""


# ---------------------------------------------------------------- the configuration file


def config(target: TensorRtLlm, settings: Mapping[str, Any]) -> Json:
    """Keys of `trtllm-serve --config`: the target, its free `engine_args`, then the tuned settings.

    Blocks are not reused unless somebody says so: where a prefix is found in the cache, TensorRT-LLM answers with
    the logits of the rest alone, and the engine is compared with transformers by the logits of whole prompts.
    """
    own: Json = {
        "tensor_parallel_size": target.tensor_parallel_size,
        "max_seq_len": target.max_model_len,
        "max_batch_size": target.max_batch_size,
        "max_num_tokens": target.max_num_tokens,
        "enable_chunked_prefill": target.chunked_prefill or None,
        "kv_cache_config.enable_block_reuse": False,
    }
    if target.backend != "tensorrt":  # an engine has them built in, and its keys are others
        own["dtype"] = None if target.dtype == "auto" else target.dtype
        own["kv_cache_config.dtype"] = None if target.kv_cache_dtype == "auto" else target.kv_cache_dtype
        own |= graphs(target)
    return flags({**own, **flat(target.engine_args), **flat(settings)})


def graphs(target: TensorRtLlm) -> Json:
    """`cuda_graph_config`: null switches graphs off."""
    if target.cuda_graphs is None:
        return {}
    return {"cuda_graph_config.enable_padding": True} if target.cuda_graphs else {"cuda_graph_config": None}


def flat(settings: Mapping[str, Any], above: str = "") -> Json:
    """Nested keys with dots, so that later ones override single earlier ones."""
    found: Json = {}
    for name, value in settings.items():
        nested = isinstance(value, Mapping) and value and name.endswith("_config")
        found |= flat(value, f"{above}{name}.") if nested else {f"{above}{name}": value}
    return found


def flags(settings: Mapping[str, Any]) -> Json:
    """Settings as the file wants them: nested, no nulls but the one that switches CUDA graphs off."""
    written: Json = {}
    for name, value in flat(settings).items():
        outer, dot, inner = name.partition(".")
        if value is None and name != "cuda_graph_config":
            continue
        if dot:
            before = written.get(outer)
            written[outer] = {**(before if isinstance(before, dict) else {}), inner: value}
        else:
            written[name] = value
    return dict(sorted(written.items()))


# ---------------------------------------------------------------- the command


def argv(model: str, served_name: str) -> tuple[str, ...]:
    """The launcher, which knows in the toolchain which release it is: `tensorrt_llm_run.py`."""
    place = ("--host", "{host}", "--port", "{port}", "--served-model-name", served_name)
    return ("-m", LAUNCHER, "serve", model, "--config", "{config}", *place)


def environment() -> dict[str, str]:
    return {"TRTLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": "{source}"}


def toolchain(hardware: Hardware) -> str:
    """The name of the toolchain: an interpreter or image of the user's, or the commands on PATH."""
    return TOOLCHAIN


def devices(flat: Mapping[str, Any]) -> int:
    """GPUs that one engine of this configuration takes."""
    return int(flat.get("tensor_parallel_size") or 1) * int(flat.get("pipeline_parallel_size") or 1)


def spec(
    title: str,
    target: TensorRtLlm,
    model: Artifact,
    settings: Mapping[str, Any],
    hardware: Hardware,
    threads: int = 1,
) -> EngineSpec:
    """Everything that a session needs to serve `model` so: a checkpoint, or the engine that was built."""
    keys = config(target, settings)
    return EngineSpec(
        title=title,
        engine="tensorrt_llm",
        toolchain=toolchain(hardware),
        model=model,
        served_name=title,
        config=keys,
        config_text=yaml_text(keys),
        argv=argv(str(model.path), title),
        environment=environment(),
        needs=Needs(cpus=threads, gpus=devices(keys) if hardware.gpus else 0),
        ready_s=READY_S,
        fatal=FATAL,
        definite=DEFINITE,
        workers=WORKERS,
    )


# ---------------------------------------------------------------- what can be tuned, what is needed


def search_space(hardware: Hardware, widths: Sequence[int]) -> dict[str, tuple[Any, ...]]:
    """Settings that do not change the model's numbers, with their choices; its default is not repeated."""
    space: dict[str, tuple[Any, ...]] = {
        "max_batch_size": (32, 64, 128, 256, 512, 1024),
        "max_num_tokens": (1024, 2048, 4096, 16384, 32768),
        "kv_cache_config.free_gpu_memory_fraction": (0.8, 0.85, 0.95),
        "enable_chunked_prefill": (True,),
        "scheduler_config.capacity_scheduler_policy": ("MAX_UTILIZATION",),
    }
    if widths:
        space["tensor_parallel_size"] = tuple(widths)
    return space


def promising(hardware: Hardware) -> tuple[Json, ...]:
    """Nothing has been seen to be."""
    return ()


def infeasible(settings: Mapping[str, Any], max_model_len: int) -> str | None:
    """Why TensorRT-LLM would refuse these settings together, or None."""
    tokens, batch = settings.get("max_num_tokens"), settings.get("max_batch_size")
    if tokens is not None and batch is not None and tokens < batch:
        return f"max_num_tokens {tokens} is below max_batch_size {batch}"
    if tokens is not None and tokens < max_model_len and not settings.get("enable_chunked_prefill"):
        return f"without chunked prefill max_num_tokens {tokens} is below length {max_model_len}"
    return None


# ---------------------------------------------------------------- what the line asks


def problems(target: TensorRtLlm, place: str, managed: bool) -> tuple[Problem, ...]:
    """What is wrong with a target whatever the model is; keys are those of 1.3 where no other is named."""
    from optpipe.backends.engines import tensorrt_llm_options as options

    found = list(options.check(target, options.shipped() if managed else None, place))
    for name in ("tensor_parallel_size", "max_batch_size", "max_num_tokens"):
        value = getattr(target, name)
        if value is not None and value < 1:
            found.append(Problem(f"{place}.{name}", f"{value} is not above 0", "leave it out"))
    if target.backend == "tensorrt" and target.kv_cache_dtype == "nvfp4":
        text = "an engine of TensorRT has no NVFP4 KV cache"
        found.append(Problem(f"{place}.kv_cache_dtype", text, "kv_cache_dtype: fp8"))
    return tuple(found)


def refused(target: TensorRtLlm, place: str, chain: Toolchain, hardware: Hardware) -> tuple[Problem, ...]:
    """What the release that was found does not take. EnvironmentMissing where there is none in the toolchain."""
    from optpipe.backends.engines import tensorrt_llm_options as options

    found = options.installed(chain)
    if target.backend == "tensorrt" and not builds(found["version"]):
        return (Problem(f"{place}.backend", no_build(found["version"]), "leave `backend` out, or TensorRT-LLM 1.2"),)
    own = settled(target, chain)
    if own.backend == "tensorrt" and own.kv_cache_dtype == "nvfp4":
        return (Problem(f"{place}.kv_cache_dtype", "an engine of TensorRT has no NVFP4 KV cache", "fp8"),)
    return options.check(own, found, place)


def settled(target: TensorRtLlm, chain: Toolchain) -> TensorRtLlm:
    """The target with the backend that the release which was found has."""
    from optpipe.backends.engines import tensorrt_llm_options as options

    if target.backend != "auto":
        return target
    return replace(target, backend="tensorrt" if builds(options.version(chain)) else "pytorch")


def here(
    target: TensorRtLlm, hardware: Hardware, release: str | None
) -> Iterator[tuple[str, str, str | None, str]]:
    """Whether the release that was found has the backend, and its backend the KV cache."""
    if release is None:
        return
    engine = target.backend == "tensorrt" or (target.backend == "auto" and builds(release))
    reason = no_build(release) if engine and not builds(release) else None
    yield "backend", f"backend: {target.backend} in TensorRT-LLM {release}", reason, "leave `backend` out"
    if engine and target.kv_cache_dtype == "nvfp4":
        text = "an engine of TensorRT has no NVFP4 KV cache"
        yield "kv_cache_dtype", f"nvfp4 in TensorRT-LLM {release}", text, "kv_cache_dtype: fp8"


def compiling(target: TensorRtLlm, scheme: Json | None, hardware: Hardware) -> Compiling:
    """An engine folder up to 1.2; nothing from 1.3 on, where the engine warms up and tunes itself at its start."""
    if target.backend != "tensorrt":
        return Compiling("checkpoint as it is; kernels are tuned and graphs captured at the engine's start")
    limits = {
        "max_model_len": target.max_model_len or LENGTH,
        "max_batch_size": target.max_batch_size or BATCH,
        "max_num_tokens": target.max_num_tokens or TOKENS,
        "tensor_parallel_size": target.tensor_parallel_size,
    }
    own = {"dtype": target.dtype, "kv_cache_dtype": target.kv_cache_dtype}
    return Compiling("engine by trtllm-build", kind="compile-tensorrt-llm", options={**limits, **own}, limits=limits)
