"""The one place that talks: stdout is data, stderr is talk; bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

from optpipe.records import to_json

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

QUIET_SECONDS = 20.0
"""On plain output a long job says how far it is at most this often."""
WORTH_SAYING = 5.0
"""Seconds from which on plain output says how long a job took."""


def emit(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(to_json(value), indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def out(text: str) -> None:
    """Data for people on stdout."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Talk on stderr."""
    sys.stderr.write(text + "\n")
    sys.stderr.flush()


def time_text(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`: as a person would say it."""
    whole = max(0, round(seconds))
    if whole < 90:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


class Talk:
    """Who is at work and how far: bars on a terminal, a line now and then elsewhere."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._started = time.monotonic()
        self._bars: Progress | None = None
        self._tasks: dict[str, TaskID] = {}
        self._begun: dict[str, float] = {}
        self._first: dict[str, tuple[float, float]] = {}
        self._last: dict[str, float] = {}
        self._terminal = sys.stderr.isatty() and not os.environ.get("CI") and os.environ.get("TERM") != "dumb"

    def __enter__(self) -> Talk:
        if self._terminal:
            self._bars = bars()
            self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None

    def say(self, text: str) -> None:
        stamp = time_text(time.monotonic() - self._started)
        with self._lock:
            if self._bars is not None:
                from rich.text import Text

                # In one piece: between two, the bars would be drawn.
                line = Text(f"{stamp:>12}  ", style="dim") + Text(text, style="not dim")
                self._bars.console.print(line, soft_wrap=True)
            else:
                say(f"{stamp:>12}  {text}")

    def start(self, title: str) -> None:
        """A job begins: a bar of its own, or a line."""
        with self._lock:
            self._begun[title] = time.monotonic()
            if self._bars is not None:
                self._tasks[title] = self._bars.add_task(title, total=None, what="")
                return
        self.say(title)

    def update(self, title: str, done: float, total: float, what: str) -> None:
        """A job's own word on how far it is; finished when done >= total."""
        now = time.monotonic()
        with self._lock:
            first, done_then = self._first.setdefault(title, (now, done))
            rate = (done - done_then) / (now - first) if now > first else 0.0
            text = progress_text(done, total, what, rate)
            if self._bars is not None:
                if title in self._tasks:
                    self._bars.update(self._tasks[title], completed=done, total=total, what=text)
                return
            if now - self._last.get(title, first) < QUIET_SECONDS:
                return
            self._last[title] = now
        self.say(f"{title}: {text}")

    def transfer(self, title: str, done: float, total: float) -> None:
        """Bytes that went over, of how many: begun with the first word of it, over with the last."""
        if title not in self._begun:
            self.start(title)
        self.update(title, done, total, f"{done / 1e6:,.0f} of {total / 1e6:,.0f} MB")
        if done >= total:
            self.done(title, True)

    def done(self, title: str, well: bool) -> None:
        """A job is over; one that ended well and took a while says so."""
        with self._lock:
            took = time.monotonic() - self._begun.pop(title, self._started)
            self._first.pop(title, None)
            self._last.pop(title, None)
            if self._bars is not None and title in self._tasks:
                self._bars.remove_task(self._tasks.pop(title))
        if well and took >= WORTH_SAYING:
            self.say(f"{title}: done in {time_text(took)}")


def progress_text(done: float, total: float, what: str, rate: float) -> str:
    """`rows scored (45 %, about 2 min 10 s left)`; `rate`: how much is done per second, 0 if not known."""
    if total <= 0:
        return what
    left = (total - done) / rate if rate > 0 else 0.0
    rest = f", about {time_text(left)} left" if left >= 1 else ""
    return f"{what} ({100 * done / total:.0f} %{rest})"


def bars() -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[what]}", markup=False, style="dim"),
        console=Console(stderr=True, no_color=bool(os.environ.get("NO_COLOR"))),
        transient=True,
    )
