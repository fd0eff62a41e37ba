"""Tasks in a whole build over fakes: who is scored, what is kept, what a failure costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.fakes.place import INT8, W4, Done, Place
from tests.unit.hub_server import COMMIT, Hub, serve

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


TEXT: dict[str, Any] = {
    **{key: value for key, value in TASK.items() if key != "doc_to_choice"},
    "task": "stories",
    "output_type": "generate_until",
    "generation_kwargs": {"until": ["z"], "max_gen_toks": 6},
    "metric_list": [{"metric": "exact_match"}],
}
HOUSE = """
import json, os, sys, urllib.request
from pathlib import Path

words = Path(__file__).with_name("words.json").read_text()
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
items = []
for number, word in enumerate(json.loads(words) * 10):
    body = {"model": os.environ["OPTPIPE_ENGINE_MODEL"], "prompt": [ord(c) for c in word], "max_tokens": 4}
    url = os.environ["OPTPIPE_ENGINE_URL"] + "/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    text = json.load(opener.open(request))["choices"][0]["text"]
    items.append({"id": f"q{number}", "score": sum(text.encode()) % 2})
Path("seen.txt").write_text(" ".join(sorted(os.environ)))
json.dump({"metrics": {"share": sum(item["score"] for item in items) / len(items)}, "items": items}, sys.stdout)
"""


def with_command(place: Place, code: str = HOUSE) -> Place:
    (place.root / "house.py").write_text(code)
    (place.root / "words.json").write_text(json.dumps(["moon", "river", "stone", "bird"]))
    given = {"argv": [sys.executable, "house.py"], "files": ["words.json"], "timeout_s": 60.0}
    place.recipe["tasks"] = {"commands": {"house": given}}
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


def test_a_task_may_have_a_number_of_documents_of_its_own(again: Place) -> None:
    with_tasks(again, documents_of={"choices": 30}).recipe["tasks"]["names"].append("more.yaml")
    (again.root / "more.yaml").write_text(yaml.safe_dump(TASK | {"task": "more"}))
    done = again.build()
    assert done.code == 0, done.err
    found = done.said["candidates"]["base@vllm"]["tasks"]
    assert (found["choices"]["n"], found["more"]["n"]) == (30, 40)


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


def test_generated_text_is_answered_by_the_engine_and_kept_per_item(again: Place) -> None:
    (again.root / "stories.yaml").write_text(yaml.safe_dump(TEXT))
    with_tasks(again)
    again.recipe["tasks"]["names"] = ["choices.yaml", "stories.yaml"]
    done = again.build()
    assert done.code == 0, done.err
    found = done.said["candidates"]["w4@vllm"]["tasks"]
    assert set(found) == {"choices", "stories"}
    assert found["stories"]["n"] == 40 and found["stories"]["metric"] == "exact_match"
    assert found["stories"]["change_points"] is not None
    kept = [json.loads(path.read_text()) for path in again.artifacts.glob("cache/jobs/*/record.json")]
    texts = [item["text"] for job in kept for item in found_items(job, "stories")]
    assert len(texts) >= 80 and all("z" not in text for text in texts)
    assert again.build().jobs["run"] == 0


def found_items(job: dict[str, Any], task: str) -> list[dict[str, Any]]:
    record = job.get("record", job)
    tasks = record.get("tasks") if isinstance(record, dict) else None
    return list(tasks[task]["items"]) if isinstance(tasks, dict) and task in tasks else []


def test_a_command_runs_only_where_the_build_allows_it(again: Place) -> None:
    before = len(again.log())
    refused = with_command(again).build()
    assert refused.code == 2 and "--allow-commands" in refused.err and "house.py" in refused.err
    assert len(again.log()) == before
    done = again.build("--allow-commands")
    assert done.code == 0, done.err
    found = {name: candidate["tasks"] for name, candidate in done.said["candidates"].items()}
    assert {name for name, tasks in found.items() if tasks} == {"base@vllm", "w4@vllm"}
    house = found["w4@vllm"]["house"]
    assert house["n"] == 40 and house["metric"] == "score" and house["version"].startswith("sha256:")
    low, high = house["ci95_points"]
    assert low <= house["change_points"] <= high and low < high
    assert set(house["lost"] + house["won"]) <= {f"q{n}" for n in range(40)}
    assert again.build("--allow-commands").jobs["run"] == 0
    (again.root / "words.json").write_text(json.dumps(["sun", "cold", "near", "old"]))
    assert again.build("--allow-commands").jobs["run"] == 2, "another content is another evaluation"


def test_a_command_that_fails_costs_no_candidate_and_its_last_words_are_told(again: Place) -> None:
    with_command(again, "import sys\nsys.exit('no such judge')\n")
    done = again.build("--allow-commands")
    assert (done.code, done.said["winner"]) == (0, "w4@vllm")
    report = (again.artifacts / "latest" / "report.md").read_text()
    assert "w4@vllm: house" in report and "exit code 1; it said last: no such judge" in report


def test_lm_evals_own_task_takes_its_documents_from_the_hub_before_anything_is_measured(
    again: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    again.recipe["tasks"] = {"names": [f"riddles@{COMMIT}"], "documents": 40}
    before = len(again.log())
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(again.root / "hf"))
    alone = again.build()
    assert alone.code == 3 and "tasks that need no hub: arc_challenge, arc_easy" in alone.err
    assert "recipe.yaml:" in alone.err
    with serve(Hub(files={"me/riddles": {"data/test-00000-of-00001.parquet": b"documents"}})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        done = again.build()
        assert done.code == 0, done.err
        assert done.said["candidates"]["w4@vllm"]["tasks"]["riddles"]["n"] == 40
        assert acts(again, "task-library", before) == ["riddles"], "kept from the first try"
        again.recipe["tasks"]["names"] = [f"ridles@{COMMIT}"]
        wrong = again.build()
    assert wrong.code == 2 and "lm-eval has no task 'ridles'" in wrong.err and "riddles" in wrong.err


def test_a_new_version_is_compared_with_the_champion_on_the_same_items(again: Place) -> None:
    first = with_tasks(again).build()
    assert first.said["published"][0]["aliases"] == ["latest", "champion"], "the same model, with tasks now"
    again.recipe["checkpoints"] = {"w4-g64": {**W4, "group_size": 64}}
    done = again.build()
    assert done.code == 0, done.err
    reasons = [r for r in done.said["published"][0]["challenge"]["reasons"] if "accuracy on tasks" in r]
    assert len(reasons) == 1 and "told and not judged" in reasons[0] and "of 40" in reasons[0]
