"""Runs one job body as the executor's worker does: in its toolchain, on JSON, leaving files and a record."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from optpipe import toolchains

Job = tuple[str, Path, dict[str, Path], dict[str, Any]]
"""Kind, folder, inputs, options."""

ONE_BY_ONE = "import sys, pathlib; from optpipe import worker\nfor f in sys.argv[1:]: worker.main(pathlib.Path(f))"


def run_body(
    kind: str,
    folder: Path,
    inputs: dict[str, Path],
    options: dict[str, Any] | None = None,
    seed: int = 1,
    toolchain: str = "quantize",
) -> dict[str, Any]:
    """The record, or {"failure": ...}; what the body wrote lies in `folder`/files."""
    write_job((kind, folder, inputs, options or {}), seed)
    done = run_in(toolchain, "-m", "optpipe.worker", str(folder), cwd=folder)
    return record_of(folder, done.stderr)


def run_bodies(*jobs: Job) -> list[dict[str, Any]]:
    """The records of several jobs, one after another in one process, so that torch is imported once."""
    for job in jobs:
        write_job(job, 1)
    done = in_quantize("-c", ONE_BY_ONE, *(str(folder) for _, folder, _, _ in jobs))
    return [record_of(folder, done.stderr) for _, folder, _, _ in jobs]


def write_job(job: Job, seed: int) -> None:
    kind, folder, inputs, options = job
    (folder / "files").mkdir(parents=True)
    value = {
        "kind": kind,
        "options": options,
        "inputs": {name: str(path) for name, path in inputs.items()},
        "context": {},
        "threads": 1,
        "seed": seed,
    }
    (folder / "job.json").write_text(json.dumps(value), encoding="utf-8")


def record_of(folder: Path, log: str) -> dict[str, Any]:
    for name in ("record", "failure"):
        if (folder / f"{name}.json").exists():
            value: dict[str, Any] = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
            return value if name == "record" else {"failure": value}
    raise AssertionError(f"no record: {log[-2000:]}")


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
