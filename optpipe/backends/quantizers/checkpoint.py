"""What every library's body does around its own passes: seeds, ids, the choice of modules, the files beside weights.

Imports torch lazily.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.backends.quantizers.scheme import Select
from optpipe.model.linears import quantizable
from optpipe.model.selectors import matched, selector_problems
from optpipe.worker import Failure

if TYPE_CHECKING:
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
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
)
"""What a checkpoint takes from its base byte for byte; the rest is config.json and safetensors."""


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


def refuse_quantized(base: Path) -> None:
    """Fail where the base is quantized already."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        method = config["quantization_config"].get("quant_method")
        raise Failure(f"{base.name} is quantized already ({method})", hint="quantize its unquantized base")


def choose(model: Any, ignore: Sequence[str | Select]) -> tuple[list[str], list[str]]:
    """Names of the linear modules to quantize, and of those that stay; what is no layer of the text model does."""
    import torch

    every = [name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)]
    names = [name for name in every if quantizable(name)]
    problems = selector_problems(ignore, names, "ignore")
    if problems:
        raise Failure("; ".join(p.message for p in problems), hint=problems[0].hint)
    kept = set(matched(ignore, names)) | (set(every) - set(names))
    chosen = [name for name in every if name not in kept]
    if not chosen:
        raise Failure(f"ignore {list(ignore)} leaves none of {len(names)} linear modules to quantize")
    return chosen, [name for name in every if name in kept]


def refuse_tied(model: Any, chosen: Sequence[str]) -> None:
    """Fail where a module to quantize shares its weights with the input embeddings."""
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    tied = head is not None and head.weight is embedding.weight
    named = next((name for name in chosen if model.get_submodule(name) is head), None)
    if tied and named:
        raise Failure(
            f"{named} shares its weights with the input embeddings: quantized, the model would grow",
            hint=f"ignore: [{named}]",
        )


def tokens(work: Work) -> Any:
    """Calibration ids, int64 [rows, length]."""
    import numpy
    import torch

    if "tokens" not in work.inputs:
        raise Failure("the method needs calibration text and has none", hint="add `calibration:` to the recipe")
    return torch.from_numpy(numpy.load(work.inputs["tokens"] / "tokens.npy").astype("int64"))


def beside(base: Path, out: Path) -> None:
    """Of what a library wrote, config.json and safetensors stay; the rest comes byte for byte from the base."""
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
