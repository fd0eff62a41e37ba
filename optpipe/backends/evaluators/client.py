"""A small HTTP client of an OpenAI-compatible engine. Standard library only; no proxy is ever asked.

urllib would send a request for a loopback address through the machine's proxy where `no_proxy` is not set.
"""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from optpipe.records import Json
from optpipe.worker import Failure

BY_LOGITS = ("tensorrt_llm",)
"""Engines that tell no log-probabilities of a prompt, but its logits."""
UNDEFINED = -9999.0
"""What vLLM writes in place of a log-probability of minus infinity, which JSON cannot hold."""


class Refused(Exception):
    """The engine answered with an HTTP error; `status` and the first line of what it said."""

    def __init__(self, path: str, status: int, text: str) -> None:
        super().__init__(f"the engine answered {path} with HTTP {status}: {text or 'no text'}")
        self.path = path
        self.status = status


@dataclass(frozen=True)
class Engine:
    """An engine at `url` that serves `model`; a request takes `timeout_s` at most."""

    url: str
    model: str
    timeout_s: float = 300.0
    kind: str = ""
    """The engine's word in a recipe, where that is known."""

    @classmethod
    def of(cls, context: Json, options: Json) -> Engine:
        """The engine that a session hands to a body; the first request may compile, so it may take long."""
        seconds = float(options.get("timeout_s", 300.0))
        return cls(str(context["url"]), str(context["model"]), seconds, str(context.get("engine", "")))

    def complete(self, prompt: str | list[int], **options: Any) -> Json:
        """The first choice of `/v1/completions`. Raises `Refused`, or a transient `Failure`."""
        body = {"model": self.model, "prompt": prompt, **options}
        answer = json.loads(self._ask("POST", "/v1/completions", json.dumps(body)))
        choices = answer.get("choices") or [{}]
        return dict(choices[0])

    def prompt_logprobs(self, ids: list[int], top: int) -> list[Any]:
        """For each token of a prompt {its id: {"logprob"}}, as vLLM says it: the first is None. Raises as `complete`.
        `top`: how many of the likeliest tokens are wanted too, 0 or 1."""
        words = {"max_tokens": 1, "temperature": 0}
        if self.kind in BY_LOGITS:
            return from_logits(self.complete(ids, **words, return_context_logits=True).get("context_logits"), ids)
        return list(self.complete(ids, **words, prompt_logprobs=top).get("prompt_logprobs") or [])

    def healthy(self) -> bool:
        """Whether `/health` answers; an engine without that path counts as healthy while it answers."""
        try:
            self._ask("GET", "/health")
        except Refused as refused:
            return refused.status < 500
        except Failure:
            return False
        return True

    def _ask(self, method: str, path: str, body: str | None = None) -> bytes:
        parts = urlsplit(self.url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(parts.hostname or "", parts.port, timeout=self.timeout_s)
        headers = {"Content-Type": "application/json"} if body else {}
        try:
            connection.request(method, parts.path.rstrip("/") + path, body, headers)
            response = connection.getresponse()
            data = response.read()
        except TimeoutError:
            message = f"no answer from {self.url}{path} within {self.timeout_s:g} s"
            raise Failure(message, hint="the engine hangs or is overloaded", transient=True) from None
        except (OSError, http.client.HTTPException) as error:
            message = f"no answer from {self.url}{path}: {type(error).__name__} {error}".rstrip()
            raise Failure(message, hint="the engine ended or never listened", transient=True) from None
        finally:
            connection.close()
        if response.status >= 400:
            raise Refused(path, response.status, _said(data))
        return data


def from_logits(logits: Any, ids: list[int]) -> list[Any]:
    """Log-probabilities of each token and the likeliest from the logits [tokens, vocabulary] of a whole prompt;
    Failure where they are not of the whole: TensorRT-LLM leaves out what it found in its cache."""
    import numpy as np

    values = np.asarray(logits if logits is not None else [], dtype=np.float64)
    if values.ndim != 2 or len(values) != len(ids):
        hint = "its blocks must not be reused: kv_cache_config.enable_block_reuse: false"
        raise Failure(f"the engine gave logits of shape {values.shape} for {len(ids)} tokens", hint=hint)
    rows, following = values[:-1], np.asarray(ids[1:])
    top = rows.max(axis=1)
    own = rows[np.arange(len(rows)), following]
    logprobs = own - top - np.log(np.exp(rows - top[:, None]).sum(axis=1))
    best = rows.argmax(axis=1)
    likeliest = logprobs + top - own
    told = [
        {str(b): {"logprob": float(most)}, str(i): {"logprob": float(p)}}
        for b, most, i, p in zip(best, likeliest, ids[1:], logprobs)
    ]
    return [None, *told]


def _said(data: bytes) -> str:
    """The first line of an error body, 300 characters at most."""
    text = data.decode(errors="replace").strip()
    return text.splitlines()[0][:300] if text else ""
