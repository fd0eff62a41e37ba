"""Runs one job body as the executor's worker does: in its toolchain, on JSON, leaving files and a record."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from optpipe import toolchains


def run_body(
    kind: str,
    folder: Path,
    inputs: dict[str, Path],
    options: dict[str, Any] | None = None,
    seed: int = 1,
    toolchain: str = "quantize",
) -> dict[str, Any]:
    """The record, or {"failure": ...}; what the body wrote lies in `folder`/files."""
    (folder / "files").mkdir(parents=True)
    job = {
        "kind": kind,
        "options": options or {},
        "inputs": {name: str(path) for name, path in inputs.items()},
        "context": {},
        "threads": 1,
        "seed": seed,
    }
    (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
    done = run_in(toolchain, "-m", "optpipe.worker", str(folder), cwd=folder)
    for name in ("record", "failure"):
        if (folder / f"{name}.json").exists():
            value: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            return value if name == "record" else {"failure": value}
    raise AssertionError(f"no record: {done.stderr[-2000:]}")


def in_quantize(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in the quantize toolchain, one thread, no network."""
    return run_in("quantize", *arguments)


def run_in(name: str, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """`python ARGUMENTS` in a toolchain, one thread, no network."""
    toolchain = toolchains.get(name)
    env = toolchain.environment() | {
        "PYTHONPATH": str(toolchains.worker_source()),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = toolchain.argv(*arguments)
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=800, check=False)
