"""Runs uv, which does the installing, and tells how far it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from optpipe.errors import EnvironmentMissing
from optpipe.reach import unreachable

Say = Callable[[str], None]

EVERY_SECONDS = 10.0
LAST_LINES = 12
PYPI = "https://pypi.org/simple"
NAMED = re.compile(r"[\w-]+=")
"""uv's `NAME=URL` of an index."""
OFFLINE = "hint: Packages were unavailable because the network was disabled"
"""What uv says where it was told not to ask an index: we did, and say why."""
STAGES = ("Resolved", "Prepared", "Installed", "Bytecode compiled", "warning:", "error:")


def silent(text: str) -> None:
    """Where nobody listens."""


def find_uv() -> Path | None:
    """uv as the core depends on it: beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / "uv"
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which("uv")
    return Path(found) if found else None


def need_uv() -> Path:
    uv = find_uv()
    if uv is None:
        raise EnvironmentMissing(
            f"uv is neither beside {sys.executable} nor on PATH, and it installs the toolchains",
            place="uv",
            hint=f"{sys.executable} -m pip install uv",
        )
    return uv


@dataclass(frozen=True)
class Ended:
    """How a uv command ended; `text` is what it said on stderr, credentials in URLs blanked."""

    code: int
    text: str
    away: str | None = None
    """Why no index could be reached; then `text` is about what is here."""

    def last_lines(self) -> str:
        said = [line for line in self.text.strip().splitlines() if line and not line.startswith(OFFLINE)]
        return "\n".join([*filter(None, [self.away]), *said[-LAST_LINES:]])


@dataclass(frozen=True)
class Uv:
    """uv with one set of variables; `hold` is a locked file descriptor that each uv process shares.

    When optpipe is killed, a uv it started goes on; as it shares the lock, the next install waits for it.
    """

    env: Mapping[str, str]
    folder: Path
    hold: int | None = None

    def run(self, *arguments: str, title: str, say: Say = silent) -> Ended:
        """Run `uv ARGUMENTS`, saying its stages and, every ten seconds, the time.

        Where no index can be reached it looks only at what is here: else it would try them for 12 s first.
        """
        env = clean_environment(self.env)
        if away := no_index(env) if arguments[0] == "pip" and "--no-index" not in arguments else None:
            say(f"{title}: {away}; looking at what is here")
            ended = self._run({**env, "UV_OFFLINE": "1"}, *arguments, title=title, say=say)
            return ended if ended.code == 0 else replace(ended, away=away)
        return self._run(env, *arguments, title=title, say=say)

    def _run(self, env: Mapping[str, str], *arguments: str, title: str, say: Say) -> Ended:
        process = subprocess.Popen(
            [str(need_uv()), *arguments],
            env=env,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            pass_fds=() if self.hold is None else (self.hold,),
        )
        lines: list[str] = []
        reader = threading.Thread(target=_read, args=(process, lines, title, say), daemon=True)
        reader.start()
        try:
            _wait(process, title, say)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
            reader.join()
        return Ended(process.returncode, "".join(lines))


def no_index(env: Mapping[str, str]) -> str | None:
    """Why none of the servers that uv is to ask can be reached; None where one can, or none is to be asked."""
    if env.get("UV_OFFLINE") or env.get("UV_NO_INDEX"):
        return None
    named = [*env.get("UV_INDEX", "").split(), env.get("UV_DEFAULT_INDEX") or env.get("UV_INDEX_URL") or PYPI]
    servers = dict.fromkeys(url.partition("=")[2] if NAMED.match(url) else url for url in named)
    whys = [unreachable(url, env) for url in servers if url.startswith("http")]
    return f"the package index cannot be reached ({'; '.join(filter(None, whys))})" if whys and all(whys) else None


def clean_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """This process's variables for uv: byte-compiling not switched off, no other environment in the way."""
    drop = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    return {**{k: v for k, v in os.environ.items() if k not in drop}, "UV_NO_PROGRESS": "1", **extra}


def _read(process: subprocess.Popen[str], lines: list[str], title: str, say: Say) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.append(without_credentials(line))
        if line.startswith(STAGES):
            say(f"{title}: {lines[-1].strip()}")


def _wait(process: subprocess.Popen[str], title: str, say: Say) -> None:
    started = time.monotonic()
    while True:
        try:
            process.wait(timeout=EVERY_SECONDS)
            return
        except subprocess.TimeoutExpired:
            say(f"{title} ... {time.monotonic() - started:.0f} s")


def without_credentials(text: str) -> str:
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", text)
