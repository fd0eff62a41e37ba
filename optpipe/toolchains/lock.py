"""Makes the lock files anew: `python -m optpipe.toolchains.lock [NAME ...] [--check]`.

Each `locks/NAME.in` (with `NAME.overrides`) is resolved by uv for Python 3.11 on, and written as `NAME.txt`:
versions, markers, and the hash of every file that fits Linux on x86_64 or aarch64. No path, no host: of what
lies under file:// only the version is kept, as nobody else can see that file. `--check` writes nothing and
fails where a lock no longer resolves or says something else than its `.in`.
"""

from __future__ import annotations

import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from optpipe import console
from optpipe.errors import EnvironmentMissing, InputError, OptpipeError
from optpipe.rundir import write_atomic
from optpipe.toolchains.managed import LOCKS
from optpipe.toolchains.pip_config import read_pip_config, uv_environment
from optpipe.toolchains.uv import Uv

PYTHON = "3.11"
OLDEST = 11
LINUX = re.compile(r"^(?:manylinux.*|linux)_(?:x86_64|aarch64)$")


def lines_of(pylock: dict[str, Any]) -> list[str]:
    """The lock's lines for uv's PEP 751 document; packages without a file for Linux are left out."""
    lines: list[str] = []
    for package in pylock["packages"]:
        marker = package.get("marker", "")
        hashes = sorted(file_hashes(package))
        if "'never'" in marker or not (hashes or _local(package)):
            continue
        marker = re.sub(rf"python_full_version >= '{PYTHON}'(?: and )?", "", marker)
        pin = f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "")
        lines.append(" \\\n".join([pin, *(f"    --hash=sha256:{value}" for value in hashes)]))
    return lines


def file_hashes(package: dict[str, Any]) -> set[str]:
    """SHA-256 of the wheels that fit Linux; of the source too unless one wheel fits every Python."""
    wheels = [w for w in package.get("wheels", ()) if fits(_name(w)) and not w["url"].startswith("file:")]
    hashes = {str(wheel["hashes"]["sha256"]) for wheel in wheels}
    source = package.get("sdist")
    if source and not any(_name(w).endswith("-none-any.whl") for w in wheels):
        hashes.add(str(source["hashes"]["sha256"]))
    return hashes


def fits(wheel: str) -> bool:
    """Whether a wheel's name fits CPython 3.11 or newer on Linux, x86_64 or aarch64."""
    python, abi, platforms = wheel.removesuffix(".whl").split("-")[-3:]
    if platforms != "any" and not any(LINUX.match(p) for p in platforms.split(".")):
        return False
    if abi == "none" or abi == "abi3":
        return any(p.startswith(("py3", "cp3")) for p in python.split("."))
    match = re.fullmatch(r"cp3(\d+)", abi)
    return match is not None and int(match[1]) >= OLDEST


def _name(file: dict[str, Any]) -> str:
    return str(file.get("name") or file["url"].rsplit("/", 1)[-1])


def _local(package: dict[str, Any]) -> bool:
    return any(wheel["url"].startswith("file:") for wheel in package.get("wheels", ()))


def resolve(name: str, *, keep: bool) -> str:
    """The text of the lock `name`, resolved now; with `keep`, at the versions in its present `.txt`."""
    inputs = LOCKS / f"{name}.in"
    if not inputs.is_file():
        hint = "name a lock without its ending"
        raise InputError(f"{inputs.name} is not there", place=str(LOCKS), hint=hint)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "pylock.toml"
        arguments = ["pip", "compile", "--quiet", "--no-header", "--universal", "--python-version", PYTHON]
        overrides = LOCKS / f"{name}.overrides"
        if overrides.is_file():
            arguments += ["--overrides", str(overrides)]
        if keep:
            arguments += ["--constraints", str(_versions(LOCKS / f"{name}.txt", Path(folder)))]
        uv = Uv(_environment("+cpu" in inputs.read_text(encoding="utf-8")), Path(folder))
        arguments += ["--format", "pylock.toml", "--output-file", str(target), str(inputs)]
        ended = uv.run(*arguments, title=f"locking {name}", say=console.say)
        if ended.code:
            raise EnvironmentMissing(ended.last_lines(), place=inputs.name, hint="change the versions in it")
        return "\n".join(lines_of(tomllib.loads(target.read_text(encoding="utf-8")))) + "\n"


def _environment(wants_cpu_torch: bool) -> dict[str, str]:
    """PyPI alone, so that a lock says the same wherever it is made; find-links only for torch's CPU build."""
    config = read_pip_config()
    wanted = ["cert", "client-cert", "proxy", "timeout", "default-timeout"]
    here = wants_cpu_torch and "find-links" in config
    chosen = {key: config[key] for key in [*wanted, *(["find-links"] if here else [])] if key in config}
    return uv_environment(chosen, torch_cpu=wants_cpu_torch and not here)


def _versions(lock: Path, folder: Path) -> Path:
    file = folder / "present.txt"
    file.write_text("\n".join(pins(lock.read_text(encoding="utf-8"))) + "\n", encoding="utf-8")
    return file


def pins(text: str) -> list[str]:
    """Each `name==version ; marker` of a lock's text, without hashes."""
    return [line.removesuffix(" \\") for line in text.splitlines() if re.match(r"[a-z0-9]", line)]


def stale(name: str) -> list[str]:
    """Versions that the lock `name` should hold and does not, and the other way round; markers aside."""
    now = {pin.split()[0] for pin in pins(resolve(name, keep=True))}
    then = {pin.split()[0] for pin in pins((LOCKS / f"{name}.txt").read_text(encoding="utf-8"))}
    return [f"+ {pin}" for pin in sorted(now - then)] + [f"- {pin}" for pin in sorted(then - now)]


def main(arguments: list[str]) -> int:
    """Lock or check the named locks, else all; the exit code."""
    check = "--check" in arguments
    chosen = [a for a in arguments if a != "--check"] or sorted(f.stem for f in LOCKS.glob("*.in"))
    bad = 0
    for name in chosen:
        if check:
            changes = stale(name)
            bad += bool(changes)
            verdict = "does not match its .in" if changes else "resolves"
            console.say("\n".join([f"{name}: {verdict}", *changes]))
        else:
            write_atomic(LOCKS / f"{name}.txt", resolve(name, keep=False).encode())
            console.say(f"{name}: locked")
    return 2 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except OptpipeError as error:
        console.say(str(error))
        sys.exit(error.exit_code)
