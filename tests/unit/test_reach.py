"""Whether a server can be reached: told in seconds, past a proxy's address, with the reason."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from optpipe.reach import unreachable


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield int(server.getsockname()[1])


def test_a_server_that_listens_is_reached(port: int) -> None:
    assert unreachable(f"http://127.0.0.1:{port}/simple", {}) is None


def test_who_does_not_listen_and_a_name_that_is_none_are_told_with_the_reason() -> None:
    assert unreachable("http://user:secret@127.0.0.1:9/x", {}) == "127.0.0.1:9: Connection refused"
    told = unreachable("https://nowhere.invalid/x", {})
    assert told is not None and told.startswith("nowhere.invalid:443: ")


def test_the_proxy_is_what_must_be_reached(port: int) -> None:
    here, gone = f"http://127.0.0.1:{port}", "http://127.0.0.1:9"
    assert unreachable("https://nowhere.invalid", {"HTTPS_PROXY": here}) is None
    assert unreachable("https://nowhere.invalid", {"ALL_PROXY": f"127.0.0.1:{port}"}) is None
    assert unreachable(here, {"http_proxy": gone}) == "127.0.0.1:9: Connection refused"
    assert unreachable(here, {"http_proxy": gone, "NO_PROXY": "example.org,127.0.0.1"}) is None
