"""A user's own evaluator: started without a shell, bounded in time, what it prints checked number by number."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from optpipe.backends.evaluators import command
from optpipe.backends.evaluators.command import Command
from optpipe.worker import Failure, Work

GOOD = {"metrics": {"f1": 0.5}, "items": [{"id": "b", "score": 1}, {"id": "a", "score": 0.25}]}


def work(folder: Path, code: str) -> Work:
    (folder / "own.py").write_text(code)
    context = {"url": "http://127.0.0.1:1", "model": "m"}
    return Work({"file.000": folder / "own.py"}, context, folder / "files", 1, 7, folder)


def ran(folder: Path, code: str, **options: Any) -> dict[str, Any]:
    given = {"argv": [sys.executable, {"file": 0}, "$HOME; id"], "timeout_s": 30.0, "version": None, **options}
    return command.run(given, work(folder, code))


def printing(text: str) -> str:
    return f"print({text!r})"


def test_items_are_kept_by_id_with_the_figures(tmp_path: Path) -> None:
    record = ran(tmp_path, printing(json.dumps(GOOD)))
    assert record["items"] == [{"id": "a", "correct": 0.25}, {"id": "b", "correct": 1.0}]
    assert (record["n"], record["correct"], record["metrics"]) == (2, 1.25, {"f1": 0.5})


def test_it_sees_the_engine_and_no_secret_and_no_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    code = f"""
import json, os, sys
from pathlib import Path
Path("note.json").write_text(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd()]))
print({json.dumps(GOOD)!r})
"""
    ran(tmp_path, code)
    env, words, folder = json.loads((tmp_path / "files" / "note.json").read_text())
    assert words == ["$HOME; id"] and folder == env["OPTPIPE_FOLDER"] == str(tmp_path / "files")
    assert (env["OPTPIPE_ENGINE_URL"], env["OPTPIPE_ENGINE_MODEL"]) == ("http://127.0.0.1:1", "m")
    assert "HF_TOKEN" not in env and "HTTP_PROXY" not in env and env["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("", "no JSON document"),
        ("loading...\n{}", "no JSON document"),
        ('{"items": [{"id": 1, "score": NaN}]}', "NaN is no number"),
        ('{"metrics": {"f1": Infinity}, "items": []}', "Infinity is no number"),
        ('{"metrics": {"f1": 1e999}, "items": [{"id": 1, "score": 1}]}', "no finite number"),
        ("[1]", "list"),
        ('{"items": [{"id": 1, "score": 1}], "score": 1}', "['score']"),
        ('{"metrics": {"f1": 1}}', "no items"),
        ('{"metrics": [1], "items": [{"id": 1, "score": 1}]}', "no mapping"),
        ('{"metrics": {"f1": true}, "items": [{"id": 1, "score": 1}]}', "no finite number"),
        (json.dumps(GOOD | {"metrics": {"m" * 61: 1.0}}), "a name of more than 60"),
        (json.dumps(GOOD | {"metrics": {str(n): n for n in range(51)}}), "more than 50"),
        ('{"items": [{"id": 1, "score": 1}, {"id": 1, "score": 0}]}', "twice"),
        ('{"items": [{"id": 1, "score": 1.5}]}', "not from 0 to 1"),
        ('{"items": [{"id": 1, "score": true}]}', "not from 0 to 1"),
        ('{"items": [{"id": 1}]}', "not from 0 to 1"),
        ('{"items": [{"score": 1}]}', "no `id`"),
        ('{"items": [7]}', "no `id`"),
    ],
)
def test_what_is_no_result_is_a_definite_failure(printed: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(Failure) as failed:
        ran(tmp_path, printing(printed))
    assert shown in failed.value.message and not failed.value.transient and "stdout" in str(failed.value.hint)


def test_a_program_that_fails_is_told_with_its_last_lines_and_tried_again(tmp_path: Path) -> None:
    code = "import sys\nfor n in range(9): print('line', n, file=sys.stderr)\nsys.exit(3)"
    with pytest.raises(Failure) as failed:
        ran(tmp_path, code)
    assert "exit code 3" in failed.value.message and "line 8" in failed.value.message
    assert "line 3" not in failed.value.message and failed.value.transient


def test_time_is_limited_and_what_it_started_ends_too(tmp_path: Path) -> None:
    code = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
open("child", "w").write(str(child.pid))
time.sleep(60)
"""
    with pytest.raises(Failure, match="no result within 2 s") as failed:
        ran(tmp_path, code, timeout_s=2.0)
    assert failed.value.transient
    child = int((tmp_path / "files" / "child").read_text())
    end = time.monotonic() + 10
    while time.monotonic() < end and state(child) not in ("", "Z"):
        time.sleep(0.02)
    assert state(child) in ("", "Z")


def state(pid: int) -> str:
    """Of a process, `Z` for one that only waits to be noticed; empty where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="'no-such-program' cannot be started"):
        ran(tmp_path, "", argv=["no-such-program"])


def test_words_that_are_files_beside_the_recipe_are_inputs(tmp_path: Path) -> None:
    for name in ("own.py", "more.py", "data.json"):
        (tmp_path / name).write_text(name)
    given = Command(["python3", "own.py", "--all", "data.json"], files=("more.py", "own.py"))
    names = [path.name for path in command.files_of(given, tmp_path)]
    assert names == ["own.py", "data.json", "more.py", "own.py"]
    assert command.options_of(given, tmp_path)["argv"] == ["python3", {"file": 0}, "--all", {"file": 1}]


@pytest.mark.parametrize("given", [{"argv": []}, {"argv": [""]}, {"argv": ["a"], "timeout_s": 0.0}])
def test_a_command_that_cannot_be_one(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"argv|timeout_s"):
        Command(**given)
