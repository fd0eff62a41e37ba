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


def choose_in(base: Path, ignore: Sequence[str | Select]) -> tuple[list[str], list[str]]:
    """`choose` and `refuse_tied` before anything is loaded, on a model without weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base))
    model.tie_weights()
    chosen, skipped = choose(model, ignore)
    refuse_tied(model, chosen)
    return chosen, skipped


def record(form: str, modules: tuple[Sequence[str], Sequence[str]], rows: Any, **more: Json) -> Json:
    """What every quantize job says: `modules` are those that it chose and those that it skipped; `more` is its own."""
    chosen, skipped = modules
    counted = 0 if rows is None else int(rows.numel())
    found: Json = {"format": form, "layers": chosen, "count": len(chosen), "skipped": skipped, "losses": {}}
    return {**found, "tokens_used": counted, "notes": [], **more}


def tokens(work: Work) -> Any:
    """Calibration ids, int64 [rows, length]."""
    import numpy
    import torch

    if "tokens" not in work.inputs:
        raise Failure("the method needs calibration text and has none", hint="add `calibration:` to the recipe")
    return torch.from_numpy(numpy.load(work.inputs["tokens"] / "tokens.npy").astype("int64"))


def beside(base: Path, out: Path, also: Sequence[str] = ()) -> None:
    """Of what a library wrote, config.json, safetensors and `also` stay; the rest is byte for byte the base's."""
    for path in out.iterdir():
        if path.name in ("config.json", *also) or ".safetensors" in path.suffixes:
            path.chmod(0o644)
        elif path.is_dir():
            shutil.rmtree(path)
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


def write_config(base: Path, out: Path, quantization: Json) -> None:
    """config.json as in the base, with `quantization_config`: what else a library changes there is dropped."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    text = json.dumps({**config, "quantization_config": quantization}, indent=2)
    (out / "config.json").write_text(text + "\n", encoding="utf-8")


def check_quantized(out: Path, chosen: Sequence[str]) -> None:
    """Fail unless every chosen module is really quantized in the files."""
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


def quantized(name: str, kept: dict[str, str]) -> bool:
    """Whether a module's tensors ({name: dtype}) are packed or 8-bit codes with their scales."""
    packed = kept.get(f"{name}.weight_packed") in ("I32", "U8") or kept.get(f"{name}.weight") in ("I8", "U8", "F8_E4M3")
    return (packed and f"{name}.weight_scale" in kept) or (
        kept.get(f"{name}.qweight") == "I32" and f"{name}.scales" in kept
    )
