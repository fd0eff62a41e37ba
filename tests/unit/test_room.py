"""A build that the disks have no room for is refused before the long work, with both numbers and what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optpipe.errors import EnvironmentMissing
from optpipe.records import Candidate, CandidatePlan, Estimated, Plan, to_json
from optpipe.room import Disk, disk_of, require_room
from optpipe.rundir import JobStore
from optpipe.toolchains import Interpreter, Kind, managed
from tests.report_data import HARDWARE

W4 = {"method": "gptq", "bits": 4}
OWN: dict[str, Kind] = {name: Interpreter(python="/usr/bin/python3") for name in ("quantize", "vllm", "load")}


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def sized(count: float) -> Estimated:
    return Estimated(count, "bytes", "")


def planned(name: str, scheme: dict[str, object] | None, size: float) -> CandidatePlan:
    candidate = Candidate(f"{name}@vllm", name, "vllm", scheme, {"engine": "vllm"})
    return CandidatePlan(candidate, sized(size), sized(4), sized(0), sized(size), Estimated(60, "s", ""))


def plan(downloads: float = 0) -> Plan:
    """A base, and a checkpoint of 1 GB; 3 GB with logits and bundle."""
    feasible = (planned("base", None, 0), planned("w4", W4, 1e9))
    return Plan("m", HARDWARE, feasible, (), Estimated(60, "s", ""), sized(3e9), sized(downloads))


def refusal(plan: Plan, artifacts: Path, free: dict[str, int], toolchains: tuple[str, ...] = ()) -> EnvironmentMissing:
    """What a build is told whose disks, by the first word of their folder, have so much free."""

    def look(folder: Path) -> Disk:
        name = "home" if "home" in folder.parts else "artifacts"
        return Disk(list(free).index(name) if name in free else 0, free.get(name, next(iter(free.values()))))

    with pytest.raises(EnvironmentMissing) as raised:
        require_room(plan, artifacts, toolchains, OWN if not toolchains else {}, look)
    assert raised.value.exit_code == 3
    return raised.value


def test_both_numbers_and_what_to_do_are_named(tmp_path: Path) -> None:
    error = refusal(plan(), tmp_path / "artifacts", {"artifacts": 2 * 10**9, "home": 10**12})
    assert "3 GB of disk are needed" in error.message and "2 GB are free" in error.message
    assert "free 1 GB" in str(error.hint) and "--artifacts DIR" in str(error.hint)
    assert error.place == str(tmp_path / "artifacts")


def test_where_there_is_room_nothing_is_said(tmp_path: Path) -> None:
    require_room(plan(), tmp_path, ("quantize", "vllm"), OWN, lambda folder: Disk(1, 4 * 10**9))


def test_toolchains_to_install_count_where_they_will_lie(tmp_path: Path) -> None:
    error = refusal(plan(), tmp_path / "artifacts", {"artifacts": 10**12, "home": 10**9}, ("load", "quantize-cpu"))
    needed = managed.SIZES["load"] + managed.SIZES["quantize-cpu"]
    assert f"{needed:.3g} GB of disk are needed" in error.message and "toolchain load" in error.message
    assert "OPTPIPE_HOME" in str(error.hint) and error.place == str(tmp_path / "home")


def test_artifacts_and_downloads_on_one_disk_are_added_up(tmp_path: Path) -> None:
    both = plan(downloads=2e9)
    require_room(both, tmp_path, (), {}, lambda folder: Disk(1, 5 * 10**9))
    assert "5 GB of disk are needed" in refusal(both, tmp_path, {"one": 4 * 10**9}).message


def test_what_an_earlier_build_made_is_not_counted_again(tmp_path: Path) -> None:
    artifacts = tmp_path / "artifacts"
    record = artifacts / "runs" / "20260101-m" / "04-quantize" / "w4" / "record.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"scheme": to_json(W4), "job": "sha256:ab"}))
    assert "3 GB" in refusal(plan(), artifacts, {"artifacts": 10**6, "home": 0}).message, "its job is gone"
    store = JobStore(artifacts / "cache")
    (store.folder("sha256:ab")).mkdir(parents=True)
    kept = {"record": {}, "files": "sha256:cd", "seconds": 1.0, "peak_memory_bytes": 1}
    (store.folder("sha256:ab") / "record.json").write_text(json.dumps(kept))
    require_room(plan(), artifacts, (), {}, lambda folder: Disk(1, 10**6))


def test_the_disk_of_a_folder_that_is_not_there_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    found = disk_of(tmp_path / "not" / "yet")
    assert found.device == tmp_path.stat().st_dev and found.free > 0
