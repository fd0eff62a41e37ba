"""Faults while publishing, at every request that writes: what is seen is whole, and the next try finishes.

A test class for one registry inherits `Faults` and defines `through` (connections through a proxy that cuts, with
the words that name the registry to the command line) and `connect` (past it).
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from optpipe.backends.registries import Registry, Version, at
from optpipe.errors import OptpipeError
from optpipe.records import Bundle
from tests.bundles import told_about
from tests.fakes.cutting import How, Proxy
from tests.registry_contract import Connect

CUTS: tuple[How, ...] = ("before", "middle", "after")
SETTLE_S = 0.05
"""Loopback is fast; where records decide, a write need not wait a second for another."""


@dataclass(frozen=True)
class Through:
    """The registry as it is reached through a proxy."""

    proxy: Proxy
    where: str

    def __call__(self) -> Registry:
        return quick(at(self.where))


def quick(registry: Registry) -> Registry:
    registry.settle_s = SETTLE_S
    return registry


def small(folder: Path, name: str, content: str) -> Bundle:
    (folder / "engine").mkdir(parents=True)
    (folder / "engine" / "vllm.yaml").write_text("max-num-seqs: 8\n")
    (folder / "README.md").write_text(content)
    for part in range(2):
        (folder / f"model-{part}.safetensors").write_bytes(f"{content} {part} ".encode() * 20_000)
    return told_about(folder, name)


def publish(registry: Registry, bundle: Bundle, *aliases: str) -> None:
    version = registry.upload(bundle)
    for alias in aliases or ("latest", "champion"):
        registry.move(version, alias, expected=registry.alias(bundle.name, alias), evidence="test")


def demand_whole(registry: Registry, name: str, seen: set[str] | None = None) -> str | None:
    """What can be seen verifies to the last byte (those `seen` before are not read again); the champion."""
    seen = set() if seen is None else seen
    champion = registry.alias(name, "champion")
    versions = set(registry.storage.versions(name))
    assert champion is None or champion in versions
    for digest in versions - seen:
        assert registry.verify(Version(name, digest)) == (), digest
    seen |= versions
    return champion


class Faults:
    """The tests."""

    stays = False
    """The connection stays cut: for clients that try again by themselves within seconds."""

    @pytest.fixture
    def connect(self) -> Connect:
        raise NotImplementedError

    @pytest.fixture
    def through(self) -> Iterator[Through]:
        raise NotImplementedError

    @pytest.fixture
    def name(self) -> str:
        return f"faulty-{os.urandom(4).hex()}"

    @pytest.fixture
    def old(self, connect: Connect, name: str, tmp_path: Path) -> Bundle:
        """The champion before anything goes wrong."""
        bundle = small(tmp_path / "old", name, "old")
        publish(quick(connect()), bundle)
        return bundle

    def test_a_connection_cut_at_any_write(
        self, through: Through, connect: Connect, name: str, old: Bundle, tmp_path: Path
    ) -> None:
        through.proxy.cut(0)
        publish(through(), small(tmp_path / "first", name, "first"))
        writes, broken, seen = through.proxy.count, 0, set[str]()
        assert writes >= 5
        for nth, how in zip(range(1, writes + 1), itertools.cycle(CUTS)):
            bundle = small(tmp_path / f"new-{nth}", name, f"new {nth}")
            before = connect().alias(name, "champion")
            through.proxy.cut(nth, how, stays=self.stays)
            try:
                publish(through(), bundle)
            except OptpipeError as error:
                assert error.exit_code == 6 and error.hint, error
                broken += 1
            assert demand_whole(connect(), name, seen) in (before, bundle.digest)
            through.proxy.cut(0)
            publish(through(), bundle)
            assert demand_whole(connect(), name, seen) == bundle.digest
        print(f"\n{type(self).__name__}: {writes} cuts, {broken} of them seen by the publisher")
        assert broken > 0

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.6, 0.8, 1.0])
    def test_a_publisher_killed_at_some_write(
        self, through: Through, connect: Connect, name: str, old: Bundle, tmp_path: Path, part: float
    ) -> None:
        bundle = small(tmp_path / "new", name, "new")
        through.proxy.cut(0)
        publish(through(), small(tmp_path / "count", name, "count"), "champion")
        before = connect().alias(name, "champion")
        nth = 1 + round(part * (through.proxy.count - 1))
        words = [sys.executable, "-m", "optpipe", "publish", str(bundle.path), "--name", name, "--alias", "champion"]
        with subprocess.Popen([*words, "--registry", through.where], stderr=subprocess.PIPE) as process:
            through.proxy.cut(nth, "middle", process.kill)
            assert process.wait(120) == -9
        assert demand_whole(connect(), name) == before
        through.proxy.cut(0)
        publish(through(), bundle)
        assert demand_whole(connect(), name) == bundle.digest

    def test_two_publishers_at_once(self, connect: Connect, name: str, old: Bundle, tmp_path: Path) -> None:
        """The same version twice, and two versions: whoever loses the alias is told, everything verifies."""
        same = small(tmp_path / "same", name, "same")
        other = small(tmp_path / "other", name, "other")
        for bundles_at_once in ((same, same), (same, other)):
            codes: list[int] = []

            def run(bundle: Bundle, codes: list[int] = codes) -> None:
                try:
                    publish(quick(connect()), bundle)
                    codes.append(0)
                except OptpipeError as error:
                    codes.append(error.exit_code)

            threads = [threading.Thread(target=run, args=(bundle,)) for bundle in bundles_at_once]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert len(codes) == 2 and set(codes) <= {0, 6}
            assert demand_whole(connect(), name) in {bundle.digest for bundle in (old, *bundles_at_once)}
        publish(quick(connect()), other)
        assert demand_whole(connect(), name) == other.digest
