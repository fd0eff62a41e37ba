"""Facts of a GGUF file, as the bf16 model folder that it becomes when it is resolved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

from optpipe.model.facts import facts_from_headers
from optpipe.model.linears import natural
from optpipe.records import Json, ModelFacts, SourceKind, TensorFact

PLAIN = ("F64", "F32", "F16", "BF16")


def facts_from_gguf(
    config: Json, tensors: Sequence[TensorFact], *, source: str, kind: SourceKind, revision: str
) -> ModelFacts:
    """Facts from the configuration and tensors of a GGUF file under their Hugging Face names.

    Shapes are [out, in]; dtypes are GGML's (`Q4_1`). Parameters and bytes are those of the folder in
    bf16 that the conversion writes, and a note tells what the weights once were.
    """
    place = tensors[0].file if tensors else "config.json"
    converted = [replace(t, dtype="BF16", nbytes=2 * prod(t.shape)) for t in tensors if t.name != "rope_freqs.weight"]
    facts = facts_from_headers(config, converted, source=source, kind=kind, revision=revision, place=place)
    return replace(facts, notes=(*facts.notes, *quantized_once(tensors)))


def quantized_once(tensors: Sequence[TensorFact]) -> tuple[str, ...]:
    """The note on weights that were quantized in the file, with each block type's share."""
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.dtype] += prod(tensor.shape)
    blocks = {dtype: size for dtype, size in sizes.most_common() if dtype not in PLAIN}
    if not blocks:
        return ()
    total = sum(sizes.values())
    kinds = ", ".join(f"{dtype} ({100 * size / total:.0f} %)" for dtype, size in blocks.items())
    first = min((t.name for t in tensors if t.dtype in blocks), key=natural)
    return (
        f"the weights were quantized once: {kinds}, for example {first}; "
        "figures are drift against that base, not against the model it was made from",
    )
