"""The contract of registries, for the folder and for a stand-in of the hub; the others run against real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from optpipe.backends.registries import at
from tests.fakes import hub as hubs
from tests.registry_contract import Connect, Contract


class TestFolder(Contract):
    @pytest.fixture
    def connect(self, tmp_path: Path) -> Connect:
        return lambda: at(str(tmp_path / "registry"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[hubs.Hub]:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the stand-in takes large files over plain HTTP
    monkeypatch.setenv("HF_TOKEN", hubs.TOKEN)
    with hubs.serve(hubs.Hub()) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


class TestHub(Contract):
    @pytest.fixture
    def connect(self, hub: hubs.Hub) -> Connect:
        return lambda: at("hf://somebody")
