"""Which architectures the libraries of the managed toolchains know, from lists taken out of their sources."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from optpipe.model.memory import setting
from optpipe.model.reasons import Reason
from optpipe.records import ModelFacts

FILE = Path(__file__).with_name("architectures.json")


@cache
def known() -> dict[str, Any]:
    """`causal` (class names), `causal_types`, `tied`, `untied` (model types), `vllm_generates`, `vllm_until`,
    `vllm_torchvision` (class names that it cannot import without torchvision), `onnxruntime_builds` (class names)."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return found


def tied_by_default(model_type: str) -> bool | None:
    """Whether transformers ties the embeddings of a configuration that does not say; None: not known."""
    if model_type in known()["tied"]:
        return True
    return False if model_type in known()["untied"] else None


def generates(architecture: str) -> bool:
    """Whether transformers or vLLM knows the class as one that writes text."""
    return architecture in known()["causal"] or architecture in known()["vllm_generates"]


def loads_as_text_model(facts: ModelFacts) -> bool:
    """Whether transformers' AutoModelForCausalLM knows the model."""
    if facts.architecture in known()["causal"]:
        return True
    return facts.model_type in known()["causal_types"] and not facts.architecture.endswith("ForConditionalGeneration")


def transformers_reasons(facts: ModelFacts) -> Iterator[Reason]:
    """A model that quantizing and scoring cannot load."""
    if not loads_as_text_model(facts):
        text = (
            f"transformers {known()['transformers']} loads no {facts.architecture} ({facts.model_type}) as a text model"
        )
        yield Reason(text, "an environment of your own that does: toolchains.quantize")


def multimodal_reasons(facts: ModelFacts, target: Mapping[str, Any], versions: Mapping[str, str]) -> Iterator[Reason]:
    """What vLLM needs of a multimodal model before it serves even text.

    `versions` are those of what optpipe itself installs, empty where the environment is somebody's own.
    """
    if not facts.multimodal:
        return
    lacking = "vllm" in versions and "torchvision" not in versions
    if lacking and facts.architecture in known()["vllm_torchvision"]:
        text = f"{facts.architecture} is multimodal, and vLLM imports torchvision for it, which the lock for CPUs lacks"
        own = "an environment of your own that has torchvision: toolchains.vllm"
        yield Reason(text, f"its text model alone as model.source, a GPU, or {own}")
    if not facts.processor and not text_alone(target):
        text = (
            f"{facts.architecture} is multimodal, and vLLM reads its processor as it starts: there is neither "
            "processor_config.json nor preprocessor_config.json"
        )
        yield Reason(text, "engine_args: {language_model_only: true}, or the files of the model's source")


def text_alone(target: Mapping[str, Any]) -> bool:
    """Whether a target tells vLLM to take no images or sounds: then it needs no processor for them."""
    limits = setting(target, "limit_mm_per_prompt")
    none = isinstance(limits, dict) and bool(limits) and not any(limits.values())
    return none or setting(target, "language_model_only") is True


def vllm_reasons(facts: ModelFacts) -> Iterator[Reason]:
    """An architecture that vLLM does not serve, or no longer."""
    if until := known()["vllm_until"].get(facts.architecture):
        text = f"vLLM {known()['vllm']} serves no {facts.architecture} any more; {until} was the last that did"
        yield Reason(text, "an environment of your own that does: toolchains.vllm")
    elif facts.architecture not in known()["vllm_generates"] and not loads_as_text_model(facts):
        text = f"vLLM {known()['vllm']} has no {facts.architecture}, and transformers none that it could serve instead"
        yield Reason(text, "an environment of your own that does: toolchains.vllm")


def onnxruntime_reasons(facts: ModelFacts) -> Iterator[Reason]:
    """An architecture that onnxruntime-genai's model builder makes no graph of."""
    if facts.architecture not in known()["onnxruntime_builds"]:
        text = f"the model builder of onnxruntime-genai {known()['onnxruntime']} knows no {facts.architecture}"
        yield Reason(text, "engine: vllm, or an environment of your own that does: toolchains.onnxruntime")
