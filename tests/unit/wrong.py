"""Runs the command as a user does, on inputs that are wrong, and reads what it says."""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIMIT_S = 10.0
"""What a refusal may take on a busy machine; 3 s is what it should, and each test prints what it took."""


@dataclass(frozen=True)
class Refused:
    """A command that ended: its exit code, both streams, and the seconds it took."""

    code: int
    out: str
    err: str
    seconds: float


def optpipe(*arguments: str, cwd: Path, home: Path) -> Refused:
    env = {**os.environ, "OPTPIPE_HOME": str(home), "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "optpipe", *arguments], cwd=cwd, env=env, capture_output=True, timeout=120
    )
    out, err = done.stdout.decode(), done.stderr.decode()
    return Refused(done.returncode, out, err, time.monotonic() - began)


def here(*arguments: str, cwd: Path, home: Path) -> Refused:
    """The same in this process, where an interpreter's start would cost more than what is tested."""
    from optpipe.cli import run

    began = time.monotonic()
    out, err, before = io.StringIO(), io.StringIO(), os.environ.get("OPTPIPE_HOME")
    os.environ["OPTPIPE_HOME"] = str(home)
    try:
        with contextlib.chdir(cwd), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run(list(arguments))
    finally:
        os.environ.pop("OPTPIPE_HOME")
        if before is not None:
            os.environ["OPTPIPE_HOME"] = before
    return Refused(code, out.getvalue(), err.getvalue(), time.monotonic() - began)


def check_refusal(found: Refused, folder: Path, *shown: str, place: str | None = None) -> None:
    """Exit 2 in seconds with the place, the value and a hint, no traceback, nothing begun."""
    print(f"{found.seconds:.2f} s, exit {found.code}\n{found.err}")
    assert found.code == 2, found.err
    assert found.seconds < LIMIT_S
    assert "Traceback" not in found.err and not found.out.strip()
    assert re.search(r"^ *hint: \S", found.err, re.MULTILINE), found.err
    for text in shown:
        assert text in found.err, f"{text!r} is not in: {found.err}"
    if place:
        assert re.search(place, found.err), f"{place} is not in: {found.err}"
    assert not (folder / "artifacts").exists()
