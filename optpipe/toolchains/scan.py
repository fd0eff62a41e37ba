"""What is installed where this runs, as JSON: a script for any Python from 3.9 on, run by its path."""

import sys

sys.path.pop(0)  # the script's own folder: nothing here may shadow the standard library

import hashlib
import json
import platform
from importlib import metadata

# How and where a package was installed says nothing about what it is: launchers hold the environment's path.
PLACE_BOUND = ("/INSTALLER", "/REQUESTED", "/RECORD", "/direct_url.json", "/uv_cache.json")


def content(dist: metadata.Distribution) -> str:
    """SHA-256 over the package's RECORD (each file with its hash), else over its metadata."""
    record = dist.read_text("RECORD")
    if record is None:
        lines = [dist.read_text("PKG-INFO") or dist.read_text("METADATA") or ""]
    else:
        lines = sorted(line for line in record.splitlines() if not place_bound(line.split(",", 1)[0]))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def place_bound(path: str) -> bool:
    return path.startswith("..") or path.endswith((".pyc", *PLACE_BOUND))


def packages() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = {}
    for dist in metadata.distributions():
        name = (dist.metadata["Name"] or "").lower().replace("_", "-")
        if name and name not in found:  # the first on sys.path is the one that is imported
            found[name] = (dist.version, content(dist))
    return found


def folders() -> list[str]:
    return [entry for entry in sys.path if entry]


if __name__ == "__main__":
    report = {
        "python": platform.python_version(),
        "implementation": platform.python_implementation(),
        "machine": platform.machine(),
        "folders": folders(),
        "packages": packages(),
    }
    sys.stdout.write(json.dumps(report))
