"""lm-eval's own tasks on data sets of a hub, against a small hub on loopback; looks are processes, as settings are
read at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optpipe.model import task_hub, tasks
from tests.unit.hub_server import COMMIT, Hub, serve

LOOK = """
import json, sys
from pathlib import Path
from optpipe.errors import OptpipeError
from optpipe.model import task_hub, tasks

config, folder, allow = json.loads(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]
try:
    task = task_hub.of_hub(config, "%s", folder, allow, "tasks.names.0")
    found = tasks.resolve(task, folder / "home", lambda text: None)
    read = {name: artifact.path.read_text() for name, artifact in found.items()}
    print(json.dumps({"config": task.config, "data": task.data, "read": read, "digest": task.digest}))
except OptpipeError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error), "hint": str(error.hint)}))
"""
CONFIG: dict[str, Any] = {
    "task": "riddles",
    "tag": ["all"],
    "dataset_path": "me/riddles",
    "dataset_name": "easy",
    "dataset_kwargs": {"trust_remote_code": True},
    "training_split": "train",
    "validation_split": "validation",
    "output_type": "multiple_choice",
    "doc_to_text": "{{ q }}",
    "doc_to_choice": ["A", "B"],
    "doc_to_target": "r",
    "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    "repeats": 1,
}
FILES = {
    "README.md": b"riddles",
    "riddles.py": b"raise SystemExit('a script of the data set')",
    "easy/train-00000-of-00001.parquet": b"train",
    "easy/validation-00000-of-00002.parquet": b"first",
    "easy/validation-00001-of-00002.parquet": b"second",
    "hard/validation-00000-of-00001.parquet": b"hard",
    "data/test.jsonl": b"lines",
}


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve(Hub(files={"me/riddles": FILES})) as served:
        yield served


def look(url: str, folder: Path, config: dict[str, Any], *allow: str, **env: str) -> dict[str, Any]:
    own = {"HF_ENDPOINT": url, "HF_HOME": str(folder / "hf"), **env}
    command = [sys.executable, "-c", LOOK % COMMIT, json.dumps(config), str(folder), *allow]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **own}, timeout=60)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_name_with_a_commit_is_a_task_of_the_hub_and_nothing_else_is() -> None:
    assert task_hub.parse(f"riddles@{COMMIT}") == ("riddles", COMMIT)
    for text in ("riddles", "riddles@main", f"a/b@{COMMIT}", f"../x@{COMMIT}", f"riddles@{COMMIT}0"):
        assert task_hub.parse(text) is None


def test_documents_are_the_files_of_the_tasks_splits_at_the_commit(hub: Hub, tmp_path: Path) -> None:
    found = look(hub.url, tmp_path, CONFIG)
    assert found["read"] == {
        "data.riddles.train.000": "train",
        "data.riddles.validation.000": "first",
        "data.riddles.validation.001": "second",
    }
    config = found["config"]
    assert config["dataset_path"] == "parquet" and not {"dataset_name", "dataset_kwargs", "repeats"} & set(config)
    asked = {path for _, path, _ in hub.asked if "resolve" in path}
    assert asked and all(COMMIT in path for path in asked)
    assert not any("riddles.py" in path for path in asked), "a data set's own code is not even fetched"


def test_json_files_of_a_data_set_without_subsets(hub: Hub, tmp_path: Path) -> None:
    config = {**CONFIG, "dataset_name": None, "training_split": None, "validation_split": None, "test_split": "test"}
    found = look(hub.url, tmp_path, config)
    assert found["config"]["dataset_path"] == "json" and found["read"] == {"data.riddles.test.000": "lines"}


def test_a_split_that_is_not_there_is_named(hub: Hub, tmp_path: Path) -> None:
    found = look(hub.url, tmp_path, {**CONFIG, "validation_split": "dev"})
    assert found["error"] == "InputError" and "no parquet or JSON files of dev" in found["text"]


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"unsafe_code": True}, "unsafe_code"),
        ({"repeats": 8}, "repeats: 8"),
        ({"generation_kwargs": {"temperature": 0.8}}, "sampled"),
        ({"fewshot_config": {"sampler": "first_n", "samples": "/x/utils.samples"}}, "no list of documents"),
        ({"class": {"!function": "task.Own"}}, "class"),
    ],
)
def test_what_a_task_file_may_not_say_lm_evals_may_not_either(
    changes: dict[str, Any], shown: str, hub: Hub, tmp_path: Path
) -> None:
    found = look(hub.url, tmp_path, CONFIG | changes)
    assert found["error"] == "InputError" and shown in found["text"]


def test_its_code_runs_only_where_its_digest_is_allowed(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "utils.py").write_text("def docs(documents): return documents\n")
    config = {**CONFIG, "process_docs": {"!function": "utils.docs"}}
    refused = look(hub.url, tmp_path, config)
    assert "runs code (utils.py)" in refused["text"]
    digest = refused["hint"].split("'")[1]
    assert look(hub.url, tmp_path, config, digest)["digest"] == digest
    (tmp_path / "utils.py").write_text("import os\n")
    assert "runs code" in look(hub.url, tmp_path, config, digest)["text"]


def test_without_a_hub_the_tasks_that_need_none_are_named(hub: Hub, tmp_path: Path) -> None:
    for env in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        found = look(hub.url, tmp_path / "elsewhere", CONFIG, **env)
        assert found["error"] == "EnvironmentMissing" and ", ".join(tasks.shipped()) in found["hint"]


def test_what_was_fetched_once_works_offline(hub: Hub, tmp_path: Path) -> None:
    before = look(hub.url, tmp_path, CONFIG)
    assert look("http://127.0.0.1:9", tmp_path, CONFIG, HF_HUB_OFFLINE="1") == before
