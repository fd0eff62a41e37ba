"""What the `quantize` job does inside the toolchain: load, calibrate, save, check. Imports torch lazily."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from optpipe.backends.quantizers import llmcompressor as options
from optpipe.model.selectors import matched, selector_problems
from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.records import Json
    from optpipe.worker import Work

COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "spiece.model",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates",
    "generation_config.json",
)
"""What a checkpoint takes from its base byte for byte; the rest is config.json and safetensors."""


BATCH_TOKENS = 2048
"""Tokens of one of AWQ's passes: over fewer, its products of small matrices take a fifth longer."""


@dataclass
class Notes:
    """What the record tells beside the names: losses per module, and sentences a reader must know."""

    losses: dict[str, float] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)


def quantize(scheme: options.Scheme, work: Work) -> Json:
    """Quantize `work.inputs["model"]` by `scheme` into `work.out`; the record of the job."""
    base = work.inputs["model"]
    work.out.mkdir(parents=True, exist_ok=True)
    prepare(work.threads, work.seed)
    model = load(base)
    chosen, skipped = choose(model, scheme)
    refuse(model, scheme, chosen)
    rows = tokens(scheme, work) if scheme.needs_calibration else None
    notes = Notes()
    with watched(model, scheme, rows, work):
        calibrate(model, scheme, [*skipped], rows, notes)
    save(model, base, work.out)
    file_format = check(work.out, chosen)
    return {
        "method": scheme.method,
        "format": file_format,
        "layers": chosen,
        "count": len(chosen),
        "skipped": skipped,
        "losses": notes.losses,
        "tokens_used": 0 if rows is None else int(rows.numel()),
        "notes": notes.sentences,
    }


def prepare(threads: int, seed: int) -> None:
    """One thread count, one seed, no network, no progress bars in the log."""
    os.environ.update(TQDM_DISABLE="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    import numpy
    import torch
    import transformers

    torch.set_num_threads(threads)
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    transformers.utils.logging.disable_progress_bar()


def load(base: Path) -> Any:
    """The base in bf16. A generation configuration that transformers would refuse to write is left behind."""
    import torch
    from llmcompressor.modeling.moe.linearize import load_quantizable_moe
    from transformers import AutoModelForCausalLM, GenerationConfig

    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method")
        raise Failure(f"{base.name} is quantized already ({method})", hint="quantize its unquantized base")
    with load_quantizable_moe():
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.bfloat16, use_safetensors=True)
    model.generation_config = GenerationConfig()
    return model.eval()


def choose(model: Any, scheme: options.Scheme) -> tuple[list[str], list[str]]:
    """Names of the linear modules to quantize, and of those that stay."""
    import torch

    names = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    problems = selector_problems(scheme.ignore, names, "ignore")
    if problems:
        raise Failure("; ".join(p.message for p in problems), hint=problems[0].hint)
    skipped = list(matched(scheme.ignore, names))
    chosen = [name for name in names if name not in set(skipped)]
    if not chosen:
        raise Failure(f"ignore {list(scheme.ignore)} leaves none of {len(names)} linear modules to quantize")
    return chosen, skipped


def refuse(model: Any, scheme: options.Scheme, chosen: list[str]) -> None:
    """Fail before the work: tied heads, architectures without a mapping."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    named = next((name for name in chosen if model.get_submodule(name) is head), None)
    if tied and named:
        raise Failure(
            f"{named} shares its weights with the input embeddings: quantized, the model would grow",
            hint=f"ignore: [{named}]",
        )
    reason = options.unmapped(scheme, type(model).__name__)
    if reason:
        raise Failure(reason)


def tokens(scheme: options.Scheme, work: Work) -> Any:
    """Calibration ids, int64 [rows, length]."""
    import numpy
    import torch

    if "tokens" not in work.inputs:
        raise Failure("the method needs calibration text and has none", hint="add `calibration:` to the recipe")
    rows = torch.from_numpy(numpy.load(work.inputs["tokens"] / "tokens.npy").astype("int64"))
    if isinstance(scheme, options.Awq):
        rows = rows[: max(1, scheme.max_tokens // rows.shape[1])]
    return rows


def calibrate(model: Any, scheme: options.Scheme, ignore: list[str], rows: Any, notes: Notes) -> None:
    """llm-compressor's own passes over the model, in its order; `model` holds the result."""
    import llmcompressor
    from llmcompressor.modifiers.quantization import QuantizationModifier
    from llmcompressor.modifiers.transform.awq import AWQModifier
    from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
    from torch.utils.data import DataLoader

    from optpipe.backends.quantizers import llmcompressor_gptq

    def passes(modifiers: list[Any], dataset: Any = None, **more: Any) -> None:
        llmcompressor.oneshot(model=model, recipe=modifiers, dataset=dataset, shuffle_calibration_samples=False, **more)

    count = together(*rows.shape) if isinstance(scheme, options.Awq) else 1
    data = None if rows is None else DataLoader([{"input_ids": row} for row in rows], batch_size=count)
    common = {"config_groups": groups(scheme), "ignore": ignore}
    if isinstance(scheme, options.SmoothQuant):
        passes([SmoothQuantModifier(smoothing_strength=scheme.strength)], data, pipeline="basic")
    if by_gptq(scheme):
        passes([llmcompressor_gptq.modifier(scheme, common, notes)], data)
    elif isinstance(scheme, options.Awq):
        unpinned()
        passes([AWQModifier(n_grid=scheme.grid), QuantizationModifier(**common)], data)
    else:
        passes([QuantizationModifier(**common)])


def together(rows: int, length: int) -> int:
    """Rows per forward pass: a divisor of `rows`, so that all passes are alike, up to BATCH_TOKENS tokens."""
    return max(n for n in range(1, rows + 1) if n == 1 or (rows % n == 0 and n * length <= BATCH_TOKENS))


def by_gptq(scheme: options.Scheme) -> TypeGuard[options.Gptq | options.SmoothQuant]:
    """Whether the weights are rounded by GPTQ, not to nearest."""
    return isinstance(scheme, options.Gptq) or (isinstance(scheme, options.SmoothQuant) and scheme.weights == "gptq")


def groups(scheme: options.Scheme) -> dict[str, Any]:
    """compressed-tensors' config group of a scheme, spelt out: the presets only know groups of 128."""
    per_token = {"strategy": "token", "dynamic": True, "symmetric": True}
    per_channel = {"strategy": "channel", "symmetric": True, "dynamic": False}
    group: dict[str, Any] = {"targets": ["Linear"]}
    if isinstance(scheme, options.Fp8):
        kind = {"num_bits": 8, "type": "float"}
        group |= {"weights": {**kind, **per_channel}, "input_activations": {**kind, **per_token}}
    elif isinstance(scheme, (options.SmoothQuant, options.Int8)):
        kind = {"num_bits": 8, "type": "int"}
        group |= {"weights": {**kind, **per_channel}, "input_activations": {**kind, **per_token}}
    else:
        channel = scheme.group_size == -1
        size = {"strategy": "channel"} if channel else {"strategy": "group", "group_size": scheme.group_size}
        weights = {"num_bits": scheme.bits, "type": "int", "symmetric": scheme.symmetric, "dynamic": False}
        group["weights"] = {**weights, **size}
    return {"group_0": group}


def unpinned() -> None:
    """AWQ pins its cached activations for a GPU and crashes where there is none."""
    import torch
    from llmcompressor.pipelines.cache import IntermediatesCache

    if not torch.accelerator.is_available():
        IntermediatesCache.pin_memory = lambda self, *names, **more: None


@contextmanager
def watched(model: Any, scheme: options.Scheme, rows: Any, work: Work) -> Iterator[None]:
    """Progress from the calls of the decoder layers: each row passes each layer a known number of times."""
    kinds = set(model._no_split_modules or ())
    layers = [module for module in model.modules() if type(module).__name__ in kinds]
    rounds = 2 if by_gptq(scheme) or isinstance(scheme, options.Awq) else 0
    rounds += isinstance(scheme, options.SmoothQuant)
    total = max(1, len(layers) * rounds * (0 if rows is None else len(rows)))
    done, told = 0, 0.0

    def count(module: Any, args: Any, output: Any) -> None:
        nonlocal done, told
        done += (output[0] if isinstance(output, tuple) else output).shape[0]
        now = time.monotonic()
        if now - told > 1:
            told = now
            work.progress(min(done, total), total, f"{scheme.method}: {len(layers)} layers, {rounds} passes")

    work.progress(0, total, "model loaded")
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    work.progress(done if rounds else total, total, "saving")


def save(model: Any, base: Path, out: Path) -> None:
    """config.json and safetensors by the library, the rest byte for byte from the base; nothing else."""
    model.save_pretrained(out, save_compressed=True)
    for path in out.iterdir():
        if path.name == "config.json" or ".safetensors" in path.suffixes:
            path.chmod(0o644)
        else:
            path.unlink()
    for name in [*COPIED, *remote_code(base)]:
        source = base / name
        if source.is_dir():
            shutil.copytree(source, out / name)
        elif source.exists():
            shutil.copyfile(source, out / name)


def remote_code(base: Path) -> list[str]:
    """The .py files beside the model that its `auto_map` names; a missing one is an error."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if "auto_map" not in config:
        return []
    values = [str(value) for value in config["auto_map"].values()]
    wanted = {f"{value.split('.')[0]}.py" for value in values if "--" not in value}
    missing = sorted(name for name in wanted if not (base / name).is_file())
    if missing:
        raise Failure(f"auto_map in config.json names {', '.join(missing)}, which the model folder lacks")
    return sorted(path.name for path in base.glob("*.py"))


def check(out: Path, chosen: list[str]) -> str:
    """Every chosen module is really quantized in the files; the checkpoint's format."""
    from safetensors import safe_open

    kept: dict[str, str] = {}
    for path in sorted(out.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            kept |= {name: file.get_slice(name).get_dtype() for name in file.keys()}  # noqa: SIM118
    found = {name.rpartition(".")[0] for name in kept if quantized(name.rpartition(".")[0], kept)}
    if len(found) < len(chosen):  # counted: experts are saved under the names that their architecture uses
        whole = [name for name in chosen if name not in found]
        shown = ", ".join(whole[:3]) + (", ..." if len(whole) > 3 else "")
        raise Failure(f"{len(whole)} of {len(chosen)} modules were left unquantized: {shown}")
    config = json.loads((out / "config.json").read_text(encoding="utf-8"))
    return str(config["quantization_config"]["format"])


def quantized(name: str, kept: dict[str, str]) -> bool:
    narrow = kept.get(f"{name}.weight_packed") == "I32" or kept.get(f"{name}.weight") in ("I8", "F8_E4M3")
    return narrow and f"{name}.weight_scale" in kept
