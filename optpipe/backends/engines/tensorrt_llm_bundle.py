"""A configuration for `trtllm-serve` in bundles that TensorRT-LLM was not measured for: valid, and marked so."""

from __future__ import annotations

from optpipe.backends.engines import tensorrt_llm_options
from optpipe.backends.engines.files import yaml_text
from optpipe.backends.engines.tensorrt_llm import BATCH, TOKENS, UNSEEN, TensorRtLlm, flags
from optpipe.model import compat_table
from optpipe.model.compat import Case
from optpipe.records import Hardware, Json, ModelFacts

FILE = "engine/trtllm.yaml"
CAPABILITIES = ("8.0", "8.9", "9.0", "10.0")
"""Ampere, Ada, Hopper, Blackwell."""


def unmeasured(facts: ModelFacts, scheme: Json | None, load: Json) -> dict[str, str]:
    """{path in the bundle: text} of a configuration sized for the recipe's load; {} where TensorRT-LLM loads no such
    checkpoint."""
    lowest = next((one for one in CAPABILITIES if loads(facts, scheme, one)), None)
    if lowest is None:
        return {}
    sizes = {"max_batch_size": load.get("concurrency") or BATCH, "max_num_tokens": max(TOKENS, load["input_tokens"])}
    settings = flags(sizes)
    wrong = tensorrt_llm_options.unknown_keys(TensorRtLlm(), settings)
    assert not wrong, f"TensorRT-LLM has no {wrong}"
    notes = (
        "unmeasured: optpipe measured this checkpoint on another engine",
        UNSEEN,
        f"for TensorRT-LLM 1.3 or later on an NVIDIA GPU of compute capability {lowest} or more:",
        f"trtllm-serve <this folder> --config {FILE}",
    )
    return {FILE: yaml_text(settings, notes)}


def loads(facts: ModelFacts, scheme: Json | None, capability: str) -> bool:
    """Whether the table says that such a GPU runs the checkpoint."""
    gpu = Hardware("a GPU", "any", 1, 1, "other", "NVIDIA GPU", 1, 1, capability)
    asked = Case(facts, scheme, {"engine": "tensorrt_llm"}, gpu).asked()
    row = compat_table.first(compat_table.tables().loads, asked)
    return row is not None and row.status != "no"
