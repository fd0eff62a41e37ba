"""What every registry must do, whatever it is: inherited by the tests of each.

`Contract.connect` is a fixture that gives new connections to one registry; models get names of their own, so that
tests may share a server.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from optpipe import bundle as bundles
from optpipe.backends.registries import Registry, Version
from optpipe.errors import InputError, OptpipeError, PublishFailed
from optpipe.records import Bundle

Connect = Callable[[], Registry]


def make(folder: Path, name: str, content: str) -> Bundle:
    """A bundle with files in folders, an empty one, one that is shared with other versions, one of some size."""
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "vllm.yaml").write_text("max-num-seqs: 8\n")
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "empty.txt").write_text("")
    (folder / "README.md").write_text(f"# {name}\n{content}\n")
    for part in range(3):
        (folder / f"model-{part}.safetensors").write_bytes(f"{content} {part} ".encode() * 30_000)
    manifest = bundles.write_manifest(folder)
    return Bundle(name, folder, manifest.digest, "sha256:" + "1" * 64, manifest.bytes)


def ship(registry: Registry, bundle: Bundle, *aliases: str) -> Version:
    version = registry.upload(bundle)
    for alias in aliases or ("latest",):
        registry.move(version, alias, expected=registry.alias(bundle.name, alias), evidence="test")
    return version


class Contract:
    """The tests. A test class for one registry inherits them and defines `connect`."""

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError

    @pytest.fixture
    def registry(self, connect: Connect) -> Registry:
        return connect()

    @pytest.fixture
    def name(self) -> str:
        return f"tiny-{uuid.uuid4().hex[:8]}"

    def test_what_is_pulled_is_what_was_published(
        self, registry: Registry, connect: Connect, name: str, tmp_path: Path
    ) -> None:
        bundle = make(tmp_path / "a", name, "a")
        ship(registry, bundle, "latest", "champion")
        for reference in (name, f"{name}@champion", f"{name}@{bundle.digest}", f"{name}@{bundle.digest[:17]}"):
            assert connect().resolve(reference) == Version(name, bundle.digest)
        connect().pull(f"{name}@champion", tmp_path / "here")
        assert bundles.verify(tmp_path / "here", bundle.digest) == ()
        assert connect().verify(Version(name, bundle.digest)) == ()
        assert (tmp_path / "here" / "manifest.json").read_bytes() == (bundle.path / "manifest.json").read_bytes()

    def test_the_same_digest_again_is_nothing_to_do(self, registry: Registry, name: str, tmp_path: Path) -> None:
        bundle = make(tmp_path / "a", name, "a")
        first = ship(registry, bundle, "latest")
        sent: list[int] = []
        registry.storage.tick = sent.append
        assert ship(registry, bundle, "latest") == first
        assert sent == []
        assert registry.listing()["models"][name] == {"aliases": {"latest": bundle.digest}, "versions": [bundle.digest]}
        assert len(registry.history(name)) == 1

    def test_versions_share_a_model_and_stay_as_they_are(self, registry: Registry, name: str, tmp_path: Path) -> None:
        one, two = (make(tmp_path / text, name, text) for text in ("one", "two"))
        ship(registry, one)
        (two.path / "extra.json").write_text("{}")
        two = Bundle(name, two.path, bundles.write_manifest(two.path).digest, "", 0)
        ship(registry, two)
        assert registry.listing()["models"][name]["versions"] == [one.digest, two.digest]
        for bundle in (one, two):
            registry.pull(f"{name}@{bundle.digest}", tmp_path / bundle.digest[7:15])
            assert bundles.verify(tmp_path / bundle.digest[7:15], bundle.digest) == ()

    def test_nothing_is_seen_of_a_version_before_it_is_whole(
        self, registry: Registry, connect: Connect, name: str, tmp_path: Path
    ) -> None:
        bundle = make(tmp_path / "a", name, "a")
        (bundle.path / "model-2.safetensors").write_bytes(b"x" * (bundle.path / "model-2.safetensors").stat().st_size)
        with pytest.raises(PublishFailed, match=r"model-2\.safetensors"):
            registry.upload(bundle)
        assert connect().storage.versions(name) == []
        assert name not in connect().listing()["models"]
        with pytest.raises(PublishFailed, match="not complete"):
            connect().move(Version(name, bundle.digest), "champion", expected=None, evidence="too early")
        (bundle.path / "model-2.safetensors").write_bytes(b"a 2 " * 30_000)
        ship(connect(), bundle)
        assert connect().verify(Version(name, bundle.digest)) == ()

    def test_an_alias_moves_only_from_what_is_expected(
        self, registry: Registry, connect: Connect, name: str, tmp_path: Path
    ) -> None:
        one, two, late = (registry.upload(make(tmp_path / text, name, text)) for text in ("a", "b", "c"))
        registry.move(one, "champion", expected=None, evidence="first")
        registry.move(two, "champion", expected=one.digest, evidence="better")
        with pytest.raises(PublishFailed, match=f"champion means {two.digest}") as error:
            connect().move(late, "champion", expected=one.digest, evidence="measured against the old one")
        assert error.value.exit_code == 6
        assert connect().alias(name, "champion") == two.digest

    def test_the_history_says_who_moved_what_when_and_why(self, registry: Registry, name: str, tmp_path: Path) -> None:
        one, two = (registry.upload(make(tmp_path / text, name, text)) for text in ("a", "b"))
        registry.move(one, "champion", expected=None, evidence="run 1")
        registry.move(two, "champion", expected=one.digest, evidence="run 2")
        assert registry.rollback(name, "champion", evidence="it was slow") == one
        with pytest.raises(InputError, match="nothing but"):
            registry.rollback(name, "champion", evidence="further")
        moves = [kept.move for kept in registry.history(name)]
        assert [(move.previous, move.digest, move.evidence, move.action) for move in moves] == [
            (None, one.digest, "run 1", "move"),
            (one.digest, two.digest, "run 2", "move"),
            (two.digest, one.digest, "it was slow", "rollback"),
        ]
        assert all(move.by and move.time.startswith("20") for move in moves)
        assert [move.after for move in moves] == [None, moves[0].ident, moves[1].ident]

    def test_of_two_at_once_one_moves_the_alias(
        self, registry: Registry, connect: Connect, name: str, tmp_path: Path
    ) -> None:
        versions = [registry.upload(make(tmp_path / text, name, text)) for text in ("a", "b")]
        told: list[str] = []
        ready = threading.Barrier(2)

        def claim(version: Version) -> None:
            mine = connect()
            mine.alias(name, "champion")
            ready.wait()
            try:
                mine.move(version, "champion", expected=None, evidence="race")
                told.append(version.digest)
            except OptpipeError as error:
                told.append(f"exit {error.exit_code}")

        racers = [threading.Thread(target=claim, args=(version,)) for version in versions]
        for racer in racers:
            racer.start()
        for racer in racers:
            racer.join()
        assert sorted(told)[0] == "exit 6" and connect().alias(name, "champion") == sorted(told)[1]

    def test_a_signature_goes_with_its_version(self, registry: Registry, name: str, tmp_path: Path) -> None:
        bundle = make(tmp_path / "a", name, "a")
        version = ship(registry, bundle)
        assert registry.storage.signature(name, version.digest) is None
        (bundle.path / bundles.SIGNATURE).write_bytes(b"signed by somebody")
        assert ship(registry, bundle) == version
        (bundle.path / bundles.SIGNATURE).write_bytes(b"signed again by somebody")
        assert ship(registry, bundle) == version
        registry.pull(name, tmp_path / "here")
        assert (tmp_path / "here" / bundles.SIGNATURE).read_bytes() == b"signed again by somebody"
        assert bundles.verify(tmp_path / "here", bundle.digest) == ()

    def test_what_is_not_there_is_said_with_what_is(self, registry: Registry, name: str, tmp_path: Path) -> None:
        ship(registry, make(tmp_path / "a", name, "a"), "champion")
        with pytest.raises(InputError, match="no model"):
            registry.resolve(f"{name}x@champion")
        with pytest.raises(InputError, match="did you mean 'champion'"):
            registry.resolve(f"{name}@champoin")
        with pytest.raises(InputError, match="0 versions"):
            registry.resolve(f"{name}@sha256:00000000")

    def test_a_version_serves_as_a_folder_here(
        self, registry: Registry, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
        version = ship(registry, make(tmp_path / "a", name, "a"))
        folder = registry.local(version)
        assert bundles.verify(folder, version.digest) == () and registry.local(version) == folder
