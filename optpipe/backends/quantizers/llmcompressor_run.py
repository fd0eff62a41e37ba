"""What the `quantize` job does inside the toolchain: load, choose, save, check. Imports torch lazily."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.backends.quantizers import llmcompressor_schemes as schemes
from optpipe.backends.quantizers.checkpoint import (
    beside,
    check_quantized,
    choose,
    prepare,
    record,
    refuse_quantized,
    refuse_tied,
    tokens,
)
from optpipe.backends.quantizers.llmcompressor import unmapped
from optpipe.backends.quantizers.llmcompressor_calibrate import Notes, by_gptq, calibrate, first_rows, watched
from optpipe.backends.quantizers.llmcompressor_experts import sentences
from optpipe.model import loading
from optpipe.model.linears import OTHER_PARTS, is_other_part
from optpipe.model.selectors import matched, selector_problems
from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.records import Json
    from optpipe.worker import Work


def quantize(scheme: schemes.Scheme, work: Work) -> Json:
    """Quantize `work.inputs["model"]` by `scheme` into `work.out`; the record of the job."""
    base = work.inputs["model"]
    work.out.mkdir(parents=True, exist_ok=True)
    prepare(work.threads, work.seed)
    model = load(base)
    chosen, skipped = choose(model, scheme.ignore)
    eight = in_int8(scheme, chosen)
    refuse(model, scheme, chosen)
    rows = tokens(work) if scheme.needs_calibration else None
    if isinstance(scheme, schemes.Awq):
        rows = first_rows(rows, scheme.max_tokens)
    notes = Notes()
    with watched(model, scheme, rows, work):
        calibrate(model, scheme, {"ignore": skipped, "int8": eight}, rows, notes)
    save(model, base, work.out)
    check_quantized(work.out, chosen)
    config = json.loads((work.out / "config.json").read_text(encoding="utf-8"))
    experts = notes.coverage.record(rounded=by_gptq(scheme))
    told: Json = {"method": scheme.method, "experts": experts, "losses": notes.losses}
    told["notes"] = [*sentences(experts), *notes.sentences]
    return record(str(config["quantization_config"]["format"]), (chosen, skipped), rows, **told)


def load(base: Path) -> Any:
    """The base in bf16. A generation configuration that transformers would refuse to write is left behind."""
    import torch
    from transformers import GenerationConfig

    refuse_quantized(base)
    model = loading.load(base, torch.bfloat16, apart=True)
    model.generation_config = GenerationConfig()
    return model


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
    refuse_tied(model, chosen)
    reason = unmapped(scheme, type(model).__name__)
    if isinstance(scheme, schemes.SpinQuant) and not reason:
        from compressed_tensors.utils import get_head_dim

        size = get_head_dim(model.config)
        if size & (size - 1):
            reason = f"spinquant's rotations need a head size that is a power of two, not {size}"
    if reason:
        raise Failure(reason)


def save(model: Any, base: Path, out: Path) -> None:
    """config.json and safetensors by the library, the rest byte for byte from the base; nothing else."""
    model.save_pretrained(out, save_compressed=True)
    name_other_parts(out / "config.json")
    beside(base, out)


def name_other_parts(path: Path) -> None:
    """What stays beside the text model is ignored by the part's name: loaders put other prefixes before it."""
    config = json.loads(path.read_text(encoding="utf-8"))
    written = config["quantization_config"]
    kept = [name for name in written["ignore"] if not is_other_part(name)]
    parts = {found[2] for name in written["ignore"] if (found := OTHER_PARTS.search(name))}
    if parts:
        written["ignore"] = [*kept, *(rf"re:(.*\.)?{part}\..*" for part in sorted(parts))]
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
