"""HTTP as the registries need it: streamed bodies, one kind of error, credentials never shown."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from optpipe.backends.registries.storage import AGAIN
from optpipe.errors import PublishFailed, Unreachable
from optpipe.rundir import CHUNK

TIMEOUT_S = 60.0
"""For each single read or write, not for a whole file."""
CONNECT_S = 10.0
SAID = 300
"""Characters of a server's answer that are shown."""
Body = bytes | Callable[[], Iterable[bytes]]
"""Content, or what makes it anew for each try."""


class Http:
    """One server. `authorize(challenge)` gives the headers to try again with after a 401, or None."""

    def __init__(
        self,
        url: str,
        headers: Callable[[], Mapping[str, str]],
        authorize: Callable[[str], Mapping[str, str] | None] = lambda challenge: None,
        *,
        credentials: str,
        verify: str | None = None,
    ) -> None:
        """`credentials` says where they come from, for who sends wrong ones."""
        parts = urlsplit(url)
        self.url = f"{parts.scheme}://{parts.hostname}{f':{parts.port}' if parts.port else ''}{parts.path}".rstrip("/")
        self._headers, self._authorize, self._credentials, self._verify = headers, authorize, credentials, verify

    @functools.cached_property
    def _client(self) -> Any:
        import httpx2

        verify: dict[str, Any] = {"verify": self._verify} if self._verify else {}
        limits = httpx2.Timeout(TIMEOUT_S, connect=CONNECT_S)
        return httpx2.Client(timeout=limits, headers={"User-Agent": "optpipe"}, **verify)

    def call(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        headers: Mapping[str, str] | None = None,
        missing: tuple[int, ...] = (),
        **words: Any,
    ) -> Any:
        """The answer, read; None for a status in `missing`. Any other refusal is a PublishFailed."""
        answer = self._send(method, path, body, headers or {}, words)
        self._read(answer)
        if answer.status_code in missing:
            return None
        self._demand(answer, method)
        return answer

    def stream(self, path: str, *, headers: Mapping[str, str] | None = None) -> Iterator[bytes]:
        """The content of a file in pieces; one that breaks off is a PublishFailed."""
        import httpx2

        answer = self._send("GET", path, None, headers or {}, {})
        try:
            if answer.status_code >= 400:
                self._read(answer)
                self._demand(answer, "GET")
            yield from answer.iter_bytes(CHUNK)
        except httpx2.TransportError as error:
            raise self._broken(error) from None
        finally:
            answer.close()

    def _send(
        self, method: str, path: str, body: Body | None, headers: Mapping[str, str], words: Mapping[str, Any]
    ) -> Any:
        import httpx2

        url = path if "://" in path else self.url + path
        own = self._headers() if url.startswith(self.url) else {}
        for last in (False, True):
            content = body() if callable(body) else body
            request = self._client.build_request(method, url, content=content, headers={**own, **headers}, **words)
            try:
                follow = method in ("GET", "HEAD")
                answer = self._client.send(request, stream=True, follow_redirects=follow)
            except httpx2.TransportError as error:
                raise self._broken(error) from None
            if answer.status_code != 401 or last:
                break
            shown = self._authorize(answer.headers.get("WWW-Authenticate", ""))
            if shown is None:
                break
            own = shown
            answer.close()
        return answer

    def _read(self, answer: Any) -> None:
        import httpx2

        try:
            answer.read()
        except httpx2.TransportError as error:
            raise self._broken(error) from None

    def _broken(self, error: Exception) -> Unreachable:
        what = f"{type(error).__name__}: {error}".rstrip(": ")
        hint = f"check the address and the network; {AGAIN}"
        return Unreachable(f"the connection failed ({what})", place=self.url, hint=hint)

    def _demand(self, answer: Any, method: str) -> None:
        status = answer.status_code
        if status < 400:
            return
        where = urlsplit(str(answer.url)).path
        if status in (401, 403):
            raise PublishFailed(f"refuses {method} {where} (HTTP {status})", place=self.url, hint=self._credentials)
        said = " ".join(answer.text.split())[:SAID]
        raise PublishFailed(f"answers HTTP {status} to {method} {where}: {said}", place=self.url, hint=AGAIN)
