"""The old environment that auto-gptq and autoawq need: how a base is read there, watched and saved.

Imports torch lazily. transformers 4 reads a configuration of transformers 5 without a word and takes defaults for
what it does not find (rope_theta 10000): what has moved is put back to its old place, and looked at once read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.backends.quantizers import checkpoint
from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.records import Json
    from optpipe.worker import Work

TOOLCHAIN = "legacy"
FAMILIES = ("Llama", "Mistral", "Qwen2")
"""The `...ForCausalLM` that both libraries were seen to quantize in this environment."""


def unmapped(library: str, architecture: str) -> str | None:
    """Why a library of this environment can't quantize an architecture."""
    if architecture.removesuffix("ForCausalLM") in FAMILIES:
        return None
    return f"{library} has ended and was not tried on {architecture}; {', '.join(FAMILIES)} are known to work"


def rope(config: Json) -> Json:
    """The keys of transformers 4 for the rotary embedding of a configuration of either version."""
    parameters = config.get("rope_parameters")
    if not parameters:
        return {}
    if any(isinstance(value, dict) for value in parameters.values()):
        kinds = ", ".join(parameters)
        raise Failure(f"rope_parameters differ by layer type ({kinds}), which transformers 4 can't read")
    found = {key: parameters[key] for key in ("rope_theta", "partial_rotary_factor") if key in parameters}
    scaling = {key: value for key, value in parameters.items() if key not in found}
    return found | ({} if scaling.get("rope_type", "default") == "default" else {"rope_scaling": scaling})


def load(base: Path) -> Any:
    """The base in bf16, by transformers 4."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    checkpoint.refuse_quantized(base)
    raw = json.loads((base / "config.json").read_text(encoding="utf-8"))
    old = {key: value for key, value in raw.items() if key not in ("model_type", "rope_parameters", "dtype")}
    config = AutoConfig.for_model(raw["model_type"], **(old | rope(raw)))
    for key, value in rope(raw).items():
        if getattr(config, key, None) != value:
            raise Failure(f"transformers 4 reads {key} as {getattr(config, key, None)}, the model says {value}")
    model, info = AutoModelForCausalLM.from_pretrained(
        base, config=config, torch_dtype=torch.bfloat16, use_safetensors=True, output_loading_info=True
    )
    if info["missing_keys"] or info["mismatched_keys"]:
        names = sorted({*info["missing_keys"], *(str(key[0]) for key in info["mismatched_keys"])})
        raise Failure(f"{len(names)} tensors are missing or have another shape in the files: {', '.join(names[:3])}")
    model.config.use_cache = False
    return model.eval()


@contextmanager
def watched(layers: Sequence[Any], rows: int, passes: int, what: str, work: Work) -> Iterator[None]:
    """Progress from the calls of the decoder layers; every row must pass every layer `passes` times."""
    total, done, told = len(layers) * rows * passes, 0, 0.0

    def count(module: Any, args: Any, output: Any) -> None:
        nonlocal done, told
        done += (output[0] if isinstance(output, tuple) else output).shape[0]
        now = time.monotonic()
        if now - told > 1:
            told = now
            work.progress(min(done, total), total, what)

    work.progress(0, total, "model loaded")
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
    if done != total:  # autoawq drops rows that are too long without a word
        raise Failure(f"{done} passes of calibration rows through the layers, {total} were due: rows were left out")
    work.progress(done, total, "saving")


def save(model: Any, base: Path, out: Path, chosen: Sequence[str], quantization: Json) -> None:
    """Weights as the library left them; all else as in the base, with the rotary base where old readers look for it."""
    from huggingface_hub import save_torch_state_dict

    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    before = tensor_names(base)
    for module in chosen:  # auto-gptq gives every layer a bias of zeros
        if f"{module}.bias" not in before:
            state.pop(f"{module}.bias", None)
    if model.config.tie_word_embeddings:
        for name in model._tied_weights_keys or ():
            state.pop(name, None)
    expect(state, before, chosen)
    save_torch_state_dict(state, out, max_shard_size="5GB", metadata={"format": "pt"})
    checkpoint.beside(base, out)
    raw = json.loads((base / "config.json").read_text(encoding="utf-8"))
    theta = {key: value for key, value in rope(raw).items() if key == "rope_theta"}
    text = json.dumps({**raw, **theta, "quantization_config": quantization}, indent=2)
    (out / "config.json").write_text(text + "\n", encoding="utf-8")


def expect(state: Json, before: set[str], chosen: Sequence[str]) -> None:
    """Fail unless every chosen module is packed, and nothing else differs from the base by name."""
    packed = {f"{module}.{part}" for module in chosen for part in ("qweight", "qzeros", "scales")}
    index = {f"{module}.g_idx" for module in chosen}
    wanted = (before - {f"{module}.weight" for module in chosen}) | packed
    odd = sorted(wanted ^ (set(state) - index))
    if odd:
        shown = ", ".join(odd[:3]) + (", ..." if len(odd) > 3 else "")
        raise Failure(f"{len(odd)} tensors are not as they should be after quantizing {len(chosen)} modules: {shown}")


def tensor_names(folder: Path) -> set[str]:
    from safetensors import safe_open

    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            names |= set(file.keys())
    return names
