"""Engines left running between sessions: shared by equal configurations, ended for memory and with the build."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from optpipe.backends.executors.local import LocalExecutor
from optpipe.errors import BackendFailed
from optpipe.processes import live_folder
from optpipe.records import Artifact, EngineSpec, Job, Needs
from tests.fakes.site import engine, executor, job

GIB = 1 << 30


@pytest.fixture
def ex(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalExecutor]:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    made = executor(tmp_path)
    yield made
    made.close()
    assert list(live_folder().glob("*.json")) == []
    words = str(tmp_path)
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if words in " ".join(p.info["cmdline"] or ())]
    assert left == []


def spec(tmp_path: Path, memory: int = GIB, **config: object) -> EngineSpec:
    return replace(engine({"count": str(tmp_path / "starts"), **config}), needs=Needs(cpus=1, memory_bytes=memory))


def ask(ex: LocalExecutor, served: EngineSpec, seed: int) -> str:
    with ex.session(served, park=True) as session:
        return str(session.run(canary(seed)).record["answer"])


def canary(seed: int) -> Job:
    return job({"ask": "what does the fox do"}, kind="canary", seed=seed)


def starts(tmp_path: Path) -> int:
    return len((tmp_path / "starts").read_text().splitlines())


def test_the_next_session_of_the_same_configuration_goes_on_with_the_engine(tmp_path: Path, ex: LocalExecutor) -> None:
    assert ask(ex, spec(tmp_path), 1) and ask(ex, spec(tmp_path), 2)
    assert starts(tmp_path) == 1


CHANGES = {
    "configuration": {"config": {"max-num-seqs": 8}},
    "environment": {"environment": {"VLLM_X": "1"}},
    "model": {"model": Artifact(Path("/m"), "sha256:other")},
    "served name": {"served_name": "another"},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_anything_else_gets_an_engine_of_its_own(tmp_path: Path, ex: LocalExecutor, change: dict[str, object]) -> None:
    ask(ex, spec(tmp_path), 1)
    with ex.session(replace(spec(tmp_path), **change), park=True) as session:  # type: ignore[arg-type]
        assert not session.started
        assert ex.parking.take(ex.identity(session.spec)) is None


def test_an_engine_that_died_while_nobody_used_it_is_started_again(tmp_path: Path, ex: LocalExecutor) -> None:
    ask(ex, spec(tmp_path), 1)
    processes = [(p, p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    ours = [p for p, words in processes if "--served-model-name" in words and str(tmp_path) in " ".join(words)]
    engines = [p for p in ours if p.children() == []]
    assert len(engines) == 1
    engines[0].kill()
    assert ask(ex, spec(tmp_path), 2)
    assert starts(tmp_path) == 2


def test_an_engine_that_was_lost_is_not_parked(tmp_path: Path, ex: LocalExecutor) -> None:
    with pytest.raises(BackendFailed), ex.session(spec(tmp_path, **{"die-after": 1}), park=True) as session:
        session.run(canary(1))
        session.run(canary(2))
    assert ex.parking.make_room() is False


def test_idle_engines_give_way_to_work_that_needs_their_memory(tmp_path: Path, ex: LocalExecutor) -> None:
    ask(ex, spec(tmp_path, 3 * GIB), 1)
    needy = replace(job({"write": "x"}), needs=Needs(memory_bytes=7 * GIB))
    assert ex.run(needy).record
    assert ex.parking.make_room() is False


def test_idle_engines_hold_at_most_half_of_the_memory(tmp_path: Path, ex: LocalExecutor) -> None:
    for number in range(3):
        ask(ex, spec(tmp_path, 2 * GIB, more=number), 1)
    kept = [ex.parking.take(ex.identity(spec(tmp_path, 2 * GIB, more=number))) for number in range(3)]
    assert [one is not None for one in kept] == [False, True, True]
    for one in kept:
        if one:
            one.end()
