"""A command under its supervisor: how it ended is known, and nothing of it is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from optpipe.processes import Ident, Live, descendants, end_leftovers, live_folder, marked
from optpipe.supervised import Command, Ended, Supervised

IGNORE = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
SLEEP = "import time; time.sleep(300)\n"
FORK_OUT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {IGNORE + SLEEP!r}], start_new_session=True)
print(child.pid, flush=True)
"""
Start = Callable[..., Supervised]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Supervised] = []

    def begin(program: str, **more: object) -> Supervised:
        settings = {"argv": (sys.executable, "-c", program), "timeout_s": 60.0, "grace_s": 0.5, **more}
        files = {"cwd": tmp_path, "log": tmp_path / "log", "status": tmp_path / "status.json"}
        command = Command(title="a test", env=dict(os.environ), **files, **settings)
        started.append(Supervised(command))
        return started[-1]

    yield begin
    for one in started:
        one.stop()


def finish(process: Supervised, timeout_s: float = 20) -> Ended:
    ended = process.wait(timeout_s)
    assert ended, "still running"
    return ended


def wait_for(path: Path, text: str = "") -> str:
    end = time.monotonic() + 15
    while time.monotonic() < end:
        if path.exists() and (found := path.read_text()) and text in found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{path} did not get {text!r}")


def test_exit_code_output_and_memory_are_known(start: Start, tmp_path: Path) -> None:
    ended = finish(start("import sys; x = b'x' * (64 << 20); print('out'); print('err', file=sys.stderr); sys.exit(3)"))
    assert (ended.why, ended.exit_code, ended.signal, ended.ok) == ("exited", 3, None, False)
    assert ended.peak_memory_bytes > 64 << 20
    assert set((tmp_path / "log").read_text().split()) == {"out", "err"}


def test_a_command_that_ends_at_once_is_not_missed(start: Start) -> None:
    for code in range(5):
        ended = finish(start("", argv=("/bin/sh", "-c", f"exit {code}")), 10)
        assert (ended.why, ended.exit_code) == ("exited", code)


def test_a_crash_is_named_by_its_signal(start: Start) -> None:
    ended = finish(start("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"))
    assert ended.why == "signalled"
    assert "SIGSEGV" in ended.reason()


def test_kill_nine_from_outside_is_explained_with_the_peak(start: Start) -> None:
    ended = finish(start("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"))
    assert ended.signal == signal.SIGKILL
    assert "signal 9" in ended.reason() and "peak" in ended.reason() and "this machine has" in ended.reason()


def test_a_program_that_is_not_there_is_named(start: Start, tmp_path: Path) -> None:
    command = Command("t", ("/nowhere/python",), {}, tmp_path, tmp_path / "log", tmp_path / "s.json", 5.0)
    ended = finish(Supervised(command))
    assert ended.why == "not started"
    assert "/nowhere/python: No such file" in ended.reason()


def test_the_time_limit_ends_it(start: Start) -> None:
    ended = finish(start(SLEEP, timeout_s=1.0))
    assert ended.why == "time"
    assert ended.reason() == "stopped after its time limit of 1 s"
    assert ended.seconds < 5


def test_the_memory_limit_ends_it_and_says_peak_and_limit(start: Start) -> None:
    program = "import time\nx = []\nwhile True: x.append(bytearray(b'x' * (8 << 20))); time.sleep(0.02)"
    ended = finish(start(program, memory_bytes=200 << 20))
    assert ended.why == "memory"
    assert ended.peak_memory_bytes > 200 << 20
    assert ended.reason().startswith("killed for memory: peak ")
    assert ended.reason().endswith(" of limit 200 MiB")


def test_memory_of_children_counts(start: Start) -> None:
    child = "import time; x = b'x' * (150 << 20); time.sleep(60)"
    program = f"""
import subprocess, sys
for child in [subprocess.Popen([sys.executable, "-c", {child!r}]) for _ in "ab"]:
    child.wait()
"""
    ended = finish(start(program, memory_bytes=250 << 20))
    assert ended.why == "memory"


def test_memory_that_processes_share_counts_once(start: Start) -> None:
    program = """
import os, time
x = b"x" * (150 << 20)
for _ in "abc":
    if os.fork() == 0:
        time.sleep(1.5)
        os._exit(0)
time.sleep(2)
"""
    ended = finish(start(program, memory_bytes=400 << 20))
    assert ended.why == "exited", ended.reason()


def test_stop_ends_children_of_other_sessions_that_ignore_sigterm(start: Start, tmp_path: Path) -> None:
    process = start(FORK_OUT + IGNORE + SLEEP)
    child = int(wait_for(tmp_path / "log", "\n"))
    assert Ident.of(child)
    ended = process.stop()
    assert ended.why == "stopped" and ended.left == ()
    assert Ident.of(child) is None and descendants(process.pid) == []
    assert marked(process.id) == []


def test_what_a_finished_command_left_running_is_ended(start: Start, tmp_path: Path) -> None:
    ended = finish(start(FORK_OUT))
    assert ended.ok
    assert Ident.of(int((tmp_path / "log").read_text())) is None


def test_a_polite_command_gets_its_grace_period(start: Start, tmp_path: Path) -> None:
    program = """
import signal, sys, time
def bye(*_):
    time.sleep(0.5); print("bye", flush=True); sys.exit(0)
signal.signal(signal.SIGTERM, bye)
print("up", flush=True); time.sleep(300)
"""
    process = start(program, grace_s=10.0)
    wait_for(tmp_path / "log", "up")
    began = time.monotonic()
    process.stop()
    assert "bye" in (tmp_path / "log").read_text()
    assert time.monotonic() - began < 5


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no POSIX shared memory folder")
def test_only_shared_memory_that_the_group_made_and_mapped_is_removed(start: Start, tmp_path: Path) -> None:
    mark = uuid.uuid4().hex[:8]
    names = {kind: Path("/dev/shm", f"optpipe-test-{kind}-{mark}") for kind in ("mapped", "before", "unmapped")}
    semaphore = Path(f"/dev/shm/sem.mp-{mark}")
    names["before"].write_bytes(b"x" * 4096)
    program = f"""
import mmap, time
keep = []
for path in ({str(names["mapped"])!r}, {str(semaphore)!r}, {str(names["before"])!r}):
    file = open(path, "a+b"); file.truncate(4096); keep.append(mmap.mmap(file.fileno(), 4096))
open({str(names["unmapped"])!r}, "w").close()
print("mapped", flush=True); time.sleep(300)
"""
    try:
        process = start(program)
        wait_for(tmp_path / "log", "mapped")
        os.kill(descendants(process.pid)[0].pid, signal.SIGSTOP)
        ended = process.stop()
        assert set(ended.removed) == {str(names["mapped"]), str(semaphore)}
        assert names["before"].exists() and names["unmapped"].exists()
        assert not names["mapped"].exists() and not semaphore.exists()
    finally:
        for path in names.values():
            path.unlink(missing_ok=True)


def test_temporary_files_of_the_command_go_with_it(start: Start, tmp_path: Path) -> None:
    program = "import tempfile; print(tempfile.mkdtemp(), flush=True)\n" + SLEEP
    process = start(program)
    folder = Path(wait_for(tmp_path / "log", "\n").strip())
    assert folder.is_dir()
    process.stop()
    assert not folder.parent.exists()


def test_a_killed_supervisor_is_noticed_and_its_command_ended(start: Start, tmp_path: Path) -> None:
    process = start(FORK_OUT + IGNORE + SLEEP)
    child = int(wait_for(tmp_path / "log", "\n"))
    os.kill(process.pid, signal.SIGKILL)
    ended = finish(process)
    assert ended.why == "lost"
    assert Ident.of(child) is None and marked(process.id) == []
    assert list(live_folder().glob("*.json")) == []


def build_that_dies(tmp_path: Path, program: str) -> tuple[subprocess.Popen[str], int]:
    """A build in a process of its own with one supervised command; the supervisor's pid."""
    build = f"""
import os, sys
from pathlib import Path
from optpipe.supervised import Command, Supervised
here = Path({str(tmp_path)!r})
argv = (sys.executable, "-c", {program!r})
one = Supervised(Command("left over", argv, dict(os.environ), here, here / "log", here / "s", 600.0))
print(one.pid, flush=True)
one.wait()
"""
    process = subprocess.Popen([sys.executable, "-c", build], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, int(process.stdout.readline())


def gone(pid: int, timeout_s: float = 15) -> bool:
    end = time.monotonic() + timeout_s
    while Ident.of(pid) and time.monotonic() < end:
        time.sleep(0.05)
    return Ident.of(pid) is None


def test_a_killed_build_takes_its_command_with_it(tmp_path: Path) -> None:
    build, supervisor = build_that_dies(tmp_path, FORK_OUT + IGNORE + SLEEP)
    child = int(wait_for(tmp_path / "log", "\n"))
    build.kill()
    build.wait()
    assert gone(child) and gone(supervisor)
    assert list(live_folder().glob("*.json")) == []


def test_the_next_build_ends_what_a_killed_build_and_a_killed_supervisor_left(tmp_path: Path) -> None:
    build, supervisor = build_that_dies(tmp_path, FORK_OUT + IGNORE + SLEEP)
    child = int(wait_for(tmp_path / "log", "\n"))
    os.kill(supervisor, signal.SIGKILL)
    build.kill()
    build.wait()
    assert Ident.of(child), "nobody was there to end it"
    said: list[str] = []
    assert end_leftovers(said.append) >= 2
    assert Ident.of(child) is None
    assert said[0].startswith("ended what an earlier build left: left over (")
    assert list(live_folder().glob("*.json")) == []
    assert end_leftovers(said.append) == 0


def test_a_living_build_is_left_alone(start: Start, tmp_path: Path) -> None:
    process = start("print('up', flush=True)\n" + SLEEP)
    wait_for(tmp_path / "log", "up")
    assert end_leftovers() == 0
    assert process.wait(0) is None


def test_another_process_with_the_same_pid_is_left_alone(tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", SLEEP])
    try:
        stale = Ident(bystander.pid, "1")
        dead = Ident(2**22 + 1, "1")
        Live(uuid.uuid4().hex, "stale", dead, dead, tmp_path / "x", {stale}).write()
        assert end_leftovers() == 0
        assert bystander.poll() is None
        assert list(live_folder().glob("*.json")) == []
    finally:
        bystander.kill()
        bystander.wait()


def test_records_of_other_machines_are_left_alone_and_older_boots_forgotten(tmp_path: Path) -> None:
    import json

    dead = Ident(2**22 + 1, "1")
    for name, change in {"other": {"host": "elsewhere"}, "boot": {"boot": "an earlier one"}}.items():
        live = Live(name, name, dead, dead, tmp_path / "x")
        live.write()
        record = json.loads(live.path.read_text())
        record["place"].update(change)
        live.path.write_text(json.dumps(record))
    end_leftovers()
    assert [path.stem for path in live_folder().glob("*.json")] == ["other"]


def test_a_broken_record_stops_nothing(home: Path) -> None:
    (home / "live").mkdir(parents=True)
    (home / "live" / "x.json").write_text('{"id": 1')
    assert end_leftovers() == 0
