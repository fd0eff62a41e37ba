"""Checks of config.json and generation_config.json: what loading or every request would fail on."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from optpipe.errors import InputError, Problem
from optpipe.model.architectures import generates
from optpipe.model.config import DTYPES, Shape, read_mapping, text_config
from optpipe.records import Json

REFETCH = "fetch the file again"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "min_p": None, "typical_p": 1.0}
"""Generation settings that only sampling uses, with the values that mean nothing."""

RANGES: dict[str, tuple[float, float, bool]] = {
    "temperature": (0.0, math.inf, False),
    "top_p": (0.0, 1.0, True),
    "top_k": (-1, math.inf, False),
    "min_p": (0.0, 1.0, False),
    "repetition_penalty": (0.0, math.inf, True),
    "max_new_tokens": (1, math.inf, False),
}
"""Smallest and largest value, and whether the smallest itself is out; engines answer no request outside."""

NO_LANGUAGE_MODEL = re.compile(
    r"For(\w*Classification|MaskedLM|QuestionAnswering|MultipleChoice|PreTraining|NextSentencePrediction)$"
)
TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
POSITIVE = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "rope_theta")


def config_problems(config: Json, shape: Shape, place: str) -> Iterator[Problem]:
    """What a configuration says that no library loads as a language model."""
    yield from architecture_problems(config, shape, place)
    text = text_config(config)
    for part in (config,) if text is config else (config, text):
        yield from id_problems(part, shape, place, ("pad_token_id",))
    for key in POSITIVE:
        value = text.get(key)
        wrong = isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf
        if value is not None and wrong:
            yield Problem(place, f"{key}: {value!r:.60} is not a positive number", REFETCH)
    if shape.dtype is not None and shape.dtype not in (*DTYPES, "auto"):
        yield Problem(place, f"dtype: {shape.dtype!r:.60} is not known", f"known: {', '.join(DTYPES)}")
    yield from head_problems(text, shape, place)


def architecture_problems(config: Json, shape: Shape, place: str) -> Iterator[Problem]:
    """No model type or class, or the class of something that does not write text."""
    if not isinstance(config.get("model_type"), str):
        text = f"model_type: {config.get('model_type')!r:.60} is no name"
        yield Problem(place, text, "it says which code reads the model: take the file of the model's source")
    name = shape.architecture
    if name == "unknown":
        text = f"architectures: {config.get('architectures')!r:.60} names no class"
        yield Problem(place, text, 'engines ask for it: for example "architectures": ["LlamaForCausalLM"]')
    elif config.get("is_encoder_decoder") is True or NO_LANGUAGE_MODEL.search(name):
        yield Problem(place, f"{name} is no model that continues a text", "name a causal language model")
    elif name.endswith("Model") and not name.endswith("HeadModel") and not generates(name):
        yield Problem(place, f"{name} is a model without a language head", "name its ...ForCausalLM")


def id_problems(
    part: Mapping[str, Any], shape: Shape, place: str, rows: tuple[str, ...] = TOKEN_IDS
) -> Iterator[Problem]:
    """Special token ids that are no numbers, or (those named in `rows`) no row of the embeddings.

    -1 is some libraries' word for no padding; padding beyond the rows cannot be loaded.
    """
    for key in TOKEN_IDS:
        value = part.get(key)
        for one in value if isinstance(value, list) else [value]:
            whole = one is None or type(one) is int
            if whole and (one is None or key not in rows or 0 <= one < shape.vocabulary):
                continue
            if not (key == "pad_token_id" and one == -1):
                text = f"{key}: {one!r:.60} is not a row of the model, which has {shape.vocabulary} (vocab_size)"
                yield Problem(place, text, "take the id that the tokenizer gives this token")


def strange_ids(config: Json, shape: Shape) -> list[str]:
    """Ids of config.json beyond the rows: often a default that nobody meant, so they are told, not refused."""
    return [problem.message for problem in id_problems(text_config(config), shape, "")]


def head_problems(text: Mapping[str, Any], shape: Shape, place: str) -> Iterator[Problem]:
    """Heads that do not share out the hidden size, the key-value heads or the experts."""
    if shape.kv_heads and shape.heads % shape.kv_heads:
        what = f"{shape.heads} attention heads are no multiple of {shape.kv_heads} key-value heads"
        yield Problem(place, what, "num_key_value_heads divides num_attention_heads")
    chosen = text.get("num_experts_per_tok")
    if isinstance(chosen, int) and shape.experts and chosen > shape.experts:
        what = f"num_experts_per_tok: {chosen} is more than the {shape.experts} experts that there are"
        yield Problem(place, what, "take the file of the model's source")


# ---------------------------------------------------------------- generation configuration


def generation_problems(folder: Path, shape: Shape | None) -> list[Problem]:
    """A generation configuration that cannot be read, or that would make an engine refuse every request."""
    path = folder / "generation_config.json"
    if not (path.exists() or path.is_symlink()):
        return []
    try:
        found = read_mapping(path, REFETCH)
    except InputError as error:
        return [Problem(error.place or str(path), error.message, error.hint)]
    problems = [problem for key, value in found.items() if (problem := out_of_range(str(path), key, value))]
    return problems + (list(id_problems(found, shape, str(path))) if shape else [])


def out_of_range(place: str, key: str, value: Any) -> Problem | None:
    """A sampling setting that engines take as the default of every request and then refuse."""
    if key not in RANGES or value is None:
        return None
    low, high, open_ = RANGES[key]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and (low < value if open_ else low <= value) and value <= high:
        return None
    text = f"{key}: {value!r:.60} is not {'above' if open_ else 'at least'} {low:g}"
    text += f" and at most {high:g}" if high < math.inf else ""
    return Problem(place, text, f"remove {key}, or take the file of the model's source")


def ignored_sampling(generation: Json) -> list[str]:
    """Sampling settings that do_sample: false switches off."""
    if generation.get("do_sample", False):
        return []
    return [
        f"{key}: {generation[key]}"
        for key, empty in SAMPLING.items()
        if generation.get(key) is not None and generation[key] != empty
    ]
