"""Engine sessions over a fake engine: started when needed, watched, ended with nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from optpipe.backends.executors import engine_run
from optpipe.errors import BackendFailed, Interrupted
from optpipe.processes import Ident, live_folder
from optpipe.records import Artifact, EngineSpec, Job, Json, Needs
from tests.fakes.site import Heard, engine, executor, job

ASK = {"ask": "what does the fox do"}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def nothing_is_left(tmp_path: Path, home: None) -> Iterator[None]:
    yield
    assert list(live_folder().glob("*.json")) == []
    words = str(tmp_path)
    left = [p.info["cmdline"] for p in psutil.process_iter(["cmdline"]) if words in " ".join(p.info["cmdline"] or ())]
    assert left == []


def counting(tmp_path: Path, **config: object) -> EngineSpec:
    return engine({"count": str(tmp_path / "starts"), **config})


def starts(tmp_path: Path) -> list[int]:
    """The port of each start."""
    path = tmp_path / "starts"
    return [int(line.split()[1]) for line in path.read_text().splitlines()] if path.exists() else []


def canary(seed: int = 1, **more: object) -> Job:
    return job(ASK, kind="canary", seed=seed, **more)


def failure(tmp_path: Path, spec: EngineSpec, *jobs: Job) -> BackendFailed:
    with pytest.raises(BackendFailed) as raised, executor(tmp_path).session(spec) as session:
        for one in jobs or (canary(),):
            session.run(one)
    return raised.value


# ---------------------------------------------------------------- one engine for all pending jobs


def test_one_engine_serves_all_jobs_and_is_gone_afterwards(tmp_path: Path) -> None:
    with executor(tmp_path).session(counting(tmp_path)) as session:
        answers = [session.run(canary(seed)).record["answer"] for seed in (1, 2, 3)]
        assert session.started and session.ready_s and session.ready_s > 0
    assert len(answers) == 3 and all(answers)
    (status,) = tmp_path.glob("**/*-engine.json")
    assert json.loads(status.read_text(encoding="utf-8"))["peak_memory_bytes"] > 1 << 20
    beside = [json.loads(path.read_text(encoding="utf-8")) for path in tmp_path.glob("**/jobs/*/engine.json")]
    assert len(beside) == 3 and beside[0]["peak_memory_bytes"] > 1 << 20 and beside[0]["ready_s"] > 0
    (port,) = starts(tmp_path)
    assert engine_run.can_bind(port)


def test_the_engine_does_not_start_when_every_job_is_kept(tmp_path: Path) -> None:
    spec = counting(tmp_path)
    for _ in range(2):
        ex = executor(tmp_path)
        with ex.session(spec) as session:
            session.run(canary())
    assert len(starts(tmp_path)) == 1
    assert (ex.ran, ex.kept, session.started, session.ready_s) == (0, 1, False, None)


def test_only_the_missing_job_runs(tmp_path: Path) -> None:
    spec = counting(tmp_path)
    for jobs in ((1,), (1, 2)):
        ex = executor(tmp_path)
        with ex.session(spec) as session:
            kept = [session.run(canary(seed)).kept for seed in jobs]
    assert kept == [True, False] and len(starts(tmp_path)) == 2


CHANGES: dict[str, Json] = {
    "config": {"config": {"max-num-seqs": 8}},
    "model": {"model": Artifact(Path("/m"), "sha256:other")},
    "environment": {"environment": {"VLLM_X": "1"}},
    "engine": {"engine": "other"},
    "argv": {"argv": ("-m", "engine", "--more")},
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_key_changes_with_the_engine(tmp_path: Path, change: Json) -> None:
    ex, spec = executor(tmp_path), engine()
    with ex.session(spec) as one, ex.session(replace(spec, **change)) as other:
        assert one.key(canary()) != other.key(canary())


def test_the_key_does_not_change_with_names_and_paths(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    spec = replace(engine(), argv=("serve", "/a", "--served-model-name", "x"), served_name="x")
    spec = replace(spec, model=Artifact(Path("/a"), "sha256:m"))
    moved = replace(spec, title="other", model=Artifact(Path("/b"), "sha256:m"), served_name="y")
    moved = replace(moved, argv=("serve", "/b", "--served-model-name", "y"))
    with ex.session(spec) as one, ex.session(moved) as other:
        assert one.key(canary()) == other.key(canary())


def test_a_variable_of_the_caller_that_reaches_the_engine_is_in_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with executor(tmp_path).session(engine()) as session:
        before = session.key(canary())
        monkeypatch.setenv("VLLM_ATTENTION_BACKEND", "OTHER")
        assert session.key(canary()) != before


# ---------------------------------------------------------------- engines that do not get ready


def test_an_engine_that_exits_is_a_failure_with_its_last_words(tmp_path: Path) -> None:
    error = failure(tmp_path, counting(tmp_path, exit=1))
    assert error.transient
    assert "fake did not start: ended with exit code 1" in error.message
    assert "ValueError: no such thing" in error.message
    assert error.log and Path(error.log).exists()


def test_a_configuration_that_never_works_is_kept_as_such(tmp_path: Path) -> None:
    spec = counting(tmp_path, exit=1, **{"fatal-line": "ValueError: FP8 is not supported"})
    first, second = failure(tmp_path, spec), failure(tmp_path, spec)
    assert not first.transient and not second.transient
    assert "FP8 is not supported" in second.message
    assert len(starts(tmp_path)) == 1


def test_an_engine_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    spec = replace(counting(tmp_path, **{"never-ready": True}), ready_s=2.0)
    assert "was not ready after 2 s" in failure(tmp_path, spec).message


def test_a_log_line_that_says_all_is_lost_ends_the_wait(tmp_path: Path) -> None:
    began = time.monotonic()
    error = failure(tmp_path, counting(tmp_path, **{"fatal-line": "torch InvalidCxxCompiler: no g++"}))
    assert "InvalidCxxCompiler" in error.message
    assert time.monotonic() - began < 12


def test_a_worker_that_dies_while_the_server_hangs_is_seen(tmp_path: Path) -> None:
    began = time.monotonic()
    error = failure(tmp_path, counting(tmp_path, **{"worker-dies-after": 1.5, "never-ready": True}))
    assert "its worker process ended" in error.message and "FAKE::Worker" in error.message
    assert time.monotonic() - began < 14


def test_another_server_on_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    spec = replace(counting(tmp_path), served_name="ours", ready_s=2.0)
    assert "was not ready" in failure(tmp_path, spec).message


# ---------------------------------------------------------------- engines that die under load


def test_an_engine_that_dies_under_load_is_named_and_the_search_goes_on(tmp_path: Path) -> None:
    jobs = [job(*[ASK] * 6, kind="load", seed=n) for n in (1, 2)]
    heard = Heard()
    ex = executor(tmp_path, heard=heard)
    with ex.session(counting(tmp_path, **{"die-after": 3})) as session:
        for one in jobs:
            with pytest.raises(BackendFailed, match=r"fake died: .*signal 9") as raised:
                session.run(one)
            assert raised.value.transient and "out of luck" in raised.value.message
    assert len(starts(tmp_path)) == 1, "a lost engine is not started again for the next job"
    with ex.session(engine({"answer": "words"})) as session:
        assert session.run(jobs[0]).record["answer"]


def test_figures_of_a_dying_engine_are_not_kept(tmp_path: Path) -> None:
    """The job ends well although the engine died a moment before its end."""
    swallow = job({"ask-in-vain": "x"}, kind="load")
    ex = executor(tmp_path)
    with ex.session(counting(tmp_path, **{"die-after": 1})) as session:
        key = session.key(swallow)
        with pytest.raises(BackendFailed, match="fake died"):
            session.run(swallow)
    assert ex.store.get(key) is None


def test_a_job_that_fails_by_itself_leaves_the_engine_alone(tmp_path: Path) -> None:
    with executor(tmp_path).session(counting(tmp_path)) as session:
        with pytest.raises(BackendFailed, match="no such text"):
            session.run(job({"fail": "no such text"}, kind="parity"))
        assert session.run(canary()).record["answer"]
    assert len(starts(tmp_path)) == 1


# ---------------------------------------------------------------- ending


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no POSIX shared memory folder")
def test_an_engine_that_forks_and_ignores_sigterm_is_ended_with_its_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_run, "GRACE_S", 1.0)
    shm = f"optpipe-test-{uuid.uuid4().hex[:8]}"
    with executor(tmp_path).session(counting(tmp_path, stubborn=True, shm=shm)) as session:
        assert session.run(canary()).record["answer"]
        assert Path("/dev/shm", shm).exists()
    assert engine_run.can_bind(starts(tmp_path)[0])
    assert not Path("/dev/shm", shm).exists()


def test_an_error_in_the_block_ends_the_engine(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), executor(tmp_path).session(counting(tmp_path)) as session:
        session.run(canary())
        raise ZeroDivisionError
    assert engine_run.can_bind(starts(tmp_path)[0])


def test_stop_ends_an_engine_that_is_starting(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    timer = threading.Timer(1.5, ex.stop)
    timer.start()
    with pytest.raises(Interrupted), ex.session(counting(tmp_path, **{"never-ready": True})) as session:
        session.run(canary())


# ---------------------------------------------------------------- alone on the machine


def test_work_inside_a_session_does_not_wait_for_the_session(tmp_path: Path) -> None:
    """A stage may run an ordinary job, or need a dropped file again, while its session is open."""
    ex = executor(tmp_path)
    text = job({"write": "hello"}, title="text")
    made = ex.run(text)
    with ex.session(counting(tmp_path)) as session:
        session.run(canary())
        assert ex.run(job({"write": "inside"}, title="inside")).record
        ex.store.drop_files(made.key)
        asked = session.run(job({"copy": "text"}, kind="parity", inputs={"text": made.files}))
        assert asked.record["text"] == "hello"


def test_work_goes_on_beside_an_engine_that_is_not_being_measured(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    with ex.session(counting(tmp_path)) as session:
        session.run(canary())
        other = threading.Thread(target=lambda: ex.run(job({"write": "x"})))
        other.start()
        other.join(20)
        assert not other.is_alive()
        session.run(canary(2))


def test_nothing_runs_beside_a_measurement(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    measuring = replace(canary(3), needs=Needs(exclusive=True), options={**ASK, "sleep": 2.0})
    seen: list[str] = []

    def run_other() -> None:
        ex.run(job({"write": "x"}))
        seen.append("other")

    with ex.session(counting(tmp_path)) as session:
        session.run(canary())
        load = threading.Thread(target=lambda: (session.run(measuring), seen.append("measured")))
        load.start()
        time.sleep(1.0)
        other = threading.Thread(target=run_other)
        other.start()
        load.join(30)
        other.join(30)
    assert seen == ["measured", "other"]


def test_two_engines_can_be_compared_side_by_side_by_one_thread(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    with ex.session(counting(tmp_path)) as one, ex.session(counting(tmp_path, more=1)) as other:
        for seed in (1, 2):
            assert one.run(canary(seed)).record and other.run(canary(seed)).record
    assert len(set(starts(tmp_path))) == 2
    assert ex.run(job({"write": "after"})).record


def test_an_engine_over_its_memory_limit_is_named(tmp_path: Path) -> None:
    spec = replace(counting(tmp_path), needs=Needs(memory_limit_bytes=1 << 20))
    assert "killed for memory: peak" in failure(tmp_path, spec).message


def test_a_worker_that_a_list_of_processes_missed_is_not_lost(tmp_path: Path) -> None:
    """A list of a tree is read while others fork and end; only a process that is gone is lost."""
    watched = engine_run.Watched(replace(engine(), workers="VLLM::"), tmp_path / "log")
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        ident = Ident.of(child.pid)
        assert ident is not None
        watched.workers[ident] = "VLLM::Worker"
        assert watched.lost_worker(supervisor=child.pid) is None, "it is not below itself, and lives"
        child.kill()
    assert watched.lost_worker(supervisor=os.getpid()) == "VLLM::Worker"
