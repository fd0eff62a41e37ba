"""The copy of the optpipe package that workers import: alone, so no core library shadows a toolchain's."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path

import optpipe
from optpipe.rundir import digest_bytes, digest_json, optpipe_home, remove_tree, sync_tree

PACKAGE = Path(optpipe.__file__).parent
_LOCK = threading.Lock()
_MADE: dict[Path, Path] = {}


def worker_source() -> Path:
    """The folder to put on a worker's PYTHONPATH: OPTPIPE_HOME/source/<digest>, holding optpipe/**.py.

    Made once per content and process, by a rename, so a build under way keeps the source it began with.
    """
    base = optpipe_home() / "source"
    with _LOCK:
        if base not in _MADE:
            _MADE[base] = copy_source(PACKAGE, base)
        return _MADE[base]


def copy_source(package: Path, base: Path) -> Path:
    """Copy the .py files of `package` to `base`/<digest>/optpipe, unless that is there."""
    files = {str(p.relative_to(package)): p.read_bytes() for p in sorted(package.rglob("*.py"))}
    digest = digest_json({name: digest_bytes(data) for name, data in files.items()}).removeprefix("sha256:")
    target = base / digest[:32]
    if _whole(target, files):
        return target
    base.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=base, prefix=f".{digest[:8]}."))
    try:
        for name, data in files.items():
            file = part / "optpipe" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
        part.chmod(0o755)
        sync_tree(part)
        _publish(part, target, files)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return target


def _whole(target: Path, files: dict[str, bytes]) -> bool:
    try:
        return all((target / "optpipe" / name).read_bytes() == data for name, data in files.items())
    except OSError:
        return False


def _publish(part: Path, target: Path, files: dict[str, bytes]) -> None:
    try:
        part.replace(target)
    except OSError:
        # Another process was first (fine), or what lies there was tampered with or half removed.
        if not _whole(target, files):
            remove_tree(target)
            part.replace(target)
