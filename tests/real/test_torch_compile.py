"""Real vLLM compiling on the CPU: the first start compiles, the second finds it in our folder, another key does not."""

from __future__ import annotations

import shutil
import stat
import tempfile
from dataclasses import dataclass, replace
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
    logs = Path(tempfile.mkdtemp(prefix="logs-", dir=folder))
    return LocalExecutor(JobStore(folder / "cache"), get, Site.here(machine), logs, Heard())


def serving(model: Path, machine: Hardware, *, eager: bool = False) -> EngineSpec:
    target = Vllm(enforce_eager=eager, max_model_len=256, kv_cache_memory_bytes=64 << 20)
    return vllm.spec("cut@vllm", target, Artifact(model, "sha256:cut"), {"max_num_seqs": 4}, machine)


def answered(ex: LocalExecutor, spec: EngineSpec, seed: int) -> tuple[list[list[str]], Start | None]:
    """What an engine of its own answers, and how it started."""
    with ex.session(spec) as session:
        record = session.run(Job("canary", "canary", "core", {"prompts": PROMPTS, "max_tokens": 6}, seed=seed)).record
        return [answer["tokens"] for answer in record["answers"]], next(iter(session.starts), None)
    raise AssertionError("a session never swallows an error")


@dataclass(frozen=True)
class First:
    """What the first start of an engine of this machine left."""

    folder: Path
    machine: Hardware
    spec: EngineSpec
    said: list[list[str]]
    start: Start

    def again(self, seed: int, machine: Hardware | None = None) -> tuple[list[list[str]], Start]:
        """Another engine: what it says, how it started."""
        said, start = answered(executor(self.folder, machine or self.machine), self.spec, seed)
        assert start is not None, "it compiles when it starts"
        return said, start

    def code(self, machine: Hardware | None = None) -> Path:
        ex = executor(self.folder, machine or self.machine)
        return ex.store.code.folder(ex.code_key(self.spec) or "")


@pytest.fixture(scope="module")
def first(cut3: Path, tmp_path_factory: pytest.TempPathFactory) -> First:
    folder, machine = tmp_path_factory.mktemp("compiled"), this_machine()
    spec = serving(cut3, machine)
    said, start = answered(executor(folder, machine), spec, 1)
    assert start is not None, "it compiles when it starts"
    return First(folder, machine, spec, said, start)


def test_the_second_start_loads_what_the_first_compiled(first: First) -> None:
    said, warm = first.again(2)
    code = KeptCode("").seen(first.start).seen(warm)
    assert said == first.said
    assert code.cold == first.start and code.cold.bytes > 100_000 and code.cold.told["backend"] == "inductor"
    assert code.warm == (warm,), f"it added {warm.added} files"
    assert list(first.code().rglob("*.so")), "the compiled libraries lie in our folder"
    assert stat.S_IMODE(first.code().stat().st_mode) == 0o700


def test_another_driver_compiles_again(first: First) -> None:
    elsewhere = replace(first.machine, driver="another")
    said, start = first.again(3, elsewhere)
    assert said == first.said and start.found_bytes == 0 and start.added
    assert first.code(elsewhere) != first.code() and list(first.code(elsewhere).rglob("*.so"))


def test_compiled_code_that_is_damaged_never_breaks_a_start(first: First) -> None:
    for library in first.code().rglob("*.so"):
        library.write_bytes(library.read_bytes()[: library.stat().st_size // 2])
    said, start = first.again(4)
    assert said == first.said and start.found_bytes == 0, "it started once more, with nothing kept"
