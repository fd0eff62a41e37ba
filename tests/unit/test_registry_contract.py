"""The contract of registries, for the folder and for a stand-in of the hub; the others run against real servers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from optpipe.backends.registries import at
from optpipe.errors import PublishFailed
from optpipe.records import Bundle
from tests.fakes import hub as hubs
from tests.fakes.cutting import cutting
from tests.registry_contract import Connect, Contract
from tests.registry_faults import Faults, Through, demand_whole, publish, small


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

    def test_a_wrong_token(self, connect: Connect, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bundle = small(tmp_path / "a", name, "a")
        with monkeypatch.context() as wrong:
            wrong.setenv("HF_TOKEN", "hf_not_the_token")
            with pytest.raises(PublishFailed, match="HTTP 401") as error:
                publish(connect(), bundle)
            assert "hf_not_the_token" not in str(error.value) and "HF_TOKEN" in str(error.value.hint)
        publish(connect(), bundle)

    def test_no_space(self, hub: hubs.Hub, connect: Connect, name: str, old: Bundle, tmp_path: Path) -> None:
        hub.full, new = True, small(tmp_path / "new", name, "new")
        with pytest.raises(PublishFailed, match="model-0"):
            publish(connect(), new)
        assert demand_whole(connect(), name) == old.digest
        hub.full = False
        publish(connect(), new)
        assert demand_whole(connect(), name) == new.digest


def test_a_full_disk_under_a_folder(tmp_path: Path) -> None:
    """A file of the weights' size does not fit: exit 6, nothing seen; with space the publisher finishes."""
    old, new = (small(tmp_path / text, "tiny", text) for text in ("old", "new"))
    registry = at(str(tmp_path / "registry"))
    publish(registry, old)
    words = [sys.executable, "-m", "optpipe", "publish", str(new.path), "--name", "tiny", "--alias", "champion"]
    words += ["--registry", registry.where]
    full = subprocess.run(["prlimit", "--fsize=100000", *words], capture_output=True, text=True)
    assert full.returncode == 6 and "File too large" in full.stderr and "hint:" in full.stderr
    assert demand_whole(registry, "tiny") == old.digest and registry.storage.versions("tiny") == [old.digest]
    assert subprocess.run(words, capture_output=True).returncode == 0
    assert demand_whole(registry, "tiny") == new.digest
