"""The `compile-tensorrt-llm` job, up to TensorRT-LLM 1.2: a checkpoint to an engine folder by `trtllm-build`.

Runs in TensorRT-LLM's toolchain; standard library only at import. Not run on hardware here: written against the
documented interface. input: `model` (the base, or ModelOpt's FP8, NVFP4 and INT4 AWQ). files: rank*.engine and
config.json as `trtllm-build` leaves them, and the checkpoint's own tokenizer beside them, as `LLM.save` puts it.

Two steps: the checkpoint in TensorRT-LLM's own format, by its own reader of Hugging Face folders, one rank for each
GPU; then `trtllm-build`. `--gather_context_logits`, because the engine is compared with transformers by logits.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.toolchains.trtllm import Wrong, builds, command, no_build, release
from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.records import Json
    from optpipe.worker import Work

REVISION = 1

OWN_CONFIG = "hf_quant_config.json"
ALGORITHMS = ("FP8", "NVFP4", "W4A16_AWQ", "W4A8_AWQ")
"""What of ModelOpt's exports an engine can be built from."""
TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json"),
    *("merges.txt", "tokenizer.model", "chat_template.jinja", "generation_config.json"),
)
LAST_LINES = 6


@dataclass(frozen=True)
class Options:
    """The largest sizes that the engine serves, and what it computes in."""

    max_model_len: int
    max_batch_size: int
    max_num_tokens: int
    tensor_parallel_size: int = 1
    dtype: str = "auto"
    kv_cache_dtype: str = "auto"


def run(options: Json, work: Work) -> Json:
    """Convert, build, check what was built, put the tokenizer beside it."""
    chosen, model = Options(**options), work.inputs["model"]
    version = able()
    algorithm = algorithm_of(model)
    work.progress(0, 3, "converting the checkpoint")
    converted = work.folder / "converted"
    logged(convert_command(model, converted, chosen), work)
    work.progress(1, 3, "trtllm-build")
    argv = build_command(command("trtllm-build", version), converted, work.out, chosen)
    logged(argv, work)
    shutil.rmtree(converted)
    work.progress(2, 3, "reading what was built")
    built = check(work.out, chosen, version)
    for name in TOKENIZER:
        if (model / name).is_file():
            shutil.copyfile(model / name, work.out / name)
    return {
        "quantization": algorithm,
        "version": version,
        "limits": {"max_model_len": int(built["max_seq_len"])},
        "build_config": {name: built[name] for name in ("max_batch_size", "max_num_tokens", "max_seq_len")},
        "command": " ".join(word.replace(str(work.folder), ".") for word in ["trtllm-build", *argv[1:]]),
    }


def able() -> str:
    """The release; Failure where it builds no engines, with what took their place."""
    try:
        version = release()
        if not builds(version):
            raise Failure(no_build(version), hint="leave `backend: tensorrt` out of the target")
        command("trtllm-build", version)
    except Wrong as wrong:
        raise Failure(str(wrong), hint="name the Python of a TensorRT-LLM 1.2 environment or container") from None
    return version


def algorithm_of(model: Path) -> str | None:
    """ModelOpt's word for what a checkpoint is; None for the base. Failure for what no engine is built from."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    stored = config.get("quantization_config")
    if not (model / OWN_CONFIG).is_file():
        if stored is None:
            return None
        text = f"engines are built from the base and ModelOpt's checkpoints, not from {stored.get('quant_method')}"
        raise Failure(text, hint="library: modelopt, or TensorRT-LLM 1.3, or `backend: pytorch`")
    own = json.loads((model / OWN_CONFIG).read_text(encoding="utf-8"))
    algorithm = (own.get("quantization") or {}).get("quant_algo")
    if algorithm not in ALGORITHMS:
        raise Failure(f"no engine is built from {algorithm} here", hint=f"one of {', '.join(ALGORITHMS)}")
    return str(algorithm)


def convert_command(model: Path, out: Path, chosen: Options) -> list[str]:
    """Conversion in a process of its own, whose GPU memory is free again before the build."""
    own = "optpipe.backends.compilers.tensorrt_llm_convert"
    words = ["-m", own, str(model), str(out), "--tp_size", str(chosen.tensor_parallel_size), "--dtype", chosen.dtype]
    return [sys.executable, *words, "--kv_cache_dtype", chosen.kv_cache_dtype]


def build_command(program: str, converted: Path, out: Path, chosen: Options) -> list[str]:
    """`trtllm-build` with its largest sizes."""
    sizes = ["--max_batch_size", str(chosen.max_batch_size), "--max_num_tokens", str(chosen.max_num_tokens)]
    sizes += ["--max_seq_len", str(chosen.max_model_len), "--workers", str(chosen.tensor_parallel_size)]
    place = ["--checkpoint_dir", str(converted), "--output_dir", str(out)]
    return [program, *place, *sizes, "--gather_context_logits"]


def logged(argv: list[str], work: Work) -> None:
    """Run a step; what it says goes to the job's log."""
    log = work.folder / "step.log"
    with log.open("wb") as file:
        ended = subprocess.run(argv, stdout=file, stderr=subprocess.STDOUT, cwd=work.folder, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(text)
    if ended.returncode:
        name = Path(argv[0]).name if argv[1] != "-m" else argv[2].rpartition(".")[2]
        last = " | ".join(text.strip().splitlines()[-LAST_LINES:])
        raise Failure(f"{name} ended with {ended.returncode}: {last}", transient=ended.returncode < 0)


def check(out: Path, chosen: Options, version: str) -> Any:
    """The engine's `build_config`; Failure where an engine is missing or is not what was asked for."""
    ranks = [f"rank{rank}.engine" for rank in range(chosen.tensor_parallel_size)]
    missing = [name for name in (*ranks, "config.json") if not (out / name).is_file()]
    if missing:
        raise Failure(f"trtllm-build left no {', '.join(missing)}")
    told = json.loads((out / "config.json").read_text(encoding="utf-8"))
    if told.get("version") != version:
        raise Failure(f"the engine says that it is of TensorRT-LLM {told.get('version')}, built by {version}")
    built = told["build_config"]
    wanted = {"max_batch_size": chosen.max_batch_size, "max_num_tokens": chosen.max_num_tokens}
    wanted["max_seq_len"] = chosen.max_model_len
    apart = [f"{name} {built.get(name)}, not {value}" for name, value in wanted.items() if built.get(name) != value]
    if apart:
        raise Failure(f"the engine is not what was asked for: {'; '.join(apart)}")
    return built
