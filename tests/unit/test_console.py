"""Talk: a line for each job where nobody watches, bars with the time left on a terminal."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys

import pytest

from optpipe import console
from optpipe.console import Talk, progress_text, time_text

PROGRAM = """
import time
from optpipe.console import Talk
with Talk() as talk:
    talk.start("int8: quantize")
    for done in range(1, 4):
        talk.update("int8: quantize", done, 8, "layers")
        time.sleep(0.6)
    talk.say("something [else] happens")
    time.sleep(0.3)
    talk.done("int8: quantize", True)
"""


@pytest.mark.parametrize(("seconds", "text"), [(45, "45 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")])
def test_times_as_a_person_says_them(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_progress_says_how_far_and_how_long_still() -> None:
    assert progress_text(25, 100, "rows", 2.5) == "rows (25 %, about 30 s left)"
    assert progress_text(0, 100, "rows", 0) == "rows (0 %)"
    assert progress_text(3, 0, "rows", 1) == "rows"


def test_plain_lines_name_jobs_and_only_long_ones_their_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Talk() as talk:
        talk.start("int8: quantize")
        talk.done("int8: quantize", True)
        monkeypatch.setattr(console, "WORTH_SAYING", 0.0)
        for title, well in (("w4: quantize", True), ("w8: quantize", False)):
            talk.start(title)
            talk.done(title, well)
    said = [line.split("  ")[-1].strip() for line in capsys.readouterr().err.splitlines()]
    assert said == ["int8: quantize", "w4: quantize", "w4: quantize: done in 0 s", "w8: quantize"]


def test_plain_progress_is_told_seldom(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with Talk() as talk:
        talk.start("w4: quantize")
        for done in range(100):
            talk.update("w4: quantize", done, 100, "layers")
        monkeypatch.setattr(console, "QUIET_SECONDS", 0.0)
        talk.update("w4: quantize", 50, 100, "layers")
    assert capsys.readouterr().err.count("layers") == 1


def on_a_terminal(**env: str) -> str:
    """What the program writes to a terminal of its own."""
    master, slave = pty.openpty()
    own = {key: value for key, value in os.environ.items() if key not in ("CI", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stderr=slave, env={**own, "TERM": "xterm-256color", "COLUMNS": "100", **env}
    )
    os.close(slave)
    data = b""
    while True:
        try:
            data += (part := os.read(master, 65536))
        except OSError:
            break
        if not part:
            break
    os.close(master)
    assert process.wait() == 0
    return data.decode()


def test_a_terminal_gets_bars_with_the_time_left_and_whole_lines() -> None:
    text = on_a_terminal()
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    assert re.search(r"int8: quantize .*layers \(38 %, about \d+ s left\)", plain)
    assert re.search(r"\r *\d+ s  something \[else\] happens\r\n", plain)


def test_no_color_is_honoured_and_ci_gets_plain_lines() -> None:
    assert not re.search(r"\x1b\[[0-9;]*3[0-9]m", on_a_terminal(NO_COLOR="1"))
    assert "\x1b" not in on_a_terminal(CI="1") and "\x1b" not in on_a_terminal(TERM="dumb")
