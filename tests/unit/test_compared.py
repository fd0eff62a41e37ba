"""Each estimate stands beside the figure that was measured of it, with the error in per cent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optpipe.compared import AIMS, Made, Spent, compared, disk_used
from optpipe.records import (
    Candidate,
    CandidatePlan,
    Checkpoint,
    Compared,
    Estimated,
    Evaluation,
    Json,
    Plan,
    from_json,
    to_json,
)
from optpipe.report import estimates
from optpipe.rundir import JobStore, RunFolder
from tests.report_data import HARDWARE

W4: Json = {"method": "gptq"}


def sized(count: float) -> Estimated:
    return Estimated(count, "bytes", "")


def planned(name: str, scheme: Json | None) -> CandidatePlan:
    return CandidatePlan(
        Candidate(f"{name}@vllm", name, "vllm", scheme, {"engine": "vllm"}),
        *(sized(100e6), sized(4), sized(3e9), sized(100e6), Estimated(60, "s", "")),
        quantize_memory=sized(900e6) if scheme else None,
        score_memory=sized(700e6),
        engine_memory=sized(3e9),
        job_seconds=Estimated(50, "s", ""),
    )


def keep(store: JobStore, key: str, seconds: float, peak: float, engine: float | None = None) -> None:
    folder = store.folder(key)
    folder.mkdir(parents=True)
    kept = {"record": {}, "files": "sha256:0", "seconds": seconds, "peak_memory_bytes": peak}
    (folder / "record.json").write_text(json.dumps(kept))
    if engine:
        store.keep_beside(key, "engine", {"peak_memory_bytes": engine})


NOTHING = Spent()


def found(tmp_path: Path, spent: Spent = NOTHING) -> dict[tuple[str, str], Compared]:
    store = JobStore(tmp_path / "cache")
    keep(store, "sha256:base", 30.0, 725e6)
    keep(store, "sha256:mine", 20.0, 1400e6)
    keep(store, "sha256:canary", 2.0, 1e6, engine=2.4e9)
    made = []
    for name, scheme, jobs in (
        ("base", None, ("sha256:base",)),
        ("w4", W4, ("sha256:base", "sha256:mine", "sha256:canary")),
    ):
        checkpoint = Checkpoint(name, tmp_path, "sha256:1", 98_000_000, 4.0, scheme, 30.0, 1_000_000_000)
        made.append(Made(planned(name, scheme), checkpoint, Evaluation(f"{name}@vllm", "", "passed", (), (), jobs)))
    plan = Plan("m", HARDWARE, (), (), Estimated(300, "s", ""), sized(2e9), sized(0))
    return {(row.of, row.quantity): row for row in compared(plan, made, spent, store)}


def test_every_quantity_is_paired_with_its_own_job(tmp_path: Path) -> None:
    rows = found(tmp_path)
    measured = {key: row.measured for key, row in rows.items()}
    assert measured == {
        ("base", "bytes"): 98e6,
        ("base", "score memory"): 725e6,
        ("base", "seconds of jobs"): 30.0,
        ("w4", "bytes"): 98e6,
        ("w4", "quantize memory"): 1e9,
        ("w4", "score memory"): 1400e6,
        ("w4", "seconds of jobs"): 50.0,
        ("w4@vllm", "engine memory"): 2.4e9,
    }


def test_an_error_is_of_what_was_measured_and_beyond_its_aim_or_not(tmp_path: Path) -> None:
    rows = found(tmp_path)
    assert rows["w4", "quantize memory"].error_pct == pytest.approx(-10.0)
    assert rows["w4@vllm", "engine memory"].error_pct == pytest.approx(25.0)
    beyond = {key for key, row in rows.items() if row.beyond}
    assert beyond == {("base", "bytes"), ("w4", "bytes"), ("w4", "score memory"), ("w4@vllm", "engine memory")}
    assert rows["w4", "seconds of jobs"].aim_pct is None and set(AIMS.values()) == {2.0, 15.0}


def test_the_whole_is_compared_where_it_is_a_figure_of_the_whole(tmp_path: Path) -> None:
    assert not [key for key in found(tmp_path / "kept") if key[0] == "build"]
    rows = found(tmp_path / "made", Spent(250.0, 10**9))
    assert rows["build", "seconds"].error_pct == pytest.approx(20.0)
    assert rows["build", "disk"].error_pct == pytest.approx(100.0)


def test_rows_are_records_and_have_words(tmp_path: Path) -> None:
    rows = found(tmp_path)
    assert all(from_json(Compared, to_json(row)) == row for row in rows.values())
    line = estimates.line(rows["w4@vllm", "engine memory"])
    assert (line.estimated, line.measured, line.error) == ("3.00 GB", "2.40 GB", "+25.0 %, beyond 15 %")
    assert estimates.line(rows["w4", "seconds of jobs"]).measured == "50 s"


def test_a_build_s_disk_is_its_run_its_jobs_and_what_it_published(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path, "m", {})
    for place, size in ((folder.path, 10), (folder.store.folder("sha256:ab"), 20), (tmp_path / "registry" / "v", 30)):
        place.mkdir(parents=True)
        (place / "file").write_bytes(b"x" * size)
    assert disk_used(folder, ["sha256:ab", "sha256:gone"], [tmp_path / "registry" / "v"]) == 60
