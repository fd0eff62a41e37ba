"""Processes as optpipe sees them: who they are, what they use, what they leave behind, how they end.

A process is known by pid and start time together, never by pid or name alone. Everything below one
command carries `OPTPIPE_LIVE=<id>` in its environment, and `OPTPIPE_HOME/live/<id>.json` says who
runs it, so that a later build can end what a killed one left (`end_leftovers`).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from optpipe.records import Json
from optpipe.rundir import optpipe_home

MARK = "OPTPIPE_LIVE"
SHARED_MEMORY = Path("/dev/shm")
GONE = (psutil.NoSuchProcess, psutil.AccessDenied, FileNotFoundError, ProcessLookupError, PermissionError)


# ---------------------------------------------------------------- who


@dataclass(frozen=True)
class Ident:
    """A process: its pid and when it started (clock ticks since boot on Linux)."""

    pid: int
    start: str

    @classmethod
    def of(cls, pid: int) -> Ident | None:
        """The living process with this pid; a zombie is not living."""
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            return cls._elsewhere(pid) if not Path("/proc/self").exists() else None
        state, *rest = stat.rpartition(")")[2].split()
        return None if state in "ZX" else cls(pid, rest[18])

    @classmethod
    def _elsewhere(cls, pid: int) -> Ident | None:
        try:
            process = psutil.Process(pid)
            zombie = process.status() == psutil.STATUS_ZOMBIE
            return None if zombie else cls(pid, f"{process.create_time():.2f}")
        except GONE:
            return None

    def alive(self) -> bool:
        return Ident.of(self.pid) == self

    def send(self, number: int) -> None:
        """Signal exactly this process; one that is gone, or another with its pid, gets nothing."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def place() -> Json:
    """Where pids mean something: this host since this boot, in this pid namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    space = Path("/proc/self/ns/pid")
    return {
        "host": socket.gethostname(),
        "boot": boot.read_text().strip() if boot.exists() else f"{psutil.boot_time():.0f}",
        "pids": str(space.readlink()) if space.is_symlink() else "",
    }


def descendants(pid: int) -> list[Ident]:
    """Every living process below `pid`, deepest last."""
    try:
        below = psutil.Process(pid).children(recursive=True)
    except GONE:
        return []
    return [ident for child in below if (ident := Ident.of(child.pid))]


def marked(mark: str) -> list[Ident]:
    """Every living process of ours whose environment carries the mark."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark:
                found.append(Ident.of(process.pid))
        except (*GONE, OSError):
            continue
    return [ident for ident in found if ident]


# ---------------------------------------------------------------- what they use


def resident_bytes(group: Iterable[Ident]) -> int:
    """Resident memory of all of them; a page that several share counts for each."""
    total = 0
    for ident in group:
        with contextlib.suppress(*GONE):
            total += int(psutil.Process(ident.pid).memory_info().rss)
    return total


def proportional_bytes(group: Iterable[Ident]) -> int:
    """Memory of all of them, a page that several share divided among them; slower to ask for."""
    total = 0
    for ident in group:
        with contextlib.suppress(*GONE, AttributeError):
            total += int(psutil.Process(ident.pid).memory_full_info().pss)
    return total


def mapped_files(pid: int) -> set[tuple[str, int]]:
    """(path, inode) of each file in shared memory that the process maps; empty off Linux."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace").splitlines()
    except (*GONE, OSError):
        return set()
    found = set()
    for line in lines:
        if f" {SHARED_MEMORY}/" in line and not line.endswith(" (deleted)"):
            fields = line.split(None, 5)
            found.add((fields[5], int(fields[4])))
    return found


def files_in_shared_memory() -> set[tuple[str, int]]:
    found = set()
    for path in SHARED_MEMORY.iterdir() if SHARED_MEMORY.is_dir() else ():
        with contextlib.suppress(FileNotFoundError):
            found.add((str(path), path.lstat().st_ino))
    return found


def remove_mapped(files: Iterable[tuple[str, int]]) -> list[str]:
    """Remove those files that are still the same and that no living process maps; their paths."""
    wanted = set(files) & files_in_shared_memory()
    if not wanted:
        return []
    used = set().union(*(mapped_files(pid) for pid in psutil.pids()))
    removed = []
    for path, _ in sorted(wanted - used):
        with contextlib.suppress(FileNotFoundError, PermissionError):
            Path(path).unlink()
            removed.append(path)
    return removed


# ---------------------------------------------------------------- how they end


def end_all(find: Callable[[], list[Ident]], grace_s: float, patience_s: float = 30.0) -> list[Ident]:
    """SIGTERM, wait, then SIGKILL until `find` finds nobody; who is left after `patience_s`."""
    for ident in find():
        ident.send(signal.SIGTERM)
    grace = time.monotonic() + grace_s
    while (left := find()) and time.monotonic() < grace:
        time.sleep(0.05)
    end = time.monotonic() + patience_s
    while left and time.monotonic() < end:
        for ident in left:
            ident.send(signal.SIGKILL)
        time.sleep(0.05)
        left = find()
    return left


# ---------------------------------------------------------------- what is on record


@dataclass
class Live:
    """OPTPIPE_HOME/live/<id>.json: one supervised command, who runs it, and what it would leave."""

    id: str
    title: str
    build: Ident
    supervisor: Ident
    scratch: Path
    seen: set[Ident] = field(default_factory=set)
    shm: set[tuple[str, int]] = field(default_factory=set)

    @property
    def path(self) -> Path:
        return live_folder() / f"{self.id}.json"

    def write(self) -> None:
        """Replace the record whole; not synced, for it means nothing after a reboot."""
        people = {"build": _pair(self.build), "supervisor": _pair(self.supervisor)}
        left = {"seen": sorted(map(_pair, self.seen)), "shm": sorted(map(list, self.shm))}
        record = {"id": self.id, "title": self.title, "place": place(), **people, **left}
        part = self.path.with_suffix(".part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps({**record, "scratch": str(self.scratch)}), encoding="utf-8")
        part.replace(self.path)

    @classmethod
    def read(cls, path: Path) -> tuple[Live, Json] | None:
        """The record and the place it speaks of; None for one that is gone or not ours to read."""
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            build, supervisor = Ident(*raw["build"]), Ident(*raw["supervisor"])
            seen = {Ident(*pair) for pair in raw["seen"]}
            shm = {(str(name), int(inode)) for name, inode in raw["shm"]}
            live = cls(path.stem, raw["title"], build, supervisor, Path(raw["scratch"]), seen, shm)
            return live, raw["place"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

    def members(self) -> list[Ident]:
        """Who of it still lives: recorded by pid and start time, or carrying its mark, or below those."""
        found = {ident for ident in self.seen if ident.alive()} | set(marked(self.id))
        below = {child for ident in found for child in descendants(ident.pid)}
        return sorted((found | below) - {self.supervisor}, key=lambda ident: ident.pid)

    def clean(self) -> list[str]:
        """Remove what the ended command left: shared memory, scratch, the record; the shared memory."""
        removed = remove_mapped(self.shm)
        remove_scratch(self.scratch)
        self.path.unlink(missing_ok=True)
        return removed


def _pair(ident: Ident) -> list[int | str]:
    return [ident.pid, ident.start]


def live_folder() -> Path:
    return optpipe_home() / "live"


LONGEST_BASE = 48
"""Characters of a temporary folder that leave room for a socket in its scratch folder: its path may have 107 in
all, `/optpipe-<12 digits>` takes 21 and vLLM's `/<uuid>` 37."""


def scratch_folder(ident: str) -> Path:
    """The temporary folder of one command, in the user's own where the path does not become too long for sockets."""
    base = Path(tempfile.gettempdir())
    if len(str(base)) > LONGEST_BASE and os.access("/tmp", os.W_OK | os.X_OK):
        base = Path("/tmp")
    return base / f"optpipe-{ident[:12]}"


def remove_scratch(folder: Path) -> None:
    if folder.name.startswith("optpipe-") and folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)


def end_live(live: Live, grace_s: float = 3.0) -> int:
    """End what is left of one command whose supervisor is gone; how many processes there were."""
    left = live.members()
    for ident in left:
        live.shm |= mapped_files(ident.pid)
    end_all(live.members, grace_s)
    live.clean()
    return len(left)


def end_leftovers(say: Callable[[str], None] = lambda text: None) -> int:
    """End what dead builds, or dead supervisors, left on this machine; how many processes there were."""
    ended = 0
    for path in sorted(live_folder().glob("*.json")):
        read = Live.read(path)
        if read is None:
            continue
        live, where = read
        here = place()
        if where != here:
            if where["host"] == here["host"] and where["boot"] != here["boot"]:
                path.unlink(missing_ok=True)
            continue
        if live.supervisor.alive() and (live.build.alive() or _ends_itself(live)):
            continue
        ended += (count := end_live(live))
        say(f"ended what an earlier build left: {live.title} ({count} processes)")
    return ended


def _ends_itself(live: Live, patience_s: float = 20.0) -> bool:
    """A supervisor whose build died is ending its command: wait for that, else end the supervisor."""
    end = time.monotonic() + patience_s
    while live.supervisor.alive() and time.monotonic() < end:
        time.sleep(0.1)
    live.supervisor.send(signal.SIGKILL)
    return not live.path.exists()
