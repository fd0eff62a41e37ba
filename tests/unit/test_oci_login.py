"""Who we are to an OCI registry: docker's and podman's files, helpers, tokens."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from optpipe.backends.registries import oci_login
from optpipe.errors import PublishFailed
from tests.quiet import QuietServer

KNOWN = base64.b64encode(b"ci:secret").decode()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.delenv("REGISTRY_AUTH_FILE", raising=False)
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    return tmp_path


def write(path: Path, **config: Any) -> None:
    path.write_text(json.dumps(config))


@pytest.mark.parametrize("key", ["host:5000", "https://host:5000", "https://host:5000/v1/"])
def test_what_docker_login_left_is_found(home: Path, key: str) -> None:
    write(home / "config.json", auths={"other": {"auth": "eDp5"}, key: {"auth": KNOWN}})
    assert oci_login.basic("host:5000") == KNOWN
    assert oci_login.basic("host:5001") is None


def test_what_podman_login_left_is_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home / "auth.json", auths={"host": {"auth": KNOWN}})
    monkeypatch.setenv("REGISTRY_AUTH_FILE", str(home / "auth.json"))
    assert oci_login.basic("host") == KNOWN


def test_a_helper_is_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    helper = home / "docker-credential-vault"
    helper.write_text('#!/bin/sh\nread host\n[ "$host" = host ] && echo \'{"Username": "ci", "Secret": "secret"}\'\n')
    helper.chmod(0o755)
    monkeypatch.setenv("PATH", str(home), prepend=":")
    write(home / "config.json", credHelpers={"host": "vault", "gone": "nowhere", "bad": "../x"})
    assert oci_login.basic("host") == KNOWN
    with pytest.raises(PublishFailed, match="does not answer"):
        oci_login.basic("gone")
    with pytest.raises(PublishFailed, match="no name of a credential helper"):
        oci_login.basic("bad")


def test_a_torn_file_is_named(home: Path) -> None:
    (home / "config.json").write_text("{")
    with pytest.raises(PublishFailed, match=r"config\.json"):
        oci_login.basic("host")


class Tokens(BaseHTTPRequestHandler):
    """Sells a token for a service and a scope to who knows the password."""

    asked: list[dict[str, list[str]]]

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.asked.append(parse_qs(urlsplit(self.path).query))
        right = self.headers.get("Authorization") == f"Basic {KNOWN}"
        self.send_response(200 if right else 401)
        self.end_headers()
        self.wfile.write(b'{"token": "bought"}' if right else b"{}")


@pytest.fixture
def tokens() -> Iterator[tuple[str, list[dict[str, list[str]]]]]:
    asked: list[dict[str, list[str]]] = []
    server = QuietServer(("127.0.0.1", 0), type("Bound", (Tokens,), {"asked": asked}))
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/token", asked
    server.shutdown()
    server.server_close()


def test_a_challenge_for_a_token_is_answered(home: Path, tokens: tuple[str, list[dict[str, list[str]]]]) -> None:
    realm, asked = tokens
    challenge = f'Bearer realm="{realm}",service="registry",scope="repository:models/tiny:pull,push"'
    assert oci_login.authorization(challenge, "host", False) is None
    write(home / "config.json", auths={"host": {"auth": KNOWN}})
    assert oci_login.authorization(challenge, "host", False) == {"Authorization": "Bearer bought"}
    assert asked[-1] == {"service": ["registry"], "scope": ["repository:models/tiny:pull,push"]}


def test_a_password_is_not_sent_in_the_clear_for_a_registry_with_tls(home: Path) -> None:
    write(home / "config.json", auths={"host": {"auth": KNOWN}})
    with pytest.raises(PublishFailed, match="not safe"):
        oci_login.authorization('Bearer realm="http://elsewhere/token"', "host", True)


def test_a_plain_challenge_is_answered_with_what_is_known(home: Path) -> None:
    assert oci_login.authorization('Basic realm="x"', "host", True) is None
    write(home / "config.json", auths={"host": {"auth": KNOWN}})
    assert oci_login.authorization('Basic realm="x"', "host", True) == {"Authorization": f"Basic {KNOWN}"}
