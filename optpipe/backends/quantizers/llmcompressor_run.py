"""What the `quantize` job does inside the toolchain: load, choose, save, check. Imports torch lazily."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.backends.quantizers import llmcompressor_schemes as schemes
from optpipe.backends.quantizers.llmcompressor import unmapped
from optpipe.backends.quantizers.llmcompressor_calibrate import Notes, calibrate, first_rows, watched
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


def quantize(scheme: schemes.Scheme, work: Work) -> Json:
    """Quantize `work.inputs["model"]` by `scheme` into `work.out`; the record of the job."""
    base = work.inputs["model"]
    work.out.mkdir(parents=True, exist_ok=True)
    prepare(work.threads, work.seed)
    model = load(base)
    chosen, skipped = choose(model, scheme)
    eight = in_int8(scheme, chosen)
    refuse(model, scheme, chosen)
    rows = tokens(scheme, work) if scheme.needs_calibration else None
    notes = Notes()
    with watched(model, scheme, rows, work):
        calibrate(model, scheme, {"ignore": skipped, "int8": eight}, rows, notes)
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


def choose(model: Any, scheme: schemes.Scheme) -> tuple[list[str], list[str]]:
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


def in_int8(scheme: schemes.Scheme, chosen: list[str]) -> list[str]:
    """Names of the modules that become INT8 where the rest gets fewer bits."""
    if not isinstance(scheme, schemes.Mixed):
        return []
    problems = selector_problems(scheme.int8, chosen, "int8")
    if problems:
        raise Failure("; ".join(p.message for p in problems), hint=problems[0].hint)
    eight = list(matched(scheme.int8, chosen))
    if len(eight) == len(chosen):
        raise Failure(f"int8 {list(scheme.int8)} leaves none of {len(chosen)} modules for {scheme.bits} bits")
    return eight


def refuse(model: Any, scheme: schemes.Scheme, chosen: list[str]) -> None:
    """Fail before the work: tied heads, architectures without a mapping, heads that no rotation fits."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    named = next((name for name in chosen if model.get_submodule(name) is head), None)
    if tied and named:
        raise Failure(
            f"{named} shares its weights with the input embeddings: quantized, the model would grow",
            hint=f"ignore: [{named}]",
        )
    reason = unmapped(scheme, type(model).__name__)
    if isinstance(scheme, schemes.SpinQuant) and not reason:
        from compressed_tensors.utils import get_head_dim

        size = get_head_dim(model.config)
        if size & (size - 1):
            reason = f"spinquant's rotations need a head size that is a power of two, not {size}"
    if reason:
        raise Failure(reason)


def tokens(scheme: schemes.Scheme, work: Work) -> Any:
    """Calibration ids, int64 [rows, length]."""
    import numpy
    import torch

    if "tokens" not in work.inputs:
        raise Failure("the method needs calibration text and has none", hint="add `calibration:` to the recipe")
    rows = torch.from_numpy(numpy.load(work.inputs["tokens"] / "tokens.npy").astype("int64"))
    return first_rows(rows, scheme.max_tokens) if isinstance(scheme, schemes.Awq) else rows


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
    narrow = kept.get(f"{name}.weight_packed") in ("I32", "U8") or kept.get(f"{name}.weight") in ("I8", "F8_E4M3")
    return narrow and f"{name}.weight_scale" in kept
