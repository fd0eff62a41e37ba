"""Checkpoints in GPTQ's own format, made by GPTQModel. Standard library only at import."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optpipe.backends.quantizers import checkpoint
from optpipe.backends.quantizers.scheme import OUTPUT_HEAD, Block, Select, grouped_problems, read
from optpipe.errors import Problem
from optpipe.records import Json

if TYPE_CHECKING:
    from optpipe.worker import Work

JOB, TOOLCHAIN = "quantize-gptqmodel", "gptqmodel"
REVISION = 1

KEPT_KEYS = ("bits", "group_size", "sym", "desc_act", "lm_head", "quant_method", "checkpoint_format", "pack_dtype")
"""Of the library's quantization_config: what engines read. The rest is how it was made, folders of this machine too."""


@dataclass(frozen=True)
class GptqModelGptq(Block):
    """GPTQ by GPTQModel, in GPTQ's own format, which vLLM, SGLang and ONNX Runtime GenAI read."""

    library: Literal["gptqmodel"]
    """Who quantizes."""
    method: Literal["gptq"]
    """Second-order weight quantization (https://arxiv.org/abs/2210.17323); activations stay bf16."""
    bits: int = 4
    """Bits per weight: 4 or 8, which engines read."""
    group_size: int = 128
    """Weights that share a scale; divides every layer's input size. -1 is one scale per output channel."""
    symmetric: bool = True
    """With the zero point in the middle; vLLM reads no other."""
    ignore: tuple[str | Select, ...] = OUTPUT_HEAD
    """Selectors of linear modules that stay in bf16."""
    dampening: float = 0.05
    """Share of the Hessian's mean diagonal added to it; the library raises it where it is too little."""
    activation_order: bool = True
    """Quantize the groups with the largest activations first; costs nothing at run time."""


Scheme = GptqModelGptq
SCHEMES: dict[str, type[Scheme]] = {"gptq": GptqModelGptq}


def validate(scheme: Scheme) -> tuple[Problem, ...]:
    """What is wrong with the values of one scheme; `place` is the field."""
    found = list(grouped_problems(scheme.bits, scheme.group_size, (4, 8)))
    if not 0 < scheme.dampening < 1:
        found.append(Problem("dampening", f"{scheme.dampening} is not between 0 and 1", "0.05 is usual"))
    return tuple(found)


def unmapped(scheme: Scheme, architecture: str) -> str | None:
    """GPTQ needs to know no layer's neighbours; what the library cannot take apart it says at once."""
    return None


def run(options: Json, work: Work) -> Json:
    """The `quantize-gptqmodel` job: `inputs` model and tokens -> a checkpoint folder and its record."""
    scheme = read(options, SCHEMES)
    base = work.inputs["model"]
    os.environ["GPTQMODEL_CPU_WORKERS"] = str(max(2, work.threads))  # it ends at once with fewer
    work.out.mkdir(parents=True, exist_ok=True)
    checkpoint.prepare(work.threads, work.seed)
    checkpoint.refuse_quantized(base)
    rows = checkpoint.tokens(work)
    chosen, skipped = checkpoint.choose_in(base, scheme.ignore)
    model = load(base, scheme, skipped)
    samples = [{"input_ids": row[None], "attention_mask": row.new_ones(1, len(row))} for row in rows]
    with watched(model, work):
        log = model.quantize(samples, batch_size=1, calibration_sort=None)
    model.save(str(work.out))
    finish(base, work.out)
    checkpoint.check_quantized(work.out, chosen)
    told: Json = {"method": scheme.method, "scheme": dataclasses.asdict(scheme)}
    told["losses"] = losses(log.get("gptq", []), chosen)
    return checkpoint.record("gptq", (chosen, skipped), rows, **told)


def load(base: Path, scheme: Scheme, skipped: list[str]) -> Any:
    """The library's model in bf16 with its configuration; modules are left out by their exact names."""
    import torch
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(
        bits=scheme.bits,
        group_size=scheme.group_size,
        sym=scheme.symmetric,
        desc_act=False,
        act_group_aware=scheme.activation_order,
        damp_percent=scheme.dampening,
        lm_head="lm_head" not in skipped,
        dynamic={f"-:^{re.escape(name)}$": {} for name in skipped if name != "lm_head"} or None,
        device="cuda" if torch.cuda.is_available() else "cpu",
        offload_to_disk=False,
        pack_impl="original",  # the others are compiled at their first use
    )
    return GPTQModel.load(str(base), config, dtype=torch.bfloat16)


@contextmanager
def watched(model: Any, work: Work) -> Iterator[None]:
    """Progress by the decoder layer that rows pass: the library goes through them once, in their order."""
    from torch.nn.modules.module import register_module_forward_pre_hook

    kinds = set(model.model._no_split_modules or ())
    layers = [module for module in model.model.modules() if type(module).__name__ in kinds]
    number = {id(layer): at for at, layer in enumerate(layers)}
    reached = 0

    def look(module: Any, _: Any) -> None:
        nonlocal reached
        at = number.get(id(module), 0)
        if at > reached:
            reached = at
            work.progress(reached, len(layers), "gptq: layers")

    work.progress(0, len(layers), "model loaded")
    hook = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        hook.remove()
    work.progress(len(layers), len(layers), "saving")


def losses(told: list[Json], chosen: list[str]) -> dict[str, float]:
    """{module: loss} from the library's log, which names layer and module apart and gives numbers as text."""
    found = {}
    for entry in told:
        end = f".{entry['layer']}.{entry['module']}"
        name = next((name for name in chosen if name.endswith(end)), None)
        if name and re.fullmatch(r"[0-9.]+(e-?[0-9]+)?", str(entry["loss"])):
            found[name] = float(entry["loss"])
    return found


def finish(base: Path, out: Path) -> None:
    """config.json of the base with what engines read of the library's; the other files as in the base."""
    theirs = json.loads((out / "config.json").read_text(encoding="utf-8"))["quantization_config"]
    told = {key: theirs[key] for key in KEPT_KEYS if key in theirs}
    if theirs.get("dynamic"):
        told["dynamic"] = theirs["dynamic"]
    told["meta"] = {"quantizer": theirs.get("meta", {}).get("quantizer", ["gptqmodel"])}
    checkpoint.beside(base, out)
    checkpoint.write_config(base, out, told)
