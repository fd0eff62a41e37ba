"""Who we are to an OCI registry: what `docker login` left, and the tokens that it buys."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from optpipe.errors import PublishFailed

HINT = "log in with `docker login` (or `podman login`); DOCKER_CONFIG and REGISTRY_AUTH_FILE are honoured"
HELPER = re.compile(r"[A-Za-z0-9._-]+")
HELPER_S = 30


def basic(host: str) -> str | None:
    """`user:password` in base64 as the tools' files know it for `host`, else None."""
    for path in files():
        if path.is_file():
            try:
                config = json.loads(path.read_text(encoding="utf-8"))
            except (OSError, ValueError) as error:
                raise PublishFailed(f"cannot be read: {error}", place=str(path), hint=HINT) from None
            if found := _of(config, host):
                return found
    return None


def files() -> list[Path]:
    """Docker's file, and podman's."""
    docker = Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"
    named = os.environ.get("REGISTRY_AUTH_FILE")
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    podman = Path(named) if named else Path(runtime) / "containers" / "auth.json" if runtime else None
    return [docker, podman] if podman else [docker]


def _of(config: dict[str, Any], host: str) -> str | None:
    helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
    if helper:
        return _helped(str(helper), host)
    for key, entry in config.get("auths", {}).items():
        if key.removeprefix("https://").partition("/")[0] == host and entry.get("auth"):
            return str(entry["auth"])
    return None


def _helped(helper: str, host: str) -> str | None:
    """What `docker-credential-<helper> get` answers."""
    if not HELPER.fullmatch(helper):
        raise PublishFailed(f"{helper!r} is no name of a credential helper", place="docker's config.json", hint=HINT)
    words = [f"docker-credential-{helper}", "get"]
    try:
        done = subprocess.run(words, input=host, capture_output=True, text=True, timeout=HELPER_S)
        found = json.loads(done.stdout) if done.returncode == 0 else None
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        raise PublishFailed(f"does not answer: {type(error).__name__}", place=words[0], hint=HINT) from None
    if not found:
        return None
    return base64.b64encode(f"{found['Username']}:{found['Secret']}".encode()).decode()


def authorization(challenge: str, host: str, secure: bool) -> dict[str, str] | None:
    """The headers that answer a registry's 401; None where we have nothing to show."""
    known = basic(host)
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() == "basic":
        return {"Authorization": f"Basic {known}"} if known else None
    if scheme.lower() != "bearer":
        return None
    said = dict(re.findall(r'(\w+)="([^"]*)"', rest))
    token = _token(said, known, secure)
    return {"Authorization": f"Bearer {token}"} if token else None


def _token(said: dict[str, str], known: str | None, secure: bool) -> str | None:
    import httpx2

    realm = said.get("realm", "")
    if urlsplit(realm).scheme not in (("https",) if secure else ("https", "http")):
        raise PublishFailed(f"sends us to {realm!r} for a token", place="the registry", hint="that is not safe")
    query: dict[str, str] = {key: text for key, text in said.items() if key in ("service", "scope")}
    headers = {"Authorization": f"Basic {known}"} if known else {}
    try:
        answer = httpx2.get(realm, params=query, headers=headers, timeout=HELPER_S)
        found = answer.json() if answer.status_code == 200 else {}
    except (httpx2.TransportError, ValueError) as error:
        raise PublishFailed(f"gives no token: {type(error).__name__}", place=realm, hint=HINT) from None
    return found.get("token") or found.get("access_token")
