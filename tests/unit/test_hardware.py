"""The machine as it is, and others by name or file."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from optpipe.errors import InputError
from optpipe.model.hardware import (
    gpu_key,
    instruction_class,
    memory_bytes,
    named,
    parse_gpus,
    peaks,
    this_machine,
)
from optpipe.model.hardware_table import MACHINES
from optpipe.records import Hardware

TWO = "NVIDIA H100 80GB HBM3, 81559, 550.54.15, 9.0\n" * 2


def test_this_machine_has_cores_memory_and_an_instruction_set() -> None:
    found = this_machine()
    assert found.cores == len(os.sched_getaffinity(0)) and found.memory_bytes > 1 << 28
    assert found.cpu and found.instruction_set
    assert this_machine() == found


def test_a_control_group_limits_the_memory(tmp_path: Path) -> None:
    whole = memory_bytes(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_bytes(tmp_path) == whole
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert memory_bytes(tmp_path) == 1 << 30


def test_gpus_come_from_what_nvidia_smi_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\nprintf '%s' '{TWO}'\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = this_machine()
    assert (found.gpu, found.gpus, found.driver) == ("NVIDIA H100 80GB HBM3", 2, "550.54.15")
    assert found.gpu_memory_bytes == 81559 << 20 and found.compute_capability == "9.0"
    tool.write_text("#!/bin/sh\necho 'NVIDIA-SMI has failed'; exit 9\n")
    assert this_machine().gpus == 0


@pytest.mark.parametrize(
    ("visible", "count"), [("0", 1), ("1,0", 2), ("", 0), ("-1", 0), ("GPU-1234", 1), ("7", 0)]
)
def test_only_visible_gpus_count(monkeypatch: pytest.MonkeyPatch, visible: str, count: int) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert parse_gpus(TWO).get("gpus", 0) == count


def test_every_named_machine_has_peaks() -> None:
    assert len(MACHINES) > 10
    for name in MACHINES:
        found = peaks(named(name))
        assert found is not None and found.bandwidth > 1e9 and found.bf16 > 1e10, name
    one, eight = peaks(named("h100")), peaks(named("h100x8"))
    assert one and eight and eight.bandwidth == 8 * one.bandwidth == 8 * 3.35e12


@pytest.mark.parametrize(
    ("driver_name", "memory", "key"),
    [
        ("NVIDIA H100 80GB HBM3", 80, "H100"),
        ("NVIDIA A100-SXM4-80GB", 80, "A100 80GB"),
        ("NVIDIA A100-SXM4-40GB", 40, "A100 40GB"),
        ("NVIDIA A100", 40, "A100 40GB"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX 4090"),
        ("NVIDIA A10", 24, "A10"),
        ("NVIDIA L40S", 48, "L40S"),
        ("Some Card", 24, None),
    ],
)
def test_a_driver_s_name_of_a_card_finds_its_row(driver_name: str, memory: int, key: str | None) -> None:
    machine = Hardware("m", "c", 1, 1, "avx2", driver_name, 1, memory << 30)
    assert gpu_key(machine) == key and (peaks(machine) is None) == (key is None)


def test_the_widest_instruction_set_decides() -> None:
    flags = "avx2 avx512f avx512_vnni avx512_bf16"
    assert instruction_class(flags) == "avx512_bf16"
    assert instruction_class(flags + " amx_bf16") == "amx"
    assert instruction_class("avx2") == "avx2" and instruction_class("riscv64") == "other"


def test_an_unknown_name_has_a_close_one() -> None:
    with pytest.raises(InputError, match="'h10' is no machine") as caught:
        named("h10")
    assert "did you mean 'h100'?" in str(caught.value.hint)


def test_a_file_describes_a_machine_of_one_s_own(tmp_path: Path) -> None:
    path = tmp_path / "rack.yaml"
    path.write_text("base: a10\ngpus: 4\nmemory_bytes: 549755813888\n")
    found = named(str(path))
    assert (found.name, found.gpus, found.gpu, found.memory_bytes) == ("rack", 4, "NVIDIA A10", 1 << 39)
    path = tmp_path / "plain.json"
    path.write_text('{"cores": 4, "memory_bytes": 8589934592}')
    assert named(str(path)) == Hardware("plain", "unknown", 4, 1 << 33, "other")


WRONG = {
    "gpu_count: 4": "gpu_count: no such key",
    "cores: four": "cores: 'four' is not a whole number",
    "cores: 4": "memory_bytes is missing",
    "base: a11": "base: 'a11' is not known",
    "- a10": "is not a mapping",
    "cores: [": "cannot be read",
    "{base: a10, compute_capability: 8.6}": "compute_capability: 8.6 is not a text",
}


@pytest.mark.parametrize("text", WRONG)
def test_a_wrong_file_names_key_and_value(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rack.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=WRONG[text]) as caught:
        named(str(path))
    assert caught.value.place == str(path) and caught.value.hint


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        named(str(tmp_path / "gone.yaml"))
