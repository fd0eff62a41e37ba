"""What a toolchain really has installed, as its own interpreter says; kept while its folders stand still."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpipe.errors import EnvironmentMissing
from optpipe.rundir import digest_json, optpipe_home, read_json, write_json
from optpipe.toolchains.uv import clean_environment

SCAN = Path(__file__).with_name("scan.py")
REVISION = 1


@dataclass(frozen=True)
class Scan:
    """Python's version, each package's version, and the SHA-256 over them and the packages' contents."""

    python: str
    versions: dict[str, str]
    fingerprint: str


def scan(python: Path, *, place: str) -> Scan:
    """What `python` has installed; within milliseconds if nothing changed since the last time.

    Raises EnvironmentMissing if it is not there, does not start, or is older than 3.10.
    """
    kept = optpipe_home() / "fingerprints" / (digest_json(str(python)).removeprefix("sha256:")[:32] + ".json")
    report = _kept(kept, python)
    if report is None:
        report = _ask(python, place)
        _keep(kept, python, report)
    versions = {"python": str(report["python"]), **{k: v[0] for k, v in sorted(report["packages"].items())}}
    parts = {k: report[k] for k in ("python", "implementation", "machine", "packages")}
    if tuple(int(part) for part in versions["python"].split(".")[:2]) < (3, 10):
        raise EnvironmentMissing(
            f"{python} is Python {versions['python']}; workers need 3.10 or newer",
            place=place,
            hint="name an environment with a newer Python, or leave the entry out to have one installed",
        )
    return Scan(versions["python"], versions, digest_json(parts))


def _ask(python: Path, place: str) -> dict[str, Any]:
    import json

    try:
        done = subprocess.run(
            [str(python), str(SCAN)], env=clean_environment({}), capture_output=True, text=True, timeout=120
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        hint = "look at it with: optpipe doctor"
        raise EnvironmentMissing(f"{python} does not run: {error}", place=place, hint=hint) from error
    if done.returncode != 0:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise EnvironmentMissing(f"{python} ended with {done.returncode}: {last}", place=place)
    return dict(json.loads(done.stdout))


def _stamps(python: Path, folders: list[str]) -> dict[str, int]:
    """Modification times in ns of the interpreter and of each folder it imports from; -1 if absent."""
    stamps = {}
    for path in [str(python), str(python.parent.parent / "pyvenv.cfg"), *folders]:
        try:
            stamps[path] = Path(path).stat().st_mtime_ns
        except OSError:
            stamps[path] = -1
    return stamps


def _kept(file: Path, python: Path) -> dict[str, Any] | None:
    try:
        kept: Mapping[str, Any] = read_json(file)
        report = dict(kept["report"])
        same = kept["revision"] == REVISION and kept["stamps"] == _stamps(python, report["folders"])
    except (OSError, ValueError, KeyError):
        return None
    return report if same else None


def _keep(file: Path, python: Path, report: dict[str, Any]) -> None:
    stamps = _stamps(python, report["folders"])
    # A folder that changed just now could change again within the clock's grain: not remembered yet.
    if time.time_ns() - max(stamps.values()) > 2_000_000_000:
        write_json(file, {"revision": REVISION, "stamps": stamps, "report": report})
