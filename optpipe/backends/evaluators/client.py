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

    @classmethod
    def of(cls, context: Json, options: Json) -> Engine:
        """The engine that a session hands to a body; the first request may compile, so it may take long."""
        return cls(str(context["url"]), str(context["model"]), float(options.get("timeout_s", 300.0)))

    def complete(self, prompt: str | list[int], **options: Any) -> Json:
        """The first choice of `/v1/completions`. Raises `Refused`, or a transient `Failure`."""
        body = {"model": self.model, "prompt": prompt, **options}
        answer = json.loads(self._ask("POST", "/v1/completions", json.dumps(body)))
        choices = answer.get("choices") or [{}]
        return dict(choices[0])

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


def _said(data: bytes) -> str:
    """The first line of an error body, 300 characters at most."""
    text = data.decode(errors="replace").strip()
    return text.splitlines()[0][:300] if text else ""
