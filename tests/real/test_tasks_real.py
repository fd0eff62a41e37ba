"""lm-eval on the offline tasks through a real vLLM and through transformers: the same requests, the same verdicts."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe import toolchains
from optpipe.backends.engines import vllm
from optpipe.backends.engines.vllm import Vllm
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.errors import BackendFailed
from optpipe.model import tasks
from optpipe.records import Artifact, Hardware, Job, JobResult
from optpipe.rundir import DigestMemo, JobStore, optpipe_home
from optpipe.stages.tasks import agreement
from optpipe.toolchains import Toolchain
from tests.fakes.site import Heard

pytestmark = pytest.mark.real
CPU = Hardware("here", "cpu", 2, 8 << 30, "x86_64")
LONGEST = 511
CHOICES = {"arc_easy": 4, "piqa": 2}


def get(name: str) -> Toolchain:
    return toolchains.get(name, say=print)


def executor(folder: Path) -> LocalExecutor:
    return LocalExecutor(JobStore(folder / "cache"), get, Site.here(CPU), folder / "logs", Heard())


class Battery:
    """Tasks as jobs on one model folder."""

    def __init__(
        self, folder: Path, model: Path, names: list[str], documents: int, allow: tuple[str, ...] = ()
    ) -> None:
        self.executor = executor(folder)
        digest, _ = DigestMemo(folder / "digests.sqlite").tree(model)
        self.model = Artifact(model, digest)
        chosen = [tasks.read(name, folder, allow) for name in names]
        self.inputs = {k: v for task in chosen for k, v in tasks.resolve(task, optpipe_home(), print).items()}
        self.options = {
            "tasks": {task.name: task.config for task in chosen},
            "metrics": {task.name: task.metric for task in chosen},
            "documents": {task.name: documents for task in chosen},
        }

    def requests(self) -> JobResult:
        options = {**self.options, "longest": LONGEST}
        inputs = {**self.inputs, "model": self.model}
        return self.executor.run(Job("task-requests", "requests", "tasks", options, inputs))

    def engine(self, requests: JobResult) -> JobResult:
        target = Vllm(max_model_len=LONGEST + 1, kv_cache_memory_bytes=256 << 20)
        spec = vllm.spec("cut@vllm", target, self.model, {}, CPU)
        with self.executor.session(spec) as session:
            return session.run(Job("tasks", "tasks", "core", {}, {"requests": requests.files}))

    def reference(self, requests: JobResult) -> JobResult:
        inputs = {"requests": requests.files, "model": self.model}
        return self.executor.run(Job("tasks-reference", "transformers", "quantize", {}, inputs))

    def scores(self, answers: JobResult) -> dict[str, Any]:
        inputs = {**self.inputs, "answers": answers.files}
        return dict(self.executor.run(Job("task-scores", "scores", "tasks", self.options, inputs)).record["tasks"])


def lines(result: JobResult, name: str) -> list[Any]:
    return [json.loads(line) for line in (result.files.path / name).read_text().splitlines()]


def test_the_engine_and_transformers_give_the_same_verdicts(cut3: Path, tmp_path: Path) -> None:
    battery = Battery(tmp_path, cut3, list(CHOICES), 20)
    requests = battery.requests()
    assert requests.record["requests"] == len(lines(requests, "requests.jsonl")) >= 20 * (2 + 3)
    assert {name: len(ids) for name, ids in requests.record["documents"].items()} == dict.fromkeys(CHOICES, 20)
    assert requests.record["cut"] == 0 and requests.record["lm_eval"] == "0.4.13"
    served, reference = battery.scores(battery.engine(requests)), battery.scores(battery.reference(requests))
    for name in CHOICES:
        found = agreement(served[name], reference[name])
        print(name, served[name]["correct"], reference[name]["correct"], found)
        assert served[name]["n"] == 20 and served[name]["metric"] == "acc_norm" and served[name]["version"] == "1.0"
        assert served[name]["metrics"]["acc_norm"] == served[name]["correct"] / 20
        assert found["mean_abs"] < 0.6 and len(found["items_that_differ"]) <= 2, "seen: 0.16 and 0.30 nats, none"
        assert all(len(item["logprobs"]) <= 5 for item in served[name]["items"])


COMPARE = """
import json, sys
import datasets
from pathlib import Path
import lm_eval
from lm_eval.api.task import ConfigurableTask
from lm_eval.tasks._yaml_loader import load_yaml
given = json.load(sys.stdin)
root = Path(lm_eval.__file__).parent / "tasks"
out = {}
for name, (file, config, data) in given.items():
    files = {"dataset_kwargs": {"data_files": data}}
    theirs = dict(load_yaml(root / file))
    theirs.pop("tag", None)
    theirs |= {"dataset_path": config["dataset_path"], "dataset_name": None, **files}
    theirs |= {"training_split": None, "test_split": None, "validation_split": "validation"}
    theirs |= {"fewshot_split": None, "fewshot_config": None}
    if name == "boolq":
        theirs["doc_to_target"] = "{{ answer | int }}"
    def asked(config):
        task = ConfigurableTask(config=dict(config))
        task.build_all_requests(limit=100)
        answers = [task.process_results(i.doc, [(-1.0 - n, False) for n in range(5)][: sum(
            j.doc_id == i.doc_id for j in task.instances)]) for i in task.instances if i.idx == 0]
        return [list(i.args) for i in task.instances], answers
    mine, other = asked(config | files), asked(theirs)
    out[name] = {"same": mine == other, "requests": len(mine[0]), "first": mine[0][0], "theirs": other[0][0]}
print("RESULT" + json.dumps(out))
"""
THEIRS = {
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "boolq": "super_glue/boolq/default.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "mmlu": "mmlu/default/mmlu_abstract_algebra.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
    "piqa": "piqa/piqa.yaml",
    "sciq": "sciq/sciq.yaml",
    "winogrande": "winogrande/default.yaml",
}


def test_shipped_tasks_ask_what_lm_evals_own_tasks_ask(tmp_path: Path) -> None:
    """Prompts, choices and what counts as right of 100 documents each, against lm-eval's own files on the same data;
    of MMLU the 100 of its first subject."""
    given = {}
    for name, file in THEIRS.items():
        task = tasks.read(name, None)
        found = tasks.resolve(task, optpipe_home(), print)
        first = {key.split(".")[2]: str(value.path) for key, value in sorted(found.items(), reverse=True)}
        given[name] = (file, task.config, {"validation": next(iter(first.values()))} | first)
    toolchain = get("tasks")
    env = toolchain.environment() | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path), "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(
        toolchain.argv("-c", COMPARE), input=json.dumps(given), env=env, capture_output=True, text=True, timeout=300
    )
    assert "RESULT" in done.stdout, done.stderr[-3000:]
    found = json.loads(done.stdout.rpartition("RESULT")[2])
    assert set(found) == set(THEIRS)
    assert {name: one for name, one in found.items() if not one["same"]} == {}


def test_every_shipped_task_becomes_requests(cut3: Path, tmp_path: Path) -> None:
    record = Battery(tmp_path, cut3, tasks.shipped(), 3).requests().record
    assert set(record["documents"]) == set(tasks.shipped())
    assert all(len(ids) == 3 < record["available"][name] for name, ids in record["documents"].items())
    assert record["longest"] <= LONGEST


OWN = {
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


def own(folder: Path, **changes: Any) -> None:
    documents = [{"question": f"Is {n} even?", "answers": ["yes", "no"], "right": n % 2} for n in range(8)]
    (folder / "documents.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
    code = changes.pop("code", "")
    config = {key: value for key, value in (OWN | changes).items() if value is not None}
    (folder / "mine.yaml").write_text(yaml.safe_dump(config) + code)


def test_generated_text_is_the_same_by_engine_and_transformers(cut3: Path, tmp_path: Path) -> None:
    """lm-eval's filters take the answer out of the text; a text that ends before its stop is cut nowhere."""
    filters = [{"function": "regex", "regex_pattern": "([a-z]+)"}, {"function": "take_first"}]
    own(
        tmp_path,
        output_type="generate_until",
        doc_to_choice=None,
        doc_to_target="{{ answers[right] }}",
        generation_kwargs={"until": ["\n"], "max_gen_toks": 12},
        filter_list=[{"name": "word", "filter": filters}],
        metric_list=[{"metric": "exact_match", "ignore_case": True}],
    )
    battery = Battery(tmp_path, cut3, ["mine.yaml"], 8)
    requests = battery.requests()
    asked = lines(requests, "requests.jsonl")
    assert len(asked) == 8 and all(one["until"] == ["\n"] and one["max_tokens"] == 12 for one in asked)
    served, reference = battery.scores(battery.engine(requests)), battery.scores(battery.reference(requests))
    found = agreement(served["mine"], reference["mine"])
    print(found, [item["text"] for item in served["mine"]["items"]])
    assert found["items"] == 8 and found["same_texts"] >= 6, "bf16: a tie now and then"
    for item in served["mine"]["items"]:
        word = re.search("[a-z]+", item["text"])
        assert "\n" not in item["text"] and item["taken"] == (word[0] if word else "[invalid]")
        assert item["correct"] == (item["taken"].lower() == ("yes", "no")[item["id"] % 2])


def test_code_that_the_recipe_allows_is_run(cut3: Path, tmp_path: Path) -> None:
    own(tmp_path, code="process_docs: !function helpers.odd\n")
    (tmp_path / "helpers.py").write_text("def odd(documents):\n    return documents.filter(lambda d: d['right'])\n")
    with pytest.raises(Exception, match="runs code") as refused:
        tasks.read("mine.yaml", tmp_path)
    digest = str(refused.value.hint).split("'")[1]  # type: ignore[attr-defined]
    record = Battery(tmp_path, cut3, ["mine.yaml"], 8, (digest,)).requests().record
    assert record["available"] == {"mine": 4} and record["requests"] == 8


def test_lm_evals_own_tasks_come_as_plain_data_with_their_code_beside(tmp_path: Path) -> None:
    names = ["commonsense_qa", "gsm8k", "hellaswag", "comonsense_qa"]
    done = executor(tmp_path).run(Job("task-library", "tasks: lm-eval's own", "tasks", {"names": names}))
    found = done.record["tasks"]
    assert set(found) == {"commonsense_qa", "gsm8k", "hellaswag"}
    assert "commonsense_qa" in done.record["unknown"]["comonsense_qa"]
    assert found["commonsense_qa"]["dataset_path"] == "tau/commonsense_qa"
    assert found["gsm8k"]["generation_kwargs"]["until"][0] == "Question:"
    assert found["hellaswag"]["process_docs"] == {"!function": "utils.process_docs"}
    assert (done.files.path / "hellaswag" / "utils.py").is_file()


@pytest.mark.parametrize("template", ["{{ ''.__class__.__mro__ }}", "{{ question.no_such.thing }}", "{{ 1 / 0 }}"])
def test_a_template_that_leads_out_or_does_not_fit_is_a_definite_failure(
    template: str, cut3: Path, tmp_path: Path
) -> None:
    own(tmp_path, doc_to_text=template)
    with pytest.raises(BackendFailed) as failed:
        Battery(tmp_path, cut3, ["mine.yaml"], 8).requests()
    assert not failed.value.transient and "Traceback" not in failed.value.message
