"""Tasks in a whole build over fakes: who is scored, what is kept, what a failure costs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from tests.fakes.place import INT8, Done, Place

TASK: dict[str, Any] = {
    "task": "choices",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "documents.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{ q }}",
    "doc_to_choice": "{{ a }}",
    "doc_to_target": "r",
    "metric_list": [{"metric": "acc"}],
}


def with_tasks(place: Place, **keys: Any) -> Place:
    (place.root / "choices.yaml").write_text(yaml.safe_dump(TASK))
    (place.root / "documents.jsonl").write_text('{"q": "?", "a": ["x", "y"], "r": 0}\n')
    place.recipe["tasks"] = {"names": ["choices.yaml"], "documents": 40, **keys}
    return place


def acts(place: Place, at: str, after: int = 0) -> list[str]:
    return [act["who"] for act in place.log()[after:] if act["at"] == at]


def test_base_and_finalist_are_scored_and_nobody_else(again: Place) -> None:
    before = len(again.log())
    done = with_tasks(again).build()
    assert done.code == 0, done.err
    found = {name: candidate["tasks"] for name, candidate in done.said["candidates"].items()}
    assert {name for name, tasks in found.items() if tasks} == {"base@vllm", "w4@vllm"}
    base, mine = found["base@vllm"]["choices"], found["w4@vllm"]["choices"]
    assert (base["n"], base["change_points"], base["lost"]) == (40, None, [])
    changed = len(mine["won"]) - len(mine["lost"])
    assert mine["change_points"] == 100 * changed / 40 and mine["ci95_points"][0] < mine["change_points"]
    assert round(40 * mine["value"]) == round(40 * base["value"]) + changed
    assert acts(again, "task-requests", before) == ["choices"], "one job for all candidates"
    assert len(acts(again, "task-scores", before)) == 2
    assert acts(again, "quantize", before) == [] and acts(again, "score", before) == []
    report = (again.artifacts / "latest" / "report.md").read_text()
    assert "choices 1.0, acc" in report
    record = json.loads((again.artifacts / "latest" / "06-evaluate" / "w4@vllm.json").read_text())
    assert len(record["tasks"][0]["items"]) == len(record["tasks"][0]["correct"]) == 40
    assert again.build().jobs["run"] == 0


def test_more_documents_or_another_file_are_new_jobs_and_a_gate_is_not(again: Place) -> None:
    assert with_tasks(again).build().code == 0
    with_tasks(again, allowed_drop=100.0)
    done = again.build()
    assert (done.code, done.jobs["run"]) == (0, 0)
    record = json.loads((again.artifacts / "latest" / "06-evaluate" / "w4@vllm.json").read_text())
    assert [c["status"] for c in record["checks"] if c["name"] == "accuracy on tasks"] == ["passed"]
    before = len(again.log())
    with_tasks(again, documents=50).build()
    assert len(acts(again, "task-scores", before)) == 2


def test_the_next_candidate_is_scored_where_the_gate_is_open_for_the_first(again: Place) -> None:
    """With 20 documents no bound is known, so each leader in turn is open until only the base is left."""
    with_tasks(again, documents=20, allowed_drop=5.0)
    done = again.build()
    found = {name: bool(candidate["tasks"]) for name, candidate in done.said["candidates"].items()}
    assert found == {"base@vllm": True, "w4@vllm": True, "int8@vllm": True}
    assert (done.status("w4@vllm"), done.status("int8@vllm"), done.said["winner"]) == (
        "inconclusive",
        "inconclusive",
        "base@vllm",
    )
    assert "at least 30" in done.reasons("w4@vllm")


def test_tasks_that_fail_cost_no_candidate(again: Place) -> None:
    again.order({"at": "task-scores", "do": "fail", "message": "lm-eval fell over"})
    done = with_tasks(again).build()
    assert (done.code, done.said["winner"]) == (0, "w4@vllm")
    assert "lm-eval fell over" in (again.artifacts / "latest" / "report.md").read_text()
    assert done.said["candidates"]["w4@vllm"]["tasks"] == {}


def test_a_task_file_that_runs_code_ends_the_build_before_it_begins(fresh: Callable[..., Place]) -> None:
    place = with_tasks(fresh(checkpoints={"int8": INT8}))
    (place.root / "choices.yaml").write_text(yaml.safe_dump(TASK) + "process_docs: !function helpers.clean\n")
    (place.root / "helpers.py").write_text("raise SystemExit('never run')\n")
    done: Done = place.build()
    assert done.code == 2 and "helpers.py" in done.err and "allow: ['sha256:" in done.err
    assert not Path(place.artifacts, "runs").exists() and place.log() == []
