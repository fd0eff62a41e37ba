"""The temporary folder of a job: its own, and never so deep that an engine could not open its sockets there."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from optpipe.processes import scratch_folder

SOCKET_PATH_MAX = 107
UUID = "3e0d752e-d75d-489c-a2da-f4ec3fd9fbae"


@pytest.mark.parametrize("length", [9, 48, 49, 200])
def test_a_socket_fits_into_it(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/t".ljust(length, "x"))
    folder = scratch_folder("0123456789abcdef")
    assert len(f"{folder}/{UUID}") <= SOCKET_PATH_MAX
    assert (folder.parent == Path(tempfile.gettempdir())) is (length <= 48)
