"""What a completion request may say to `onnxruntime_server.py`; anything else is told to whoever asked."""

from __future__ import annotations

import json
from typing import Any

from optpipe.backends.engines.onnxruntime_model import Asked, Model
from optpipe.records import Json


class Wrong(Exception):
    """A request that cannot be answered, with what is wrong with it."""


def asked_of(body: Any, model: Model) -> Asked:
    """The request, checked. Raises Wrong."""
    if not isinstance(body, dict):
        raise Wrong(f"a request is an object, not {type(body).__name__}")
    ids = prompt_of(body, model)
    if given(body, "n", int, 1) != 1 or given(body, "echo", bool, False):
        raise Wrong("n other than 1 and echo are not offered")
    tokens = given(body, "max_tokens", int, 16)
    if tokens < 1:
        raise Wrong(f"max_tokens {tokens} is not above 0")
    if len(ids) + tokens > model.longest:
        raise Wrong(f"{len(ids)} + {tokens} tokens are more than max_model_len {model.longest}")
    temperature, top_p = given(body, "temperature", float, 1.0), given(body, "top_p", float, 1.0)
    if temperature < 0 or not 0 < top_p <= 1:
        raise Wrong(f"temperature {temperature:g} is below 0, or top_p {top_p:g} is not above 0 and at most 1")
    return Asked(
        ids=ids,
        max_tokens=tokens,
        ignore_eos=given(body, "ignore_eos", bool, False),
        temperature=temperature,
        top_p=top_p,
        seed=given(body, "seed", int, None),
        logprobs=body.get("logprobs") is not None,
        prompt_logprobs=body.get("prompt_logprobs") is not None,
    )


def prompt_of(body: Json, model: Model) -> list[int]:
    """The prompt's token ids; a list of one prompt is that prompt. Raises Wrong."""
    prompt = body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
        prompt = prompt[0]
    ids = model.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
    if not isinstance(ids, list) or not ids or any(isinstance(one, bool) or not isinstance(one, int) for one in ids):
        raise Wrong("prompt is neither a text nor a list of token ids")
    if unknown := [one for one in ids if not 0 <= one < model.vocabulary]:
        raise Wrong(f"token id {unknown[0]} is not among the model's {model.vocabulary}")
    return list(ids)


def given(body: Json, name: str, kind: type, otherwise: Any) -> Any:
    """A field of a request; `otherwise` where it is absent or null. Raises Wrong where it is of another kind."""
    value = body.get(name)
    if value is None:
        return otherwise
    fits = isinstance(value, (int, float) if kind is float else kind)
    if not fits or (isinstance(value, bool) and kind is not bool):
        raise Wrong(f"{name} is {json.dumps(value)}, not of type {kind.__name__}")
    return value


def stops_of(body: Json) -> tuple[str, ...]:
    """The texts that end an answer. Raises Wrong."""
    stop = body.get("stop") or ()
    stops = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stops, (list, tuple)) or not all(isinstance(one, str) and one for one in stops):
        raise Wrong("stop is neither a text nor a list of texts")
    return tuple(stops)
