"""kill -9 of a whole build, or of one of its workers, in every stage: nothing is left, nothing done is done again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.fakes.place import Done, Place, digests, kill, wait_for

Built = tuple[Place, Done]

BUILD_MOMENTS = (
    ("tokens", "score"),
    ("quantize", "int8"),
    ("quantize", "gptq"),
    ("score", "16 bits"),
    ("score", "4 bits"),
    ("engine", "base@vllm"),
    ("canary", "int8@vllm default"),
    ("parity", "w4@vllm default"),
    ("load", "w4@vllm tuned seed 1"),
    ("load", "w4@vllm tuned seed 1001"),
)
"""What is at work when the build is killed, in the order of the line."""

WORKER_MOMENTS = (
    (("tokens", "score"),),
    (("tokens", "calibrate"),),
    (("quantize", "int8"), ("quantize", "gptq"), ("score", "16 bits")),
    (("score", "8 bits"), ("engine", "base@vllm"), ("parity", "w4@vllm")),
    (("canary", "base@vllm"), ("load", "int8@vllm default seed 1"), ("load", "w4@vllm default seed 1")),
    (("load", "w4@vllm tuned seed 1"), ("load", "w4@vllm default seed 1001")),
)
"""What is killed in the first build, in the second, and so on; a build goes on with what is not concerned."""


def check_kept(place: Place, kept: dict[str, int]) -> None:
    """No job whose record was there has been run again."""
    now = place.kept()
    assert {key: now.get(key) for key in kept} == kept


def held(place: Place, *moments: tuple[str, str]) -> tuple[subprocess.Popen[str], int]:
    """A build that waits wherever it was told to, and the process in which it waits at the first of these moments."""
    before = len(place.log())
    place.order(*map(order, moments))
    process = place.start()
    return process, int(place.when(*moments[0], after=before)["pid"])


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no POSIX shared memory folder")
def test_a_build_killed_at_ten_moments_ends_as_if_it_had_not_been(tmp_path: Path, built: Built) -> None:
    place = Place.new(tmp_path / "place")
    kept: dict[str, int] = {}
    for number, (at, who) in enumerate(BUILD_MOMENTS):
        process, _ = held(place, *BUILD_MOMENTS[number:])  # candidates side by side: none gets ahead of its turn
        check_kept(place, kept)
        kept = place.kept()
        kill(process.pid)
        assert place.ended(process).code == -signal.SIGKILL
        assert place.left(15) == [], f"left after a kill in {at} {who}"
    place.order()
    done = place.build()
    check_kept(place, kept)
    assert done.code == 0 and digests(done.said) == digests(built[1].said)
    assert place.build().jobs["run"] == 0
    assert not list((place.artifacts / "cache" / "work").glob("*"))
    assert not list(place.artifacts.glob("registry/*/incoming/*"))


def test_workers_and_engines_killed_at_many_moments_cost_their_own_work_alone(tmp_path: Path, built: Built) -> None:
    place = Place.new(tmp_path / "place")
    kept: dict[str, int] = {}
    for moments in WORKER_MOMENTS:
        before = len(place.log())
        place.order(*map(order, moments))
        process = place.start()
        todo = list(moments)
        while todo:  # in whatever order they come: loads that wait for the machine come one after another
            act, moment = wait_for(lambda: first_of(place.log()[before:], todo))  # noqa: B023
            todo.remove(moment)
            place.order(*map(order, todo))
            kill(victim(place, act))
        done = place.ended(process)
        assert done.code in (0, 4) and "signal 9" in done.err, done.err
        assert place.left(5) == [], f"left after kills in {moments}"
        check_kept(place, kept)
        kept = place.kept()
    place.order()
    done = place.build()
    check_kept(place, kept)
    assert done.code == 0 and digests(done.said) == digests(built[1].said)
    assert place.build().jobs["run"] == 0


def order(moment: tuple[str, str]) -> dict[str, str]:
    return {"at": moment[0], "who": moment[1], "do": "hold"}


def first_of(log: list[dict[str, Any]], todo: list[tuple[str, str]]) -> tuple[dict[str, Any], tuple[str, str]] | None:
    """The first act that is one of these moments, and which."""
    pairs = ((act, (at, who)) for act in log for at, who in todo if act["at"] == at and who in act["who"])
    return next(pairs, None)


def victim(place: Place, act: dict[str, Any]) -> int:
    """Whom to kill: an engine once its shared memory was seen (at most a second later); else the worker.

    Canary and agreement wait in the engine, so the log names that in place of their worker.
    """
    at = act["at"]
    if at == "engine":
        wait_for(lambda: any(f"optpipe-fake-{act['pid']}-" in text for text in place.live()))
    if at not in ("canary", "parity"):
        return int(act["pid"])
    folders = {pid: psutil.Process(pid).cwd() for pid in place.processes()}
    jobs = {pid: Path(folder, "job.json") for pid, folder in folders.items() if Path(folder).parent.name == "work"}
    said = {pid: json.loads(job.read_text()) for pid, job in jobs.items()}
    served = act["who"].split()[0]
    (found,) = (pid for pid, job in said.items() if (job["kind"], job["context"].get("model")) == (at, served))
    return found


@pytest.mark.parametrize("seen", ["09-select.json", "10-confirm.json", "package", "publish.json", "report.html"])
def test_a_build_killed_while_it_packages_and_publishes(again: Place, built: Built, seen: str) -> None:
    run = built[1].said["digest"]
    again.recipe["name"] = "other"
    before = set((again.artifacts / "runs").iterdir())
    process = again.start()

    def there() -> bool:
        new = set((again.artifacts / "runs").iterdir()) - before
        return any((folder / seen).exists() for folder in new) or process.poll() is not None

    wait_for(there)
    kill(process.pid)
    again.ended(process)
    done = again.build()
    assert (done.code, done.jobs["run"]) == (0, 0)
    assert done.said["digest"] != run and digests(done.said) == digests(built[1].said)
    (published,) = done.said["published"]
    assert again.run("verify", published["location"]).code == 0
    versions = list(Path(published["location"]).parent.iterdir())
    assert [path.name for path in versions] == [published["digest"].removeprefix("sha256:")]


def test_a_killed_supervisor_is_no_reason_to_leave_anything(again: Place) -> None:
    again.recipe["load"] |= {"requests": 61}
    process, _ = held(again, ("load", "base@vllm"))
    supervisors = [p for p in psutil.Process(process.pid).children() if "optpipe.supervisor" in p.cmdline()]
    assert len(supervisors) >= 2, "the engine's and the load's"
    for supervisor in supervisors:
        os.kill(supervisor.pid, signal.SIGKILL)
    again.order()
    done = again.ended(process)
    assert done.code in (0, 4) and "its supervisor was killed" in done.err + done.out and again.left(5) == []
