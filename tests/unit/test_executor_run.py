"""Jobs run once, results are kept under what they depend on, failures are told apart."""

from __future__ import annotations

import platform
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe.backends.executors.keys import Keys
from optpipe.backends.executors.worker_run import is_secret, last_lines
from optpipe.errors import BackendFailed, InputError, Interrupted
from optpipe.model.hardware import instruction_set
from optpipe.records import Artifact, Hardware, Job, Needs
from optpipe.rundir import digest_json
from tests.fakes.site import HARDWARE, Heard, executor, job, toolchain


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))


def starts(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


# ---------------------------------------------------------------- kept results


def test_a_job_runs_once_and_its_result_is_kept(tmp_path: Path) -> None:
    one = job({"touch": str(tmp_path / "n")}, {"write": "hello"})
    first = executor(tmp_path)
    made = first.run(one)
    assert not made.kept and (made.files.path / "out.txt").read_text() == "hello"
    assert made.peak_memory_bytes > 1 << 20 and made.seconds > 0
    second = executor(tmp_path)
    again = second.run(one)
    assert again.kept and (again.key, again.files, again.record) == (made.key, made.files, made.record)
    assert (first.ran, first.kept, second.ran, second.kept) == (1, 0, 0, 1)
    assert starts(tmp_path / "n") == 1


def test_threads_that_want_the_same_job_share_one_run(tmp_path: Path) -> None:
    ex, one = executor(tmp_path), job({"touch": str(tmp_path / "n")}, {"sleep": 0.3})
    results: list[str] = []
    threads = [threading.Thread(target=lambda: results.append(ex.run(one).key)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4 and len(set(results)) == 1
    assert starts(tmp_path / "n") == 1 and ex.ran == 1


CHANGES = {
    "options": {"options": {"steps": [{"write": "other"}]}},
    "kind": {"kind": "tokens"},
    "seed": {"seed": 2},
    "threads": {"threads": 2},
    "inputs": {"inputs": {"model": Artifact(Path("/m"), "sha256:2")}},
}
BASE = Job("score", "t", "quantize", {"steps": []}, inputs={"model": Artifact(Path("/m"), "sha256:1")})


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_key_changes_with(tmp_path: Path, change: dict[str, object]) -> None:
    ex = executor(tmp_path)
    assert ex.key(replace(BASE, **change)) != ex.key(BASE)


@pytest.mark.parametrize(
    "change",
    [
        {"title": "other"},
        {"context": {"url": "http://127.0.0.1:1"}},
        {"needs": Needs(cpus=2, memory_bytes=5, timeout_s=3)},
        {"inputs": {"model": Artifact(Path("/elsewhere"), "sha256:1")}},
    ],
    ids=["title", "context", "needs", "path"],
)
def test_the_key_does_not_change_with(tmp_path: Path, change: dict[str, object]) -> None:
    ex = executor(tmp_path)
    assert ex.key(replace(BASE, **change)) == ex.key(BASE)


def test_the_key_changes_with_the_body_revision_and_the_toolchain(tmp_path: Path) -> None:
    assert executor(tmp_path, revision=2).key(BASE) != executor(tmp_path).key(BASE)
    keys = Keys(HARDWARE, lambda kind: 1)
    here, there = (keys.parts(BASE, toolchain("quantize", f)) for f in ("sha256:a", "sha256:b"))
    assert digest_json(here) != digest_json(there)


def test_only_what_is_bound_to_hardware_has_the_hardware_in_its_key() -> None:
    other = replace(HARDWARE, driver="560.1", gpu="H200")
    bound = replace(BASE, bound_to_hardware=True)

    def key(hardware: Hardware, one: Job) -> str:
        return digest_json(Keys(hardware, lambda kind: 1).parts(one, toolchain("quantize")))

    assert key(HARDWARE, BASE) == key(other, BASE)
    assert key(HARDWARE, bound) != key(other, bound)


def test_the_instruction_set_is_in_the_key() -> None:
    parts = Keys(HARDWARE, lambda kind: 1).parts(BASE, toolchain("quantize"))
    assert parts["instructions"] == f"{platform.machine()} {instruction_set()}" and instruction_set()


# ---------------------------------------------------------------- failures


def failing(ex_folder: Path, *steps: dict[str, object], **more: object) -> BackendFailed:
    with pytest.raises(BackendFailed) as raised:
        executor(ex_folder).run(job(*steps, title="w4: quantize", **more))
    return raised.value


def test_a_definite_failure_is_kept_and_not_tried_again(tmp_path: Path) -> None:
    steps = ({"touch": str(tmp_path / "n")}, {"fail": "group 128 does not divide 576"})
    first, second = failing(tmp_path, *steps), failing(tmp_path, *steps)
    assert not first.transient and not second.transient
    assert first.message == second.message == "group 128 does not divide 576"
    assert first.place == "w4: quantize" and first.log
    assert starts(tmp_path / "n") == 1


def test_a_failure_that_may_pass_is_tried_again(tmp_path: Path) -> None:
    steps = ({"touch": str(tmp_path / "n")}, {"fail": "no space left", "transient": True})
    assert failing(tmp_path, *steps).transient and failing(tmp_path, *steps).transient
    assert starts(tmp_path / "n") == 2
    assert list((tmp_path / "cache" / "work").iterdir()) == []


@pytest.mark.parametrize("step", [{"die": int(signal.SIGKILL)}, {"die": int(signal.SIGSEGV)}, {"exit": 7}])
def test_a_worker_that_dies_is_tried_again_and_its_last_words_quoted(tmp_path: Path, step: dict[str, int]) -> None:
    error = failing(tmp_path, {"print": "loading layer 7"}, step)
    assert error.transient
    assert "loading layer 7" in error.message
    assert any(word in error.message for word in ("signal 9", "SIGSEGV", "exit code 7"))


def test_a_worker_over_its_memory_limit_says_peak_and_limit(tmp_path: Path) -> None:
    error = failing(tmp_path, {"allocate": 300 << 20}, {"sleep": 20}, needs=Needs(memory_limit_bytes=100 << 20))
    assert error.transient
    assert error.message.startswith("killed for memory: peak ") and "of limit 100 MiB" in error.message
    assert error.hint and "memory" in error.hint


def test_a_worker_over_its_time_limit_is_ended(tmp_path: Path) -> None:
    error = failing(tmp_path, {"sleep": 60}, needs=Needs(timeout_s=0.8))
    assert "time limit of 0.8 s" in error.message and error.transient


def test_no_traceback_is_quoted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        'INFO loading\nTraceback (most recent call last):\n  File "x.py", line 1, in run\n    boom()\n'
        "RuntimeError: boom\nlast word\n"
    )
    assert last_lines(log) == ["INFO loading", "RuntimeError: boom", "last word"]


def test_the_first_error_of_a_log_is_told_before_what_others_said_of_it(tmp_path: Path) -> None:
    log, worker = tmp_path / "log", "(Worker pid=801) ERROR 11-30 20:04:18 [multiproc_executor.py:953]"
    cause = "RuntimeError: static_scaled_fp8_quant() expected at most 0 argument(s)"
    raised = [f"{worker} Traceback (most recent call last):", f"{worker}   File 'a.py', line 1", f"{worker} {cause}"]
    after = [f"({process} pid=7) ERROR 11-30 20:04:19 [core.py:1510] it is lost {process}" for process in "ABCDEF"]
    log.write_text("\n".join(["INFO loading", *raised, *after]))
    assert last_lines(log) == [cause, "it is lost C", "it is lost D", "it is lost E", "it is lost F"]


def test_a_record_counts_although_the_process_dies_on_its_way_out(tmp_path: Path) -> None:
    from optpipe.backends.executors.worker_run import finished
    from optpipe.supervised import Ended

    (tmp_path / "record.json").write_text('{"a": 1}')
    ended = Ended("signalled", signal=int(signal.SIGABRT))
    assert finished(job(), tmp_path, ended, tmp_path / "log").record == {"a": 1}
    with pytest.raises(BackendFailed):
        finished(job(), tmp_path, replace(ended, why="memory"), tmp_path / "log")


# ---------------------------------------------------------------- environment and progress


def test_a_worker_gets_its_threads_and_no_secret_and_no_foreign_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_1")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "aws_1")
    monkeypatch.setenv("VIRTUAL_ENV", "/somewhere")
    names = ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "VIRTUAL_ENV", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"]
    seen = executor(tmp_path).run(job({"env": names})).record["env"]
    assert seen == {**dict.fromkeys(names), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    asking = job({"env": names}, {"sleep": 0}, context={"needs_token": True})
    seen = executor(tmp_path).run(asking).record["env"]
    assert (seen["HF_TOKEN"], seen["AWS_SECRET_ACCESS_KEY"]) == ("hf_1", None)


def test_a_token_never_touches_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    up, go = tmp_path / "up", tmp_path / "go"
    one = job({"touch": str(up)}, {"wait": str(go)}, context={"needs_token": True})
    thread = threading.Thread(target=lambda: executor(tmp_path).run(one))
    thread.start()
    while not up.exists():
        time.sleep(0.02)
    written = [path for path in tmp_path.rglob("*") if path.is_file() and b"hf_secret" in path.read_bytes()]
    go.touch()
    thread.join()
    assert written == []


@pytest.mark.parametrize(
    ("name", "secret"),
    [("HF_TOKEN", True), ("OPENAI_API_KEY", True), ("TOKENIZERS_PARALLELISM", False), ("KEYBOARD", False)],
)
def test_secrets_are_known_by_whole_words(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_progress_is_passed_on(tmp_path: Path) -> None:
    heard = Heard()
    executor(tmp_path, heard=heard).run(job({"progress": 4}, title="w4"))
    assert heard.progress[-1] == ("w4", 4.0, 4.0) and len(heard.progress) > 1


def test_output_goes_to_a_numbered_log(tmp_path: Path) -> None:
    executor(tmp_path).run(job({"print": "hello log"}, title="W4: quantize"))
    assert "hello log" in (tmp_path / "logs" / "001-w4-quantize.log").read_text()


def test_stop_ends_what_runs_and_what_waits(tmp_path: Path) -> None:
    ex = executor(tmp_path, cpus=1)
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            ex.run(job({"sleep": 60}, seed=number))
        except Interrupted as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    while ex.ran == 0:
        time.sleep(0.05)
    ex.stop()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 3 and not any(thread.is_alive() for thread in threads)


# ---------------------------------------------------------------- dropped inputs


def test_dropped_inputs_are_made_again_in_depth(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    text = job({"write": "deep"}, title="text")
    first = ex.run(text)
    middle = job({"copy": "a"}, {"touch": str(tmp_path / "n")}, title="middle", inputs={"a": first.files})
    second = ex.run(middle)
    last = job({"copy": "b"}, title="last", inputs={"b": second.files})
    for result in (first, second):
        ex.store.drop_files(result.key)
    heard = Heard()
    later = executor(tmp_path, heard=heard)
    for one in (text, middle):
        later.run(one)
    assert later.run(last).record["text"] == "deep"
    assert sum("dropped from the cache" in line for line in heard.lines) == 2
    assert starts(tmp_path / "n") == 2
    assert (second.files.path / "out.txt").exists()


def test_a_kept_result_needs_no_dropped_input(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    first = ex.run(job({"write": "x"}))
    last = job({"copy": "a"}, inputs={"a": first.files})
    ex.run(last)
    ex.store.drop_files(first.key)
    later = executor(tmp_path)
    assert later.run(last).kept and later.ran == 0 and not first.files.path.exists()


def test_an_input_that_nobody_can_make_is_named(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    first = ex.run(job({"write": "x"}))
    ex.store.drop_files(first.key)
    with pytest.raises(InputError, match="no job of this build makes it") as raised:
        executor(tmp_path).run(job({"copy": "a"}, inputs={"a": first.files}))
    assert str(first.files.path) in str(raised.value) and raised.value.hint


def test_files_that_come_back_different_are_an_error(tmp_path: Path) -> None:
    ex = executor(tmp_path)
    fickle = job({"touch": str(tmp_path / "n")}, {"write": "first"})
    first = ex.run(fickle)
    ex.store.drop_files(first.key)
    record = ex.store.folder(first.key) / "record.json"
    record.write_text(record.read_text().replace(first.files.digest, "sha256:" + "0" * 64))
    with pytest.raises(BackendFailed, match="made again, its files are sha256:"):
        ex.run(job({"copy": "a"}, inputs={"a": first.files}))
