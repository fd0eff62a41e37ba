"""Which architectures the libraries of the managed toolchains know, from lists taken out of their sources."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from optpipe.model.reasons import Reason
from optpipe.records import ModelFacts

FILE = Path(__file__).with_name("architectures.json")


@cache
def known() -> dict[str, Any]:
    """`causal` (class names), `causal_types`, `tied`, `untied` (model types), `vllm_generates`, `vllm_until`."""
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


def vllm_reasons(facts: ModelFacts) -> Iterator[Reason]:
    """An architecture that vLLM does not serve, or no longer."""
    if until := known()["vllm_until"].get(facts.architecture):
        text = f"vLLM {known()['vllm']} serves no {facts.architecture} any more; {until} was the last that did"
        yield Reason(text, "an environment of your own that does: toolchains.vllm")
    elif facts.architecture not in known()["vllm_generates"] and not loads_as_text_model(facts):
        text = f"vLLM {known()['vllm']} has no {facts.architecture}, and transformers none that it could serve instead"
        yield Reason(text, "an environment of your own that does: toolchains.vllm")
