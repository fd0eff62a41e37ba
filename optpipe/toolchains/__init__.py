"""Isolated environments for the heavy libraries: where each is, what is in it, how to get it.

For example:

    toolchain = toolchains.get("vllm", recipe.toolchains, say)
    argv = toolchain.argv("-m", "optpipe.worker", folder)
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from optpipe.errors import EnvironmentMissing, InputError
from optpipe.rundir import DigestMemo, digest_json, optpipe_home
from optpipe.toolchains import managed
from optpipe.toolchains.fingerprint import scan
from optpipe.toolchains.kinds import Endpoint, Image, Interpreter, Kind, Managed, Toolchain
from optpipe.toolchains.source import worker_source
from optpipe.toolchains.uv import Say, silent

__all__ = [
    "CORE",
    "Endpoint",
    "Image",
    "Interpreter",
    "Kind",
    "Managed",
    "Toolchain",
    "get",
    "install",
    "installed",
    "known",
    "path",
    "worker_source",
]

CORE = "core"

# An empty value is an unset one to Python: the caller's path and switches must not leak into a toolchain,
# nor may what lies in the working folder (PYTHONSAFEPATH; `python -m` looks there first).
ENV = {
    "PYTHONPATH": "",
    "PYTHONHOME": "",
    "PYTHONDONTWRITEBYTECODE": "",
    "PYTHONSAFEPATH": "1",
    "DO_NOT_TRACK": "1",
    "DISABLE_TELEMETRY": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_DO_NOT_TRACK": "1",
    "TRTLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

# aiperf loads a tokenizer from a local folder only when the hub library is not told to stay offline.
ENV_OF = {"load": {"HF_HUB_OFFLINE": "0", "TRANSFORMERS_OFFLINE": "0"}}

ON_PATH = {"tensorrt_llm": "trtllm-serve"}
"""Toolchains that optpipe has no lock of: whose command on PATH, a Python script, leads to the interpreter."""


def known() -> tuple[str, ...]:
    """Every name that `get` takes without settings: the core, what jobs ask for, each lock, commands on PATH."""
    return tuple(sorted({CORE, *managed.ROLES, *managed.names(), *ON_PATH}))


def path(name: str) -> Path:
    """Where the managed toolchain `name` is, or will be once installed."""
    return managed.lock_for(name).folder


def installed(name: str) -> bool:
    """Whether all of the managed toolchain `name` is installed."""
    return name == CORE or managed.lock_for(name).complete


def install(name: str, say: Say = silent) -> Path:
    """Install the managed toolchain `name` unless it is there; its folder. Raises EnvironmentMissing."""
    return managed.install(managed.lock_for(name), say)


def get(name: str, settings: Mapping[str, Kind] | None = None, say: Say = silent) -> Toolchain:
    """The toolchain `name` as the recipe's `toolchains:` has it, ready to run; managed ones get installed.

    Raises EnvironmentMissing where it cannot be had, InputError for an image without a digest.
    """
    given = settings or {}
    key = next((key for key in (name, _role(name), _lock(name)) if key in given), name)
    chosen: Kind = given.get(key, Managed())
    if isinstance(chosen, Interpreter):
        return _interpreter(name, chosen, key)
    if isinstance(chosen, Image):
        return _image(name, chosen, key)
    if isinstance(chosen, Endpoint):
        fingerprint = digest_json({"endpoint": chosen.url})
        return Toolchain(name, "endpoint", (), {}, fingerprint, origin=chosen.url, url=chosen.url)
    if name in ON_PATH:
        return _interpreter(name, Interpreter(_python_of(name, ON_PATH[name])), name)
    return _core() if name == CORE else _managed(name, chosen, say)


def _role(name: str) -> str:
    return next((role for role, locks in managed.ROLES.items() if name in locks.values()), name)


def _lock(name: str) -> str:
    """The lock that answers for a role on this machine: a recipe may name a toolchain by it."""
    return managed.ROLES[name][managed.accelerator()] if name in managed.ROLES else name


def environment_of(name: str) -> dict[str, str]:
    return {**ENV, **ENV_OF.get(_role(name), {})}


def _core() -> Toolchain:
    """This Python; its jobs use the standard library and numpy, which is what its fingerprint covers."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        numpy = version("numpy")
    except PackageNotFoundError:
        numpy = "absent"
    versions = {"python": platform.python_version(), "numpy": numpy}
    fingerprint = digest_json(versions)
    python = (sys.executable,)
    return Toolchain(CORE, "managed", python, environment_of(CORE), fingerprint, versions, "this Python")


def _managed(name: str, chosen: Managed, say: Say) -> Toolchain:
    lock = managed.lock_for(name, chosen.accelerator)
    managed.install(lock, say)
    found = scan(lock.python, place=f"toolchain {lock.name}")
    origin = f"lock {lock.folder.name}"
    env = environment_of(name)
    python = (str(lock.python),)
    return Toolchain(name, "managed", python, env, found.fingerprint, found.versions, origin, lock=lock.file)


def _interpreter(name: str, chosen: Interpreter, key: str) -> Toolchain:
    place = f"toolchains.{key}.python"
    python = Path(chosen.python).expanduser().absolute()
    if not os.access(python, os.X_OK) or python.is_dir():
        raise EnvironmentMissing(
            f"{chosen.python} is not a program that can be run",
            place=place,
            hint="give the path of a Python, such as ENVIRONMENT/bin/python, or leave the entry out",
        )
    found = scan(python, place=place)
    env = environment_of(name)
    return Toolchain(name, "interpreter", (str(python),), env, found.fingerprint, found.versions, str(python))


def _python_of(name: str, command: str) -> str:
    """The interpreter that a command on PATH names in its first line. EnvironmentMissing where there is none."""
    place, found = f"toolchains.{name}", shutil.which(command)
    hint = f"name its Python under `toolchains:`, e.g. `{name}: {{kind: interpreter, python: ENVIRONMENT/bin/python}}`"
    if found is None:
        raise EnvironmentMissing(f"there is no {command} on PATH, and optpipe installs none", place=place, hint=hint)
    with Path(found).open("rb") as file:
        first = file.readline(512)
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    python = next((word for word in words if "python" in Path(word).name), None)
    if python is None:
        raise EnvironmentMissing(f"{found} is no Python script, so its Python is not known", place=place, hint=hint)
    return shutil.which(python) or python


def _image(name: str, chosen: Image, key: str) -> Toolchain:
    digest = _image_digest(chosen)
    if digest is None:
        raise InputError(
            f"{' '.join(chosen.command)!r} names no image by digest, so it could be another one tomorrow",
            place=f"toolchains.{key}.command",
            hint="write image@sha256:...; `docker inspect --format '{{.RepoDigests}}' IMAGE` shows it",
        )
    python = (*chosen.command, chosen.python)
    versions = {"image": digest}
    return Toolchain(name, "image", python, environment_of(name), digest, versions, chosen.command[-1])


def _image_digest(chosen: Image) -> str | None:
    """The digest in the command, or that of the content of an apptainer file (.sif)."""
    for word in reversed(chosen.command):
        if match := re.search(r"@(sha256:[0-9a-f]{64})$", word):
            return match[1]
        if word.endswith(".sif") and Path(word).is_file():
            return DigestMemo(optpipe_home() / "digests.sqlite").file(Path(word))
    return None
