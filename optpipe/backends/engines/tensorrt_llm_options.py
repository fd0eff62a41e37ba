"""What keys the installed TensorRT-LLM really has, asked of its own classes; and a check of a target against them.

python -m optpipe.backends.engines.tensorrt_llm_options      (in the toolchain: one line of JSON)
"""

from __future__ import annotations

import importlib
import json
import sys
import typing
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from optpipe.backends.engines.ask import Question, ask
from optpipe.backends.engines.tensorrt_llm import TensorRtLlm, flat
from optpipe.errors import EnvironmentMissing, Problem, did_you_mean
from optpipe.records import Json
from optpipe.rundir import read_json
from optpipe.toolchains import Toolchain

PACKAGE, ARGUMENTS = "tensorrt-llm", "tensorrt_llm.llmapi.llm_args"
CLASSES = {"pytorch": "TorchLlmArgs", "tensorrt": "TrtLlmArgs"}
QUESTION = Question(
    "TensorRT-LLM",
    "optpipe.backends.engines.tensorrt_llm_options",
    "tensorrt-llm-options",
    {"TRTLLM_NO_USAGE_STATS": "1"},
)

OURS = "optpipe sets it"
CODE = "it runs code that a recipe names"
CHECKPOINT = "the checkpoint says it"
REFUSED = {
    **dict.fromkeys(("model", "tokenizer", "revision", "tokenizer_revision", "backend", "mpi_session"), OURS),
    **dict.fromkeys(("skip_tokenizer_init", "postprocess_tokenizer_dir", "telemetry_config", "env_overrides"), OURS),
    **dict.fromkeys(("custom_tokenizer", "checkpoint_loader", "batched_logits_processor"), CODE),
    **dict.fromkeys(("ray_worker_extension_cls", "kv_connector_config"), CODE),
    **dict.fromkeys(("quant_config", "calib_config", "build_config", "model_kwargs", "load_format"), CHECKPOINT),
    "trust_remote_code": "say `model: {trust_remote_code: true}`",
}
OF_TARGET = {
    "max_seq_len": "max_model_len",
    "kv_cache_config.dtype": "kv_cache_dtype",
    "enable_chunked_prefill": "chunked_prefill",
    **{name: name for name in ("dtype", "tensor_parallel_size", "max_batch_size", "max_num_tokens")},
}
"""Keys that the target itself has, with its word for them."""


# ---------------------------------------------------------------- in the toolchain


def own_options() -> Json:
    """{"version", "pytorch": {key: keys below it or null}, "tensorrt": the same, null where there is no such class}."""
    from importlib.metadata import version

    arguments: Any = importlib.import_module(ARGUMENTS)
    found: Json = {"version": version(PACKAGE)}
    for backend, name in CLASSES.items():
        model = getattr(arguments, name, None)
        found[backend] = {key: below(one.annotation) for key, one in model.model_fields.items()} if model else None
    return found


def below(annotation: Any) -> list[str] | None:
    """The keys of the one model that an annotation names; None where it names none or several."""
    models = [one for one in (annotation, *typing.get_args(annotation)) if hasattr(one, "model_fields")]
    return sorted(models[0].model_fields) if len(models) == 1 else None


# ---------------------------------------------------------------- in the build


def shipped() -> Json:
    """The keys of 1.3 and, for its TensorRT backend, 1.2: for a plan that knows of no installation."""
    return dict(read_json(Path(__file__).with_suffix(".json")))


def version(chain: Toolchain) -> str:
    """The release in a toolchain; an image is asked once."""
    return chain.versions.get(PACKAGE) or str(installed(chain)["version"])


def installed(chain: Toolchain) -> Json:
    """Release and keys of this toolchain's TensorRT-LLM. Raises EnvironmentMissing where it does not say them."""
    if chain.kind == "interpreter" and PACKAGE not in chain.versions:
        hint = "name the Python of a TensorRT-LLM environment or container"
        text = f"{chain.origin} has no {PACKAGE} installed"
        raise EnvironmentMissing(text, place=f"toolchain {chain.name}", hint=hint)
    return ask(QUESTION, chain)


def check(target: TensorRtLlm, options: Json | None, place: str) -> tuple[Problem, ...]:
    """What is wrong with the target's `engine_args`, each with its key; None checks what holds for every release."""
    found = []
    for key in flat(target.engine_args):
        where = f"{place}.engine_args.{key}"
        problem = never(key, where) or (unknown(key, keys_of(target, options), where) if options else None)
        found += [problem] if problem else []
    return tuple(found)


def keys_of(target: TensorRtLlm, options: Json) -> Mapping[str, list[str] | None]:
    """Keys of the backend that the target has; of PyTorch's where it has none yet."""
    backend = "tensorrt" if target.backend == "tensorrt" else "pytorch"
    return dict(options[backend] or {})


def unknown_keys(target: TensorRtLlm, settings: Json) -> tuple[str, ...]:
    """Which of our own settings 1.3 does not have."""
    known = keys_of(target, shipped())
    return tuple(key for key in flat(settings) if unknown(key, known, key))


def never(key: str, where: str) -> Problem | None:
    """Keys that are never a recipe's to give."""
    outer = key.partition(".")[0]
    if outer in REFUSED:
        return Problem(where, f"{key} cannot be given: {REFUSED[outer]}", "leave it out")
    own = OF_TARGET.get(key) or (key if key in {one.name for one in fields(TensorRtLlm)} else None)
    return Problem(where, f"{key} is a key of the target itself", f"write `{own}:` beside `engine:`") if own else None


def unknown(key: str, known: Mapping[str, list[str] | None], where: str) -> Problem | None:
    """A key that this release does not have."""
    outer, dot, inner = key.partition(".")
    if outer not in known:
        return Problem(where, f"this TensorRT-LLM has no key {outer}", did_you_mean(outer, list(known)))
    children = known[outer]
    if dot and children is not None and inner.partition(".")[0] not in children:
        return Problem(where, f"{outer} has no key {inner}", did_you_mean(inner, children))
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(own_options()) + "\n")
