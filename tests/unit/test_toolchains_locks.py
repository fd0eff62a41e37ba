"""The lock files that are shipped, and how they are made."""

from __future__ import annotations

import re

import pytest

from optpipe.toolchains import known, managed
from optpipe.toolchains.lock import fits, lines_of, pins
from optpipe.toolchains.managed import LOCKS

NAMES = (
    "gptqmodel-cpu", "gptqmodel-cuda", "legacy-cpu", "load", "modelopt-cpu", "modelopt-cuda", "onnxruntime-cpu",
    "quantize-cpu", "quantize-cuda", "tasks", "vllm-cpu", "vllm-cuda",
)  # fmt: skip
PIN = r"[a-z0-9][a-z0-9.-]*==[0-9][0-9a-zA-Z.+!]*( ; [a-zA-Z_0-9 '=<>!.()*]+)?"
LINE = re.compile(PIN + r"( \\)?|    --hash=sha256:[0-9a-f]{64}( \\)?")


def text_of(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text(encoding="utf-8")


def test_every_input_has_its_lock() -> None:
    assert managed.names() == NAMES
    assert tuple(sorted(file.stem for file in LOCKS.glob("*.in"))) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_lock_holds_versions_and_hashes_only(name: str) -> None:
    """No path, no host, no option: every line is a pin or a hash."""
    odd = [line for line in text_of(name).splitlines() if not LINE.fullmatch(line)]
    assert odd == []


@pytest.mark.parametrize("name", NAMES)
def test_everything_but_the_cpu_torch_has_a_hash(name: str) -> None:
    bare = [line for line in text_of(name).splitlines() if "==" in line and not line.endswith("\\")]
    assert [line.split("==")[0] for line in bare] == (["torch"] if name.endswith("-cpu") else [])


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("-cuda")])
def test_cpu_locks_bring_no_cuda(name: str) -> None:
    heavy = [pin for pin in pins(text_of(name)) if re.match(r"(nvidia-c|cuda-|triton)", pin)]
    assert heavy == []


def test_torch_is_where_it_belongs() -> None:
    assert managed.pinned(text_of("load"), "torch") is None
    assert managed.pinned(text_of("tasks"), "torch") is None
    assert managed.pinned(text_of("quantize-cpu"), "torch") == "2.13.0+cpu"
    assert managed.pinned(text_of("vllm-cpu"), "torch") == "2.13.0+cpu"
    assert managed.pinned(text_of("legacy-cpu"), "torch") == "2.13.0+cpu"
    assert "+" not in (managed.pinned(text_of("vllm-cuda"), "torch") or "+")


def test_roles_name_locks_that_are_there() -> None:
    assert {lock for locks in managed.ROLES.values() for lock in locks.values()} == set(NAMES) == set(managed.SIZES)
    assert {"core", "quantize", "vllm", "load", "tasks", "legacy"} <= set(known())


@pytest.mark.parametrize(
    ("wheel", "expected"),
    [
        ("a-1-py3-none-any.whl", True),
        ("a-1-py2.py3-none-any.whl", True),
        ("a-1-py2-none-any.whl", False),
        ("a-1-cp311-cp311-manylinux2014_x86_64.manylinux_2_17_x86_64.whl", True),
        ("a-1-cp314-cp314-manylinux_2_28_aarch64.whl", True),
        ("a-1-cp38-abi3-manylinux_2_28_x86_64.whl", True),
        ("a-1-py3-none-manylinux_2_27_x86_64.whl", True),
        ("a-1-cp311-cp311-linux_x86_64.whl", True),
        ("a-1-cp310-cp310-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp314-cp314t-manylinux_2_28_x86_64.whl", False),
        ("a-1-cp311-cp311-musllinux_1_2_x86_64.whl", False),
        ("a-1-cp311-cp311-macosx_11_0_arm64.whl", False),
        ("a-1-cp311-cp311-win_amd64.whl", False),
        ("a-1-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", False),
    ],
)
def test_wheels_that_fit_linux(wheel: str, expected: bool) -> None:
    assert fits(wheel) is expected


def file(name: str, digit: str, place: str = "https://files.example/") -> dict[str, object]:
    return {"url": place + name, "hashes": {"sha256": digit * 64}}


def test_lines_leave_out_what_never_installs_and_whatever_lies_on_this_disk() -> None:
    pure, source = file("a-1-py3-none-any.whl", "1"), file("a-1.tar.gz", "2")
    local = file("torch-2+cpu-cp311-cp311-linux_x86_64.whl", "3", "file:///here/")
    windows, mac = file("w-1-cp311-cp311-win_amd64.whl", "4"), "python_full_version >= '3.11' and x == 'y'"
    packages = [
        {"name": "a", "version": "1", "wheels": [pure], "sdist": source},
        {"name": "b", "version": "1", "marker": mac, "sdist": source},
        {"name": "never", "version": "1", "marker": "sys_platform == 'never'", "wheels": [pure]},
        {"name": "torch", "version": "2+cpu", "marker": "python_full_version >= '3.11'", "wheels": [local]},
        {"name": "w", "version": "1", "wheels": [windows]},
    ]
    assert lines_of({"packages": packages}) == [
        f"a==1 \\\n    --hash=sha256:{'1' * 64}",
        f"b==1 ; x == 'y' \\\n    --hash=sha256:{'2' * 64}",
        "torch==2+cpu",
    ]
