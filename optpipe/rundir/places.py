"""Where things lie: the folder of a run, and what all runs share."""

from __future__ import annotations

import json
import os
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from optpipe.records import Json, to_json
from optpipe.rundir.files import read_json, write_json
from optpipe.rundir.jobs import JobStore

LICENCES = "licence"
"""In a run's folder: the texts of the base's licence."""
LOCKS = "toolchains"
"""In a run's folder: the locks that its toolchains were installed from."""


class RunFolder:
    """artifacts/runs/<id>/, numbered in the order of the line, and the places beside it."""

    def __init__(self, artifacts: Path, name: str, about: Json) -> None:
        """A new run; its name sorts by time. Nothing is on disk before `begin`: a wrong recipe leaves no run."""
        self.artifacts = artifacts.absolute()
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")[:-3]
        self.ident = f"{stamp}-{name}"
        self.path = self.artifacts / "runs" / self.ident
        self.store = JobStore(self.artifacts / "cache")
        self.registry = self.artifacts / "registry"
        self.about = about
        self._lock = threading.Lock()

    @classmethod
    def opened(cls, path: Path) -> RunFolder:
        """A run that is there already; FileNotFoundError where there is none."""
        found = path.resolve()
        about = dict(read_json(found / "run.json"))
        run = cls(found.parent.parent, "", about)
        run.ident, run.path = found.name, found
        return run

    def begin(self) -> None:
        """Make the folder with `run.json`, and let `artifacts/latest` point to it."""
        self.path.mkdir(parents=True)
        write_json(self.path / "run.json", self.about)
        link = self.artifacts / f".latest.{os.getpid()}"
        link.unlink(missing_ok=True)
        link.symlink_to(Path("runs") / self.ident)
        link.replace(self.artifacts / "latest")

    def note(self, **facts: Any) -> None:
        """Add to `run.json` what is known by now."""
        self.about = {**self.about, **to_json(facts)}
        if self.path.is_dir():
            write_json(self.path / "run.json", self.about)

    def write(self, name: str, record: Any) -> Path:
        """Write one record, e.g. `write("01-inspect.json", facts)`; the path it got."""
        with self._lock:
            if not self.path.is_dir():
                self.begin()
        path = self.path / name
        write_json(path, record)
        return path

    def event(self, what: str, **facts: Any) -> None:
        """Append to events.jsonl what happened, when."""
        line = json.dumps({"time": datetime.now(UTC).isoformat(), "event": what, **to_json(facts)})
        with self._lock, (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def optpipe_home() -> Path:
    """OPTPIPE_HOME, else the user's cache folder."""
    if home := os.environ.get("OPTPIPE_HOME"):
        return Path(home).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "optpipe"


def shown(path: Path) -> str:
    """A path as short as it is true from here."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
