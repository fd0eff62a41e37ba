"""The machine that jobs run on: what keys say of it, what it has, where workers import from."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

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
        """This machine, as `hardware` describes it; of its GPUs those that the caller's environment leaves visible."""
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        names = [n.strip() for n in visible.split(",") if n.strip()] if visible is not None else None
        gpus = tuple(names if names is not None else map(str, range(hardware.gpus)))[: hardware.gpus]
        return cls(hardware, hardware.cores, hardware.memory_bytes, gpus)
