"""Code that engines compile when they start: whose it is, under which key, when it goes."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.executors.keys import Keys
from optpipe.errors import EnvironmentMissing
from optpipe.keep import collect
from optpipe.records import Artifact, EngineSpec, Hardware, Json, KeptCode
from optpipe.rundir import CodeStore, JobStore
from tests.fakes.site import toolchain

KEY, OTHER = "sha256:" + "1" * 64, "sha256:" + "2" * 64
HERE = Hardware("here", "cpu of 2026", 8, 16 << 30, "avx2", gpu="H100", compute_capability="9.0", driver="580.1")


def fill(store: CodeStore, key: str, name: str = "model.so", size: int = 10) -> None:
    """An engine that compiles one file and gets ready."""
    kept = store.hold(key)
    (kept.path / name).write_bytes(b"x" * size)
    kept.started(1.0, {})
    kept.close()


# ---------------------------------------------------------------- cold, warm, broken off


def test_a_second_start_finds_what_the_first_left(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    first = store.hold(KEY)
    (first.path / "model.so").write_bytes(b"x" * 10)
    cold = first.started(60.0, {"mode": "ONCE"})
    second = store.hold(KEY)
    warm = second.started(30.0, {})
    code = KeptCode(KEY).seen(cold).seen(warm).seen(warm)
    assert (code.cold, code.warm) == (cold, (warm,))
    assert (cold.found_bytes, cold.bytes, cold.added) == (0, 10, 1)
    assert (warm.found_bytes, warm.bytes, warm.added) == (10, 10, 0)
    first.close()
    second.close()


def test_a_start_that_compiles_more_is_neither_cold_nor_warm(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    fill(store, KEY)
    kept = store.hold(KEY)
    (kept.path / "wider.so").write_bytes(b"y")
    start = kept.started(45.0, {})
    kept.close()
    code = KeptCode(KEY).seen(start)
    assert start.added == 1 and code.cold is None and code.warm == ()


def test_what_a_start_left_that_never_got_ready_is_dropped(tmp_path: Path) -> None:
    """A compiler that was killed leaves half a library."""
    store = CodeStore(tmp_path)
    fill(store, KEY)
    broken = store.hold(KEY)
    (broken.path / "half.so").write_bytes(b"\x7fELF")
    broken.close()
    assert list(store.hold(KEY).path.glob("*.so")) == []


def test_only_what_was_found_is_suspect_and_only_until_the_engine_is_up(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    first = store.hold(KEY)
    (first.path / "model.so").write_bytes(b"x")
    assert not first.suspect
    first.started(1.0, {})
    second = store.hold(KEY)
    assert second.suspect
    second.started(1.0, {})
    assert not second.suspect


def test_nothing_is_dropped_while_another_engine_runs_from_it(tmp_path: Path) -> None:
    store = CodeStore(tmp_path)
    fill(store, KEY)
    running, failed = store.hold(KEY), store.hold(KEY)
    running.started(1.0, {})
    failed.close()
    assert (store.hold(KEY).path / "model.so").exists()
    assert store.drop(KEY) == 0 and (running.path / "model.so").exists()


# ---------------------------------------------------------------- whose it is


def test_the_folder_is_its_users_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        kept = CodeStore(tmp_path / "compiled").hold(KEY)
    finally:
        os.umask(before)
    assert [oct(path.stat().st_mode & 0o777) for path in (kept.path, kept.path.parent)] == ["0o700", "0o700"]


@pytest.mark.parametrize("level", ["root", "key"])
def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, level: str) -> None:
    store = CodeStore(tmp_path / "compiled")
    fill(store, KEY)
    open_ = store.root if level == "root" else store.folder(KEY)
    open_.chmod(0o770)
    with pytest.raises(EnvironmentMissing, match=r"others can write here: .*drwxrwx---") as refused:
        store.hold(KEY)
    assert refused.value.place == str(open_) and "would be executed" in str(refused.value.hint)


def test_a_link_to_somewhere_else_is_refused(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "compiled")
    fill(store, OTHER)
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    store.folder(KEY).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentMissing):
        store.hold(KEY)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_another_users_folder_is_refused(tmp_path: Path) -> None:
    store = CodeStore(tmp_path / "compiled")
    fill(store, KEY)
    os.chown(store.folder(KEY), 65534, 65534)
    with pytest.raises(EnvironmentMissing, match="owner 65534"):
        store.hold(KEY)


# ---------------------------------------------------------------- keys


def served(target: Vllm, settings: Json | None = None, digest: str = "sha256:model") -> EngineSpec:
    return vllm.spec("a@vllm", target, Artifact(Path("/m"), digest), settings or {}, HERE)


def code_key(spec: EngineSpec, here: Hardware = HERE, fingerprint: str = "sha256:fake") -> str:
    return Keys(here, lambda kind: 1).code(spec, toolchain("vllm", fingerprint))


COMPILED = Vllm(enforce_eager=False)
SAME = code_key(served(COMPILED))


def test_what_is_compiled_depends_on_engine_machine_driver_model_and_options() -> None:
    others = [
        code_key(served(COMPILED), fingerprint="sha256:another version"),
        code_key(served(COMPILED), replace(HERE, driver="590.2")),
        code_key(served(COMPILED), replace(HERE, gpu="H200")),
        code_key(served(COMPILED), replace(HERE, cpu="another")),
        code_key(served(COMPILED), replace(HERE, instruction_set="avx2 avx512f")),
        code_key(served(COMPILED, digest="sha256:other")),
        code_key(served(replace(COMPILED, kv_cache_dtype="fp8"))),
        code_key(served(replace(COMPILED, engine_args={"compilation_config.mode": 1}))),
    ]
    assert len({SAME, *others}) == 1 + len(others)


def test_a_variable_that_reaches_into_the_compiler_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1")
    assert code_key(served(COMPILED)) != SAME


def test_tuned_settings_and_the_cores_of_the_machine_share_the_code() -> None:
    assert code_key(served(COMPILED, {"max_num_seqs": 8, "enable_prefix_caching": False})) == SAME
    assert code_key(served(COMPILED), replace(HERE, cores=2, memory_bytes=1 << 30)) == SAME
    assert code_key(served(replace(COMPILED, kv_cache_memory_bytes=1 << 28))) == SAME


def test_an_eager_engine_compiles_nothing_and_knows_no_folder() -> None:
    spec = served(Vllm(enforce_eager=True))
    assert spec.compiles is None and "{compiled}" not in spec.environment.values()
    compiled = served(COMPILED).environment
    assert compiled["VLLM_CACHE_ROOT"] == "{compiled}" and "TORCHDYNAMO_DISABLE" not in compiled


# ---------------------------------------------------------------- cleaning


def test_gc_drops_code_that_was_unused_longest_and_none_that_runs(tmp_path: Path) -> None:
    store = JobStore(tmp_path)
    (tmp_path / "jobs").mkdir()
    fill(store.code, KEY, size=1000)
    fill(store.code, OTHER, size=1000)
    os.utime(store.code.folder(KEY).with_suffix(".lock"), (1, 1))
    assert collect(store, 1500) == {f"compiled {KEY}": 1000}
    running = store.code.hold(OTHER)
    assert collect(store, 0) == {} and list(store.code) == [OTHER]
    running.started(1.0, {})
    running.close()
    assert collect(store, 0) == {f"compiled {OTHER}": 1000} and list(store.code) == []
