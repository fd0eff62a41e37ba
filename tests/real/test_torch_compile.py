"""Real vLLM compiling on the CPU: the first start compiles, the second finds it in our folder, another key does not."""

from __future__ import annotations

import shutil
import stat
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.model.hardware import this_machine
from optpipe.records import Artifact, EngineSpec, Hardware, Job, KeptCode, Start
from optpipe.rundir import JobStore
from tests.fakes.site import Heard
from tests.real.test_engine_vllm_real import get

pytestmark = [
    pytest.mark.real,
    pytest.mark.skipif(not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on PATH"),
]
PROMPTS = ["The capital of France is", "Water boils at"]


def executor(folder: Path, machine: Hardware) -> LocalExecutor:
    return LocalExecutor(JobStore(folder / "cache"), get, Site.here(machine), folder / "logs", Heard())


def serving(model: Path, machine: Hardware, *, eager: bool = False) -> EngineSpec:
    target = Vllm(enforce_eager=eager, max_model_len=256, kv_cache_memory_bytes=64 << 20)
    return vllm.spec("cut@vllm", target, Artifact(model, "sha256:cut"), {"max_num_seqs": 4}, machine)


def answered(ex: LocalExecutor, spec: EngineSpec, seed: int) -> tuple[list[list[str]], Start | None]:
    """What an engine of its own answers, and how it started."""
    with ex.session(spec) as session:
        record = session.run(Job("canary", "canary", "core", {"prompts": PROMPTS, "max_tokens": 6}, seed=seed)).record
        return [answer["tokens"] for answer in record["answers"]], next(iter(session.starts), None)
    raise AssertionError("a session never swallows an error")


def test_the_second_start_loads_what_the_first_compiled_and_another_driver_compiles_again(
    cut3: Path, tmp_path: Path
) -> None:
    machine = this_machine()
    ex, spec = executor(tmp_path, machine), serving(cut3, machine)
    cold_said, cold = answered(ex, spec, 1)
    warm_said, warm = answered(ex, spec, 2)
    assert cold and warm and cold_said == warm_said
    code = KeptCode(ex.code_key(spec) or "").seen(cold).seen(warm)
    folder = ex.store.code.folder(code.key)
    assert code.cold == cold and cold.bytes > 100_000 and cold.told["backend"] == "inductor"
    assert code.warm == (warm,), f"it added {warm.added} files"
    assert list(folder.rglob("*.so")), "the compiled libraries lie in our folder"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    elsewhere = replace(machine, driver="another")
    other = executor(tmp_path, elsewhere)
    _, again = answered(other, serving(cut3, elsewhere), 1)
    assert again and again.found_bytes == 0 and again.added
    assert len(list(ex.store.code)) == 2


def test_compiled_code_that_is_damaged_never_breaks_a_start(cut3: Path, tmp_path: Path) -> None:
    machine = this_machine()
    ex, spec = executor(tmp_path, machine), serving(cut3, machine)
    said, _ = answered(ex, spec, 1)
    for library in ex.store.code.folder(ex.code_key(spec) or "").rglob("*.so"):
        library.write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    assert answered(ex, spec, 2)[0] == said
