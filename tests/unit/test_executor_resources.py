"""Cores, memory, GPUs and the right to measure alone: shared fairly, between threads and between builds."""

from __future__ import annotations

import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optpipe.backends.executors import resources
from optpipe.backends.executors.resources import Machine, Resources
from optpipe.errors import EnvironmentMissing, Interrupted
from optpipe.records import Needs

ROOT = Path(__file__).parents[2]
ORDINARY = Needs()


class Bench:
    """Threads that take something, hold it until told, and say when they had it."""

    def __init__(self, folder: Path, cpus: int = 2, memory: int = 100, gpus: tuple[str, ...] = ()) -> None:
        self.stop = threading.Event()
        self.said: list[str] = []
        machine = Machine(cpus, memory, gpus)
        self.resources = Resources(machine, folder / "machine.lock", self.stop, self.said.append)
        self.order: list[str] = []
        self.gpus: dict[str, tuple[str, ...]] = {}
        self._go: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []

    def take(self, name: str, needs: Needs = ORDINARY) -> None:
        go = self._go[name] = threading.Event()

        def work() -> None:
            try:
                with self.resources.take(needs, 1) as grant:
                    self.gpus[name] = grant.gpus
                    self.order.append(name)
                    go.wait(20)
            except Interrupted:
                self.order.append(f"{name} interrupted")

        self._threads.append(threading.Thread(target=work))
        self._threads[-1].start()
        time.sleep(0.05)

    def let_go(self, *names: str) -> None:
        for name in names:
            self._go[name].set()

    def has(self, *names: str, within_s: float = 5.0) -> bool:
        end = time.monotonic() + within_s
        while time.monotonic() < end:
            if self.order == list(names):
                time.sleep(0.25)
                return self.order == list(names)
            time.sleep(0.02)
        return False

    def end(self) -> None:
        self.stop.set()
        self.let_go(*self._go)
        for thread in self._threads:
            thread.join(10)
        assert not any(thread.is_alive() for thread in self._threads)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**more: object) -> Bench:
        made.append(Bench(tmp_path, **more))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_cores_limit_what_runs_at_once(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=2)
    for name in "abc":
        it.take(name)
    assert it.has("a", "b")
    it.let_go("a")
    assert it.has("a", "b", "c")


def test_memory_limits_what_runs_at_once(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=8, memory=100)
    it.take("a", Needs(memory_bytes=70))
    it.take("b", Needs(memory_bytes=40))
    assert it.has("a")
    it.let_go("a")
    assert it.has("a", "b")


def test_a_job_that_asks_for_more_than_there_is_gets_all_there_is(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=2, memory=100)
    it.take("big", Needs(cpus=64, memory_bytes=10**6))
    it.take("small")
    assert it.has("big")
    it.let_go("big")
    assert it.has("big", "small")


def test_who_measures_waits_until_there_is_no_other_work(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=4)
    it.take("a")
    it.take("alone", Needs(exclusive=True))
    it.take("late")
    assert it.has("a", "late")
    it.let_go("a")
    assert it.has("a", "late")
    it.let_go("late")
    assert it.has("a", "late", "alone")


def test_nothing_runs_beside_who_measures(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=4)
    it.take("alone", Needs(exclusive=True))
    assert it.has("alone")
    it.take("late")
    assert it.has("alone")
    it.let_go("alone")
    assert it.has("alone", "late")


def test_work_that_does_not_fit_does_not_keep_from_measuring(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=4, memory=100)
    with it.resources.resident(80):
        it.take("large", Needs(memory_bytes=50))
        it.take("alone", Needs(exclusive=True))
        assert it.has("alone")
        it.let_go("alone")
    assert it.has("alone", "large")


def test_gpus_go_to_one_job_each(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=8, gpus=("0", "1", "2"))
    it.take("a", Needs(gpus=1))
    it.take("b", Needs(gpus=2))
    it.take("c", Needs(gpus=1))
    assert it.has("a", "b")
    assert it.gpus == {"a": ("0",), "b": ("1", "2")}
    it.let_go("b")
    assert it.has("a", "b", "c")
    assert it.gpus["c"] == ("1",)


def test_measuring_on_a_gpu_leaves_the_other_gpus_to_others(bench: Callable[..., Bench]) -> None:
    it = bench(cpus=8, gpus=("0", "1"))
    it.take("a", Needs(gpus=1, exclusive=True))
    it.take("b", Needs(gpus=1))
    assert it.has("a", "b")


def test_two_builds_never_share_a_gpu(bench: Callable[..., Bench]) -> None:
    one, other = bench(cpus=8, gpus=("0", "1")), bench(cpus=8, gpus=("0", "1"))
    one.take("a", Needs(gpus=1))
    other.take("b", Needs(gpus=1))
    assert one.has("a") and other.has("b")
    assert {one.gpus["a"], other.gpus["b"]} == {("0",), ("1",)}


def test_more_gpus_than_there_are_is_an_error(bench: Callable[..., Bench]) -> None:
    with (
        pytest.raises(EnvironmentMissing, match="2 GPUs are needed and this machine shows 0"),
        bench().resources.take(Needs(gpus=2), 1),
    ):
        pass


def test_two_builds_measure_one_after_the_other(bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resources, "SAY_AFTER_S", 0.3)
    one, other = bench(), bench()
    one.take("a", Needs(exclusive=True))
    other.take("b", Needs(exclusive=True))
    other.take("c")
    assert one.has("a") and other.has()
    one.let_go("a")
    assert other.has("b")
    assert other.said == [resources.WAIT_ALONE]


def test_ordinary_work_waits_for_another_build_that_measures(
    bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "SAY_AFTER_S", 0.3)
    one, other = bench(), bench()
    one.take("a", Needs(exclusive=True))
    other.take("b")
    assert other.has()
    time.sleep(0.5)
    assert other.said == ["waiting for another build that is measuring"]
    one.let_go("a")
    assert other.has("b")


def test_ordinary_work_of_two_builds_runs_side_by_side(bench: Callable[..., Bench]) -> None:
    one, other = bench(), bench()
    one.take("a")
    other.take("b")
    assert one.has("a") and other.has("b")


def test_a_stream_of_ordinary_work_does_not_starve_a_build_that_measures(bench: Callable[..., Bench]) -> None:
    stream, waiting = bench(cpus=8), bench()
    stream.take("0")
    assert stream.has("0")
    waiting.take("alone", Needs(exclusive=True))
    time.sleep(0.3)
    for name in ("1", "2"):
        stream.take(name)
    assert stream.has("0"), "later work must queue behind who waits to be alone"
    stream.let_go("0")
    assert waiting.has("alone")
    waiting.let_go("alone")
    end = time.monotonic() + 5
    while len(stream.order) < 3 and time.monotonic() < end:
        time.sleep(0.05)
    assert sorted(stream.order) == ["0", "1", "2"]


def test_a_build_can_be_stopped_while_it_waits(bench: Callable[..., Bench]) -> None:
    one, other = bench(), bench()
    one.take("a", Needs(exclusive=True))
    other.take("b")
    other.take("c", Needs(exclusive=True))
    other.stop.set()
    end = time.monotonic() + 5
    while len(other.order) < 2 and time.monotonic() < end:
        time.sleep(0.05)
    assert sorted(other.order) == ["b interrupted", "c interrupted"]


def test_the_machine_lock_is_free_again_when_its_holder_is_killed(bench: Callable[..., Bench], tmp_path: Path) -> None:
    program = f"""
import sys, threading, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from optpipe.backends.executors.resources import Machine, Resources
from optpipe.records import Needs
machine = Resources(Machine(2, 100), Path({str(tmp_path)!r}) / "machine.lock", threading.Event(), print)
with machine.take(Needs(exclusive=True), 1):
    print("alone", flush=True); time.sleep(60)
"""
    other = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert other.stdout and other.stdout.readline() == "alone\n"
    it = bench()
    it.take("mine", Needs(exclusive=True))
    assert it.has()
    other.kill()
    other.wait()
    assert it.has("mine")


def test_every_user_can_open_the_machine_lock_and_links_are_refused(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    it = bench()
    it.take("a")
    assert it.has("a")
    assert stat.S_IMODE((tmp_path / "machine.lock").stat().st_mode) == 0o666
    target = tmp_path / "target"
    target.touch()
    (tmp_path / "link.lock").symlink_to(target)
    with pytest.raises(OSError):
        resources.open_shared(tmp_path / "link.lock")
