"""What this machine has of what optpipe needs, what is missing, and the command that mends it.

`observe` looks, `examine` judges: the judging is a pure function of what was seen.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from optpipe.rundir import optpipe_home
from optpipe.toolchains import managed
from optpipe.toolchains.uv import find_uv

Verdict = Literal["ok", "optional", "missing"]

MIN_MEMORY_GB = 4.0
MIN_DISK_GB = 6.0
"""Room for the three CPU toolchains that every build needs, and a small model."""
NEEDED = ("quantize", "vllm", "load")


@dataclass(frozen=True)
class Finding:
    """One thing looked at: `missing` stops a build, `optional` only narrows what can be built."""

    name: str
    verdict: Verdict
    found: str
    needed_for: str
    mend: str | None = None


@dataclass(frozen=True)
class ToolchainSeen:
    """A lock that answers a role on this machine, and whether it is installed."""

    role: str
    lock: str
    installed: bool
    gigabytes: float


@dataclass(frozen=True)
class Machine:
    """What was seen: sizes in bytes, absent things None."""

    system: str
    architecture: str
    python: str
    executable: str
    uv: str | None
    compiler: str | None
    gpu: str | None
    container: str | None
    home: Path
    home_writable: bool
    disk_free: int
    memory: int
    toolchains: tuple[ToolchainSeen, ...]


def doctor() -> tuple[Finding, ...]:
    """Look at this machine and judge."""
    return examine(observe())


# ---------------------------------------------------------------- look


def observe() -> Machine:
    home = optpipe_home()
    uv = find_uv()
    return Machine(
        system=sys.platform,
        architecture=platform.machine(),
        python=platform.python_version(),
        executable=sys.executable,
        uv=str(uv) if uv else None,
        compiler=next((found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), None),
        gpu=_gpu(),
        container=next((c for name in ("docker", "podman", "apptainer") if (c := shutil.which(name))), None),
        home=home,
        home_writable=_existing(home).is_dir() and os.access(_existing(home), os.W_OK | os.X_OK),
        disk_free=shutil.disk_usage(_existing(home)).free,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        toolchains=tuple(_toolchain(role) for role in managed.ROLES),
    )


def _toolchain(role: str) -> ToolchainSeen:
    lock = managed.lock_for(role)
    return ToolchainSeen(role, lock.name, lock.complete, managed.SIZES.get(lock.name, 0.0))


def _existing(path: Path) -> Path:
    """The nearest folder above that is there."""
    return next(p for p in (path, *path.parents) if p.exists())


def _gpu() -> str | None:
    """The GPUs and their driver in words, or None."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    query = [smi, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    return "; ".join(lines) if done.returncode == 0 and lines else None


# ---------------------------------------------------------------- judge


def examine(machine: Machine) -> tuple[Finding, ...]:
    """Every finding, in the order in which to mend them."""
    return (
        _python(machine),
        _uv(machine),
        _home(machine),
        _disk(machine),
        _memory(machine),
        *(_installed(machine, seen) for seen in machine.toolchains),
        _compiler(machine),
        _gpu_finding(machine),
        _container(machine),
    )


def _python(machine: Machine) -> Finding:
    good = tuple(int(part) for part in machine.python.split(".")[:2]) >= (3, 11)
    mend = None if good else "make a new environment: uv venv --python 3.11"
    return Finding("python", "ok" if good else "missing", machine.python, "optpipe (3.11 or newer)", mend)


def _uv(machine: Machine) -> Finding:
    mend = None if machine.uv else f"{machine.executable} -m pip install uv"
    return Finding(
        "uv", "ok" if machine.uv else "missing", machine.uv or "none", "installing toolchains", mend
    )


def _home(machine: Machine) -> Finding:
    found = f"{machine.home} ({'writable' if machine.home_writable else 'not writable'})"
    mend = None if machine.home_writable else "export OPTPIPE_HOME=FOLDER, one that you may write to"
    verdict: Verdict = "ok" if machine.home_writable else "missing"
    return Finding("OPTPIPE_HOME", verdict, found, "toolchains, sources, models", mend)


def _disk(machine: Machine) -> Finding:
    free = machine.disk_free / 1e9
    needed = MIN_DISK_GB if not all(t.installed for t in machine.toolchains if t.role in NEEDED) else 1.0
    good = free >= needed
    mend = None if good else f"free {needed - free:.1f} GB, or set OPTPIPE_HOME to a larger disk"
    return Finding(
        "disk", "ok" if good else "missing", f"{free:.1f} GB free", f"{needed:.0f} GB at least", mend
    )


def _memory(machine: Machine) -> Finding:
    size = machine.memory / 1e9
    good = size >= MIN_MEMORY_GB
    mend = None if good else "use a larger machine, or benchmark a running server (kind: endpoint)"
    needed = f"a small model and an engine ({MIN_MEMORY_GB:.0f} GB)"
    return Finding("memory", "ok" if good else "missing", f"{size:.1f} GB", needed, mend)


def _installed(machine: Machine, seen: ToolchainSeen) -> Finding:
    name, needed_for = (
        f"toolchain {seen.role}",
        {"load": "load tests", "vllm": "serving"}.get(seen.role, seen.role),
    )
    if seen.installed:
        return Finding(name, "ok", f"{seen.lock}, installed", needed_for)
    if machine.system != "linux" or machine.architecture not in ("x86_64", "aarch64"):
        found = f"{seen.lock} has no files for {machine.system} on {machine.architecture}"
        own = f"name your own in the recipe: toolchains: {{{seen.role}: {{kind: interpreter, python: ...}}}}"
        return Finding(name, "optional", found, needed_for, own)
    found = f"{seen.lock}, not installed yet ({seen.gigabytes:.1f} GB; the first build that needs it does it)"
    return Finding(name, "optional", found, needed_for, f"optpipe toolchain install {seen.role}")


def _compiler(machine: Machine) -> Finding:
    mend = None if machine.compiler else "apt install g++, or your system's like"
    verdict: Verdict = "ok" if machine.compiler else "optional"
    return Finding("C++ compiler", verdict, machine.compiler or "none", "compiled vLLM targets only", mend)


def _gpu_finding(machine: Machine) -> Finding:
    mend = (
        None
        if machine.gpu
        else "nothing to do for CPU targets; else NVIDIA's driver, so that nvidia-smi runs"
    )
    return Finding("GPU", "ok" if machine.gpu else "optional", machine.gpu or "none", "GPU targets", mend)


def _container(machine: Machine) -> Finding:
    verdict: Verdict = "ok" if machine.container else "optional"
    mend = None if machine.container else "install docker, podman or apptainer"
    return Finding("containers", verdict, machine.container or "none", "toolchains of kind image only", mend)
