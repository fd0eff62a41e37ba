"""Registries against real servers: OCI, MLflow, and S3 with and without conditional writes; contract and faults."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe import bundle as bundles
from optpipe.backends.registries import at
from optpipe.errors import OptpipeError, PublishFailed
from tests.fakes.cutting import Proxy, cutting
from tests.real import servers
from tests.registry_contract import Connect, Contract
from tests.registry_faults import Faults, Through, demand_whole, publish, quick, small
from tests.tools import tool

pytestmark = pytest.mark.real


def running(server: servers.Server) -> Iterator[servers.Server]:
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def oci(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    tool("docker-registry", kind="registry")
    yield from running(servers.DockerRegistry(tmp_path_factory.mktemp("oci")))


@pytest.fixture(scope="module")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    yield from running(servers.MlflowServer(tmp_path_factory.mktemp("mlflow")))


@pytest.fixture(scope="module")
def rclone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    yield from running(servers.RcloneS3(tmp_path_factory.mktemp("rclone")))


@pytest.fixture(scope="module")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    yield from running(servers.MotoS3(tmp_path_factory.mktemp("moto")))


def use_s3(server: servers.Server, monkeypatch: pytest.MonkeyPatch) -> Connect:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
    return lambda: at("s3://models/of/mine")


class TestOci(Contract):
    @pytest.fixture
    def connect(self, oci: servers.Server) -> Connect:
        return lambda: at(f"oci://127.0.0.1:{oci.port}/models")


class TestMlflow(Contract):
    @pytest.fixture
    def connect(self, mlflow: servers.Server) -> Connect:
        return lambda: at(f"mlflow+{mlflow.url}")


class TestRclone(Contract):
    @pytest.fixture
    def connect(self, rclone: servers.Server, monkeypatch: pytest.MonkeyPatch) -> Connect:
        return use_s3(rclone, monkeypatch)

    def test_a_server_that_refuses_nothing_is_found_out(self, connect: Connect) -> None:
        assert not connect().storage.conditional


class TestMoto(Contract):
    @pytest.fixture
    def connect(self, moto: servers.Server, monkeypatch: pytest.MonkeyPatch) -> Connect:
        return use_s3(moto, monkeypatch)

    def test_a_server_that_refuses_the_second_is_relied_on(self, connect: Connect) -> None:
        assert connect().storage.conditional and connect().storage.conditional


class ServerFaults(Faults):
    """Faults of a server of one's own, on top of those of the connection."""

    @pytest.fixture
    def server(self) -> servers.Server:
        raise NotImplementedError

    def where(self, port: int) -> str:
        raise NotImplementedError

    @pytest.fixture
    def connect(self, server: servers.Server) -> Connect:
        return lambda: quick(at(self.where(server.port)))

    @pytest.fixture
    def proxy(self, server: servers.Server) -> Iterator[Proxy]:
        with cutting(server.port) as proxy:
            yield proxy

    @pytest.fixture
    def through(self, proxy: Proxy) -> Through:
        return Through(proxy, self.where(proxy.port))

    def test_a_server_that_restarts_while_it_is_written_to(
        self, server: servers.Server, through: Through, connect: Connect, name: str, tmp_path: Path
    ) -> None:
        publish(connect(), small(tmp_path / "old", name, "old"))
        for nth in (2, 9):
            bundle = small(tmp_path / f"new-{nth}", name, f"new {nth}")
            again = threading.Event()
            through.proxy.cut(nth, "middle", lambda again=again: (server.restart(), again.set()))
            try:
                publish(through(), bundle)
            except OptpipeError as error:
                assert error.exit_code == 6
            assert again.wait(servers.READY_S)
            through.proxy.cut(0)
            demand_whole(connect(), name)
            publish(through(), bundle)
            assert demand_whole(connect(), name) == bundle.digest

    def test_a_full_disk(self, server: servers.Server, connect: Connect, name: str, tmp_path: Path) -> None:
        """No file of the size of the weights fits; the version stays unseen, and goes on when there is space."""
        old, new = small(tmp_path / "old", name, "old"), small(tmp_path / "new", name, "new")
        (new.path / "model-0.safetensors").write_bytes(name.encode() * 1_000_000)
        new = replace(new, digest=bundles.write_manifest(new.path).digest)
        publish(connect(), old)
        server.limit = 10_000_000
        server.restart()
        with pytest.raises(PublishFailed, match="model-0") as error:
            publish(connect(), new)
        assert error.value.exit_code == 6 and error.value.hint
        server.limit = None
        server.restart()
        assert demand_whole(connect(), name) == old.digest and connect().storage.versions(name) == [old.digest]
        publish(connect(), new)
        assert demand_whole(connect(), name) == new.digest

    def test_a_file_that_was_changed_on_the_server(
        self, server: servers.Server, connect: Connect, name: str, tmp_path: Path
    ) -> None:
        bundle = small(tmp_path / "a", name, f"as {name}")
        publish(connect(), bundle)
        content = (bundle.path / "model-1.safetensors").read_bytes()
        stored = [path for path in server.folder.rglob("*") if path.is_file() and path.stat().st_size == len(content)]
        changed = [path for path in stored if path.read_bytes() == content]
        assert len(changed) == 1
        changed[0].write_bytes(content[:-1] + b"!")
        with pytest.raises(PublishFailed, match=r"model-1\.safetensors"):
            connect().pull(f"{name}@champion", tmp_path / "here")
        assert not (tmp_path / "here").exists()
        assert [problem.place for problem in connect().verify(connect().resolve(name))] == ["model-1.safetensors"]
        changed[0].write_bytes(content)
        connect().pull(f"{name}@champion", tmp_path / "here")
        assert bundles.verify(tmp_path / "here", bundle.digest) == ()


class TestFaultsOfOci(ServerFaults):
    @pytest.fixture
    def server(self, oci: servers.Server) -> servers.Server:
        return oci

    def where(self, port: int) -> str:
        return f"oci://127.0.0.1:{port}/faulty"

    def test_a_tag_that_somebody_else_moved(self, connect: Connect, name: str, tmp_path: Path) -> None:
        """With another tool, past the history: it is what the alias means, and the next move says so."""
        one, two = (small(tmp_path / text, name, text) for text in ("one", "two"))
        publish(connect(), one)
        publish(connect(), two)
        connect().storage.point(name, "champion", one.digest)
        assert connect().alias(name, "champion") == one.digest
        with pytest.raises(PublishFailed, match="somebody else moved it"):
            connect().move(connect().resolve(name), "champion", expected=two.digest, evidence="I saw two")
        publish(connect(), two)
        last = connect().history(name)[-1].move
        assert (last.previous, last.digest) == (one.digest, two.digest)


CI_SECRET = "ci:$2b$04$EWdfRKWOw.17bRkisjRRk.U/7zUWVZSKg2ZWaABzHXRDjW0a9KViC\n"
"""User `ci` with the password `secret`, as htpasswd writes it."""


def test_a_registry_that_asks_who_we_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody, somebody with a wrong password, the right one: told what to do, then it goes on."""
    tool("docker-registry", kind="registry")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    bundle = small(tmp_path / "a", "tiny", "a")
    for server in running(servers.DockerRegistry(tmp_path / "server", users=CI_SECRET)):
        host = f"127.0.0.1:{server.port}"
        for password in (None, "wrong", "secret"):
            auth = base64.b64encode(f"ci:{password}".encode()).decode()
            known = {"auths": {host: {"auth": auth}} if password else {}}
            (tmp_path / "config.json").write_text(json.dumps(known))
            registry = quick(at(f"oci://{host}/models"))
            if password == "secret":
                publish(registry, bundle)
                assert demand_whole(registry, "tiny") == bundle.digest
                continue
            with pytest.raises(PublishFailed, match="HTTP 401") as error:
                publish(registry, bundle)
            assert "docker login" in str(error.value.hint) and auth not in str(error.value)


class TestFaultsOfMlflow(ServerFaults):
    @pytest.fixture
    def server(self, mlflow: servers.Server) -> servers.Server:
        return mlflow

    def where(self, port: int) -> str:
        return f"mlflow+http://127.0.0.1:{port}"


class FaultsOfS3(ServerFaults):
    stays = True

    @pytest.fixture(autouse=True)
    def account(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", servers.ACCESS)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", servers.SECRET)

    def where(self, port: int) -> str:
        return f"s3+http://127.0.0.1:{port}/models/faulty"

    def test_a_wrong_secret(self, connect: Connect, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        bundle = small(tmp_path / "a", name, "a")
        with monkeypatch.context() as wrong:
            wrong.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
            with pytest.raises(PublishFailed, match="SignatureDoesNotMatch") as error:
                publish(connect(), bundle)
            assert "not-the-secret" not in str(error.value) and "credentials" in str(error.value.hint)
        publish(connect(), bundle)


class TestFaultsOfRclone(FaultsOfS3):
    @pytest.fixture
    def server(self, rclone: servers.Server) -> servers.Server:
        return rclone
