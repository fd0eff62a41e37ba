"""Whether the disks have room for a build, told before the long work: what it needs where, against what is free."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from optpipe.errors import EnvironmentMissing
from optpipe.model.memory import show
from optpipe.records import Candidate, Plan
from optpipe.rundir import JobStore, optpipe_home, read_json
from optpipe.toolchains import Kind, managed

LOOKED_AT = 50
"""How many earlier runs of a recipe are asked whose checkpoints they kept, the latest first."""


@dataclass(frozen=True)
class Disk:
    """A file system: `device` tells two folders of one disk from those of two."""

    device: int
    free: int


@dataclass(frozen=True)
class Need:
    """Bytes that a build will write below `folder`."""

    folder: Path
    bytes: float
    what: str


def disk_of(folder: Path) -> Disk:
    """The disk of a folder, or of what is there of its path."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return Disk(there.stat().st_dev, shutil.disk_usage(there).free)


def require_room(
    plan: Plan,
    artifacts: Path,
    toolchains: Iterable[str],
    settings: Mapping[str, Kind],
    look: Callable[[Path], Disk] = disk_of,
) -> None:
    """Refuse a build that the disks have no room for. EnvironmentMissing with what is needed and what is free."""
    lacking = shortage(needs(plan, artifacts, toolchains, settings), look)
    if lacking:
        raise lacking


def needs(plan: Plan, artifacts: Path, toolchains: Iterable[str], settings: Mapping[str, Kind]) -> Iterator[Need]:
    """What the build writes, less the checkpoints that an earlier one left, and less toolchains that are there."""
    sizes = {c.candidate.checkpoint: c.disk_bytes.value for c in plan.feasible if c.candidate.scheme}
    left = {c.candidate.checkpoint for c in plan.feasible if kept(artifacts, c.candidate)}
    if not sizes or left != set(sizes):
        rest = plan.disk_bytes.value - sum(sizes[name] for name in left)
        yield Need(artifacts, rest, "checkpoints, the base's logits, bundle")
    yield Need(optpipe_home(), plan.downloads_bytes.value, "downloads")
    for lock in to_install(toolchains, settings):
        yield Need(optpipe_home(), 1e9 * managed.SIZES.get(lock.name, 0.0), f"toolchain {lock.name}")


def to_install(names: Iterable[str], settings: Mapping[str, Kind]) -> Iterator[managed.Lock]:
    """The locks of managed toolchains that are not there yet; what optpipe does not install is not counted."""
    for name in (one for one in names if one in managed.ROLES or one in managed.names()):
        role = next((role for role, locks in managed.ROLES.items() if name in locks.values()), name)
        own = settings.get(name) or settings.get(role)
        if own is None or own.kind == "managed":
            lock = managed.lock_for(name, own.accelerator if own else "auto")
            if not lock.complete:
                yield lock


def kept(artifacts: Path, candidate: Candidate) -> bool:
    """Whether an earlier run made this checkpoint, by its record and the kept job that it names."""
    if candidate.scheme is None:
        return False
    store = JobStore(artifacts.absolute() / "cache")
    found = sorted(artifacts.glob(f"runs/*/04-quantize/{candidate.checkpoint}/record.json"), reverse=True)
    records = (read_json(path) for path in found[:LOOKED_AT])
    return any(one["scheme"] == candidate.scheme and one["job"] and store.get(one["job"]) for one in records)


def shortage(wanted: Iterable[Need], look: Callable[[Path], Disk] = disk_of) -> EnvironmentMissing | None:
    """The disk that lacks most, as the error that says so; None where all have room."""
    by_disk: dict[int, list[Need]] = {}
    free: dict[int, int] = {}
    for need in wanted:
        disk = look(need.folder)
        by_disk.setdefault(disk.device, []).append(need)
        free[disk.device] = disk.free
    lacking = {device: sum(n.bytes for n in some) - free[device] for device, some in by_disk.items()}
    device = max(lacking, key=lambda one: lacking[one], default=None)
    if device is None or lacking[device] <= 0:
        return None
    some = [need for need in by_disk[device] if need.bytes]
    each = ", ".join(f"{show(need.bytes)} {need.what}" for need in some)
    return EnvironmentMissing(
        f"{show(sum(n.bytes for n in some))} of disk are needed (estimated: {each}), {show(free[device])} are free",
        place=str(max(some, key=lambda need: need.bytes).folder),
        hint=f"free {show(lacking[device])}, or put it elsewhere: `--artifacts DIR` for artifacts, OPTPIPE_HOME for "
        "toolchains and downloads; or take fewer candidates",
    )
