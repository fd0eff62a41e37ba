"""How a worker loads a model: whole, and a mixture of experts with a linear layer for each matrix of each expert.

transformers keeps the experts of a layer in two 3-D tensors, in which quantizers find no layer and checkpoints
that are quantized expert by expert find no place.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from optpipe.model.config import shape_of
from optpipe.worker import Failure

STORED = re.compile(r"\.experts\.\*\.(\w+)\.weight$")
"""An expert's matrix as transformers' conversions name it."""

MATRICES = {2: ("gate_proj", "up_proj"), 1: ("down_proj",)}
"""What llm-compressor calls the matrices that transformers puts into one tensor, by their number, in order."""


def load(folder: Path, dtype: Any, *, apart: bool) -> Any:
    """The text model in evaluation mode; with `apart` its experts are linear layers, and saved as they were.

    Failure for tensors that are missing or have another shape: transformers would make them up.
    """
    import transformers

    class Loader:
        absent: tuple[str, ...] = ()

        @classmethod
        def from_pretrained(cls, *args: Any, **options: Any) -> Any:
            model, info = transformers.AutoModelForCausalLM.from_pretrained(*args, **options, output_loading_info=True)
            cls.absent = (*info["missing_keys"], *(str(key[0]) for key in info["mismatched_keys"]))
            return model

    with ExitStack() as while_loading:
        if apart:
            from llmcompressor.modeling.moe.linearize import load_quantizable_moe

            while_loading.enter_context(without_image_processors())
            while_loading.enter_context(names_as_stored(str(config_of(folder).get("model_type"))))
            while_loading.enter_context(load_quantizable_moe(Loader))
        model = Loader.from_pretrained(folder, dtype=dtype, use_safetensors=True)
    whole(Loader.absent)
    return model.eval()


def whole(absent: Iterable[str]) -> None:
    """Failure where tensors that a model needs are missing in its files, or have another shape."""
    if names := sorted(set(absent)):
        shown = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise Failure(f"{len(names)} tensors are missing or have another shape in the files: {shown}")


def config_of(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config


def quantized_by_expert(folder: Path) -> bool:
    """Whether it is a mixture of experts as quantizers leave it, or one to compare with it."""
    config = config_of(folder)
    method = config.get("quantization_config", {}).get("quant_method", "compressed-tensors")
    return method == "compressed-tensors" and shape_of(config, str(folder / "config.json")).experts > 0


@contextmanager
def without_image_processors() -> Iterator[None]:
    """transformers 5.17 looks into all its modules for the class that llm-compressor replaces; its aliases of image
    processors then import torchvision, which is not installed where only text is read."""
    aliases = {name: module for name, module in sys.modules.items() if ".image_processing_" in name}
    for name in aliases:
        del sys.modules[name]
    try:
        yield
    finally:
        sys.modules.update(aliases)


def names_as_stored(model_type: str) -> AbstractContextManager[Any]:
    """Tells llm-compressor 0.14 how an architecture that it has no names for stores its experts (w1, w2, w3 in
    Mixtral): without it they are saved under names that no engine looks for."""
    from llmcompressor.modeling.moe import conversion_mappings as known
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    if model_type not in known.ARCH_TO_IMPORT_PATHS or known.has_linearize_load_mappings(model_type):
        return nullcontext()
    renamed, merged = [], []
    for one in get_checkpoint_conversion_mapping(model_type) or []:
        stored = [found[1] for pattern in one.source_patterns if (found := STORED.search(pattern))]
        if not isinstance(one, WeightConverter) or len(stored) != len(one.source_patterns):
            continue
        merged += one.target_patterns
        for name, own in zip(stored, MATRICES[len(stored)]):
            places = {"source_patterns": rf"\.experts\.(\d+)\.{name}\.", "target_patterns": rf".experts.\1.{own}."}
            renamed.append(WeightRenaming(**places))
    return known.patch_moe_mappings(model_type, renamed, merged) if renamed else nullcontext()
