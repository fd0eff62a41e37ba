"""kill -9 at any moment: nothing is left running, and the next build ends with the same result."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

from optpipe.backends.executors.engine_run import can_bind
from optpipe.errors import BackendFailed
from optpipe.processes import MARK, live_folder
from tests.fakes.site import ROOT, executor, job

BUILD = """
import json, sys
from pathlib import Path
from optpipe.records import Needs
from tests.fakes.site import Heard, engine, executor, job
folder, order = Path(sys.argv[1]), json.loads(sys.argv[2])
heard = Heard()
ex = executor(folder, heard=heard)
if "engine" in order:
    with ex.session(engine(order["engine"])) as session:
        needs = Needs(exclusive=order.get("alone", False))
        result = session.run(job(*order["steps"], kind="canary", needs=needs))
else:
    result = ex.run(job(*order["steps"]))
print(json.dumps({"key": result.key, "digest": result.files.digest, "record": result.record,
                  "ran": ex.ran, "kept": ex.kept, "said": heard.lines}))
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))


def build(folder: Path, *steps: dict[str, object], **order: object) -> subprocess.Popen[str]:
    """A build in a process of its own that runs one job."""
    words = json.dumps({"steps": steps, **order})
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", BUILD, str(folder), words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, env=env, text=True, cwd=folder)


def outcome(process: subprocess.Popen[str]) -> dict[str, object]:
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, out
    return dict(json.loads(out))


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def when(path: Path, lines: int = 1) -> list[str]:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        if path.exists() and len(found := path.read_text().splitlines()) >= lines:
            return found
        time.sleep(0.01)
    raise AssertionError(f"{path} did not get {lines} lines")


def below(folder: Path) -> list[int]:
    """Living processes that some build below `folder` started: by their words, or by the mark of a job."""
    found = []
    for process in psutil.process_iter():
        try:
            env = process.environ()
            ours = env.get("OPTPIPE_HOME", "").startswith(str(folder)) and process.pid != os.getpid()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def nothing_left(folder: Path, within_s: float = 15.0) -> bool:
    end = time.monotonic() + within_s
    while (left := below(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return not left


# ---------------------------------------------------------------- the build is killed


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no POSIX shared memory folder")
def test_a_build_killed_in_a_session_leaves_no_process_port_or_shared_memory(tmp_path: Path) -> None:
    shm = f"optpipe-test-{uuid.uuid4().hex[:8]}"
    config = {"stubborn": True, "shm": shm, "count": str(tmp_path / "starts")}
    killed = build(tmp_path, {"ask": "x"}, {"touch": str(tmp_path / "up")}, {"sleep": 300}, engine=config)
    when(tmp_path / "up")
    port = int(when(tmp_path / "starts")[0].split()[1])
    assert len(below(tmp_path)) >= 5 and Path("/dev/shm", shm).exists() and not can_bind(port)
    kill(killed)
    assert nothing_left(tmp_path)
    assert can_bind(port) and not Path("/dev/shm", shm).exists()
    assert list(live_folder().glob("*.json")) == []


def test_a_build_and_its_supervisors_killed_in_a_session_are_cleaned_up_by_the_next(tmp_path: Path) -> None:
    shm = f"optpipe-test-{uuid.uuid4().hex[:8]}"
    config = {"stubborn": True, "shm": shm, "count": str(tmp_path / "starts")}
    steps = ({"ask": "x"}, {"touch": str(tmp_path / "up")}, {"wait": str(tmp_path / "go")})
    killed = build(tmp_path, *steps, engine=config)
    when(tmp_path / "up")
    time.sleep(1.2)
    for record in live_folder().glob("*.json"):
        os.kill(json.loads(record.read_text())["supervisor"][0], signal.SIGKILL)
    kill(killed)
    (tmp_path / "go").touch()
    again = outcome(build(tmp_path, *steps, engine=config))
    assert any("ended what an earlier build left" in line for line in again["said"])
    assert nothing_left(tmp_path, 5) and not Path("/dev/shm", shm).exists()
    for line in when(tmp_path / "starts", 2):
        assert can_bind(int(line.split()[1]))


@pytest.mark.parametrize("moment", ["at once", "at work", "files written", "record written"])
def test_a_build_killed_at_any_moment_goes_on_to_the_same_result(tmp_path: Path, moment: str) -> None:
    begun, written = tmp_path / "begun", tmp_path / "written"
    steps = ({"touch": str(begun)}, {"sleep": 0.5}, {"write": "the result"}, {"touch": str(written)}, {"sleep": 0.4})
    whole = outcome(build(tmp_path / "reference", *steps) if (tmp_path / "reference").mkdir() is None else None)
    begun.unlink()
    written.unlink()
    killed = build(tmp_path, *steps)
    if moment == "at work":
        when(begun)
    elif moment != "at once":
        when(written)
        time.sleep(0.0 if moment == "files written" else 0.45)
    kill(killed)
    starts = len(begun.read_text().splitlines()) if begun.exists() else 0
    again = outcome(build(tmp_path, *steps))
    assert (again["key"], again["digest"], again["record"]) == (whole["key"], whole["digest"], whole["record"])
    assert len(begun.read_text().splitlines()) <= starts + 2
    third = outcome(build(tmp_path, *steps))
    assert (third["ran"], third["kept"], third["digest"]) == (0, 1, whole["digest"])
    assert list((tmp_path / "cache" / "work").glob("*")) == []
    assert nothing_left(tmp_path)


# ---------------------------------------------------------------- a worker or a supervisor is killed


@pytest.mark.parametrize("moment", ["begun", "written"])
@pytest.mark.parametrize("who", ["worker", "supervisor"])
def test_a_killed_worker_or_supervisor_is_told_and_the_job_tried_again(tmp_path: Path, moment: str, who: str) -> None:
    begun, written, go = (tmp_path / name for name in ("begun", "written", "go"))
    steps = ({"touch": str(begun)}, {"write": "the result"}, {"touch": str(written)}, {"wait": str(go)})
    killed = build(tmp_path, *steps)
    worker = int(when(tmp_path / moment)[0].split()[0])
    target = worker if who == "worker" else psutil.Process(worker).ppid()
    os.kill(target, signal.SIGKILL)
    killed.communicate(timeout=30)
    assert killed.returncode == 1
    assert nothing_left(tmp_path, 5)
    go.touch()
    again = outcome(build(tmp_path, *steps))
    assert (again["ran"], len(begun.read_text().splitlines())) == (1, 2)
    assert outcome(build(tmp_path, *steps))["digest"] == again["digest"]
    assert len(begun.read_text().splitlines()) == 2


def test_a_killed_worker_is_a_passing_failure(tmp_path: Path) -> None:
    with pytest.raises(BackendFailed, match="signal 9") as raised:
        executor(tmp_path).run(job({"die": 9}))
    assert raised.value.transient


# ---------------------------------------------------------------- two builds at once


def test_two_builds_that_want_the_same_job_run_it_once(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    steps = ({"touch": str(begun)}, {"sleep": 1.0}, {"write": "x"})
    builds = [build(tmp_path, *steps) for _ in range(3)]
    results = [outcome(one) for one in builds]
    assert len({str(one["digest"]) for one in results}) == 1
    assert sorted(one["ran"] for one in results) == [0, 0, 1]
    assert len(begun.read_text().splitlines()) == 1


def test_two_builds_measure_one_after_the_other(tmp_path: Path) -> None:
    spans = tmp_path / "spans"
    builds = [
        build(
            tmp_path, {"touch": str(spans)}, {"sleep": 1.0}, {"touch": str(spans)}, engine={"build": number}, alone=True
        )
        for number in range(2)
    ]
    assert [outcome(one)["ran"] for one in builds] == [1, 1]
    pids = [line.split()[0] for line in spans.read_text().splitlines()]
    assert len(pids) == 4 and pids[0] == pids[1] and pids[2] == pids[3]


def test_a_second_build_takes_over_the_job_of_one_that_is_killed(tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    steps = ({"touch": str(begun)}, {"wait": str(go)}, {"write": "x"})
    first = build(tmp_path, *steps)
    when(begun)
    second = build(tmp_path, *steps)
    time.sleep(1.0)
    kill(first)
    go.touch()
    assert outcome(second)["ran"] == 1
    assert len(begun.read_text().splitlines()) == 2 and nothing_left(tmp_path)


def test_a_living_build_keeps_its_engine_when_another_begins(tmp_path: Path) -> None:
    up, go = tmp_path / "up", tmp_path / "go"
    first = build(tmp_path, {"ask": "x"}, {"touch": str(up)}, {"wait": str(go)}, {"ask": "y"}, engine={})
    when(up)
    executor(tmp_path / "other")
    go.touch()
    assert outcome(first)["record"]["answer"]
    assert MARK not in os.environ
