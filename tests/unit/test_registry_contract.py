"""The contract of registries, for the folder and for a stand-in of the hub; the others run against real servers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from optpipe.backends.registries import at
from tests.fakes import hub as hubs
from tests.fakes.cutting import cutting
from tests.registry_contract import Connect, Contract
from tests.registry_faults import Faults, Through


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


class TestFaultsOfHub(Faults):
    @pytest.fixture
    def connect(self, hub: hubs.Hub) -> Connect:
        return lambda: at("hf://somebody")

    @pytest.fixture
    def through(self, hub: hubs.Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Through]:
        """The hub names its own address for large files, so everything goes through the proxy."""
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        with cutting(int(hub.url.rpartition(":")[2])) as proxy:
            hub.url = f"http://127.0.0.1:{proxy.port}"
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            yield Through(proxy, "hf://somebody")
