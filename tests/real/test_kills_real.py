"""kill -9 of a build at work in the real llm-compressor, transformers, vLLM and AIPerf; the next goes on from there."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from optpipe.processes import live_folder
from optpipe.rundir import read_json

pytestmark = pytest.mark.real

RECIPE = """\
version: 1
name: cut
model: {{source: {model}}}
calibration: {{text: {{source: python-docs, part: calibrate}}, samples: 8, sequence_length: 128}}
checkpoints:
  int8: {{method: int8}}
  w4: {{method: gptq, bits: 4, group_size: 64}}
targets:
  vllm: {{engine: vllm, max_model_len: 384, kv_cache_memory_bytes: 268435456}}
texts:
  python: {{source: python-docs, part: score}}
scoring: {{units: {units}, max_units: {units}}}
# A model cut to three layers writes no sense, so its gates are wide.
gates:
  {{perplexity_increase_pct: 400, kl_divergence: 4, top1_agreement: 0.01, bits_per_weight_tolerance_pct: 10,
    parity_factor: 20, parity_mean_ceiling: 1, parity_p99_ceiling: 5}}
load: {{scenario: steady, concurrency: 2, input_tokens: 64, output_tokens: 16, requests: 24}}
slo: {{ttft_ms: {{p90: 20000}}, tpot_ms: {{p90: 5000}}}}
tune: {{trials: 0}}
keep: all
"""
PATIENCE_S = 600.0


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder with a short path, so that temporary folders of jobs and engines lie in it."""
    with tempfile.TemporaryDirectory(prefix="kills-", dir="/tmp") as folder:
        Path(folder, "tmp").mkdir()
        yield Path(folder)


def start(folder: Path, model: Path, artifacts: str, units: int) -> subprocess.Popen[str]:
    """A build whose machine-wide lock lies in its own folder: it shares the machine with nobody's figures."""
    (folder / "recipe.yaml").write_text(RECIPE.format(model=model, units=units), encoding="utf-8")
    command = [sys.executable, "-m", "optpipe", "build", "recipe.yaml", "--json", "--artifacts", artifacts]
    env = {**os.environ, "TMPDIR": str(folder / "tmp")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=folder, env=env, text=True, **pipes)  # type: ignore[call-overload,no-any-return]


def ended(process: subprocess.Popen[str]) -> tuple[int, dict[str, Any], str]:
    out, err = process.communicate(timeout=1500)
    assert "Traceback" not in err, err
    return process.returncode, json.loads(out) if out else {}, err


def at_work(folder: Path, kind: str, **options: object) -> bool:
    """Whether a job of this kind, with these options, has told of its progress."""
    for job in (folder / "artifacts" / "cache" / "work").glob("*/job.json"):
        try:
            said = read_json(job)
        except (FileNotFoundError, ValueError):
            continue
        fits = said["kind"] == kind and options.items() <= said["options"].items()
        if fits and (job.parent / "progress.jsonl").exists():
            return True
    return False


def engine_starts(folder: Path) -> bool:
    """Whether an engine has been at its imports for a while, and some process of its own is there."""
    logs = (folder / "artifacts").glob("latest/logs/*-engine.log")
    return any(log.stat().st_size > 0 and "Application startup complete" not in log.read_text() for log in logs)


MOMENTS: dict[str, Callable[[Path], bool]] = {
    "quantize": lambda folder: at_work(folder, "quantize", method="gptq"),
    "score": lambda folder: at_work(folder, "score", keep_logits=False),
    "engine": engine_starts,
    "load": lambda folder: at_work(folder, "load"),
}


def mine(folder: Path) -> list[psutil.Process]:
    """Living processes of jobs and engines of builds in this folder: their temporary folder lies in it."""
    found = []
    for process in psutil.process_iter():
        try:
            inside = process.environ().get("TMPDIR", "").startswith(str(folder / "tmp"))
            if inside and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def supervised(folder: Path) -> list[dict[str, Any]]:
    """The records of what runs now in this folder."""
    records = []
    for path in live_folder().glob("*.json"):
        try:
            records.append(read_json(path))
        except (FileNotFoundError, ValueError):
            continue
    return [record for record in records if record["scratch"].startswith(str(folder / "tmp"))]


def until(look: Callable[[], Any], within_s: float) -> bool:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if look():
            return True
        time.sleep(0.05)
    return False


def ports(processes: list[psutil.Process]) -> set[int]:
    found = set()
    for process in processes:
        connections = process.net_connections(kind="tcp") if process.is_running() else []
        found |= {connection.laddr.port for connection in connections if connection.status == psutil.CONN_LISTEN}
    return found


def test_killed_builds_leave_nothing_and_end_with_the_same_checkpoints(cut3: Path, place: Path) -> None:
    for moment, reached in MOMENTS.items():
        process = start(place, cut3, "artifacts", 32)
        assert until(lambda: reached(place) or process.poll() is not None, PATIENCE_S), f"{moment} was not seen"  # noqa: B023
        assert process.poll() is None, ended(process)
        time.sleep(1.5)
        before = mine(place)
        listening, shared = ports(before), [name for live in supervised(place) for name, _ in live["shm"]]
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert until(lambda: not mine(place), 15), f"{moment}: {[p.cmdline() for p in mine(place)]}"
        assert until(lambda: not supervised(place), 5)
        assert not [name for name in shared if Path(name).exists()], f"{moment}: shared memory was left"
        assert not listening & {c.laddr.port for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        kept = kept_now(place)
        assert len(before) >= 2
    code, said, err = ended(start(place, cut3, "artifacts", 32))
    assert code == 0, err[-3000:]
    assert {key: kept_now(place)[key] for key in kept} == kept, "what was done has not been done again"
    code, again, _ = ended(start(place, cut3, "artifacts", 32))
    assert (code, again["jobs"]["run"], again["digest"]) == (0, 0, said["digest"])
    # Too few units to decide: quantized and scored without any kill, and no engine is started.
    code, reference, _ = ended(start(place, cut3, "reference", 4))
    assert code == 7
    assert digests(said) == digests(reference)


def kept_now(folder: Path) -> dict[str, int]:
    records = (folder / "artifacts").glob("cache/jobs/*/record.json")
    return {path.parent.name: path.stat().st_mtime_ns for path in records}


def digests(said: dict[str, Any]) -> dict[str, str]:
    return {name: candidate["model_digest"] for name, candidate in said["candidates"].items()}
