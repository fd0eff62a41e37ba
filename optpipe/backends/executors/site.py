"""The machine that jobs run on: what keys say of it, what it has, where workers import from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil

from optpipe.records import Hardware
from optpipe.toolchains import worker_source
from optpipe.worker import load_body


def body_revision(kind: str) -> int:
    return load_body(kind).REVISION


@dataclass(frozen=True)
class Site:
    """The machine that jobs run on: what keys say of it, what it has, where workers import from."""

    hardware: Hardware
    cpus: int
    memory_bytes: int
    gpus: tuple[str, ...] = ()
    lock: Path = Path(tempfile.gettempdir(), "optpipe-machine.lock")
    source: Callable[[], Path] = worker_source
    revision: Callable[[str], int] = body_revision

    @classmethod
    def here(cls, hardware: Hardware) -> Site:
        """This machine: the cores that we may run on, the memory that our control group allows."""
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = [n.strip() for n in visible.split(",") if n.strip()] if visible is not None else None
        gpus = tuple(names if names is not None else map(str, range(hardware.gpus)))[: hardware.gpus]
        return cls(hardware, cpus, memory_allowed(), gpus)


def memory_allowed() -> int:
    """Bytes that this process and its children may hold: the machine's, or fewer in a control group."""
    total = int(psutil.virtual_memory().total)
    limit = Path("/sys/fs/cgroup/memory.max")
    try:
        text = limit.read_text().strip()
    except OSError:
        return total
    return min(total, int(text)) if text.isdigit() else total
