"""lm-eval's own tasks with their documents from the hub: `NAME@<commit of its data set>`.

The task's keys come from the installed lm-eval, its documents are the data set's parquet or JSON files at that commit,
fetched before anything is measured. From there on it is a task file like any other: the same keys are taken, the same
are refused, and code runs only when its digest is allowed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optpipe.errors import EnvironmentMissing, InputError
from optpipe.model import hub, tasks
from optpipe.model.task_rules import SPLITS
from optpipe.records import Json
from optpipe.rundir import digest_bytes, digest_json

NAMED = re.compile(r"([A-Za-z0-9][\w.-]{0,62})@([0-9a-f]{40})")
USED = (*SPLITS, "training_split", "fewshot_split")
LOADERS = {".parquet": "parquet", ".jsonl": "json", ".json": "json"}
DROPPED = ("dataset_name", "dataset_kwargs", "task_alias", "tag", "group")
HARMLESS = {"repeats": 1}
"""Keys that say what is so anyway."""


def parse(text: str) -> tuple[str, str] | None:
    """(name, commit) of `NAME@<commit>`; None for anything else."""
    found = NAMED.fullmatch(text)
    return (found[1], found[2]) if found else None


def of_hub(config: Json, commit: str, folder: Path, allow: Sequence[str], place: str) -> tasks.Task:
    """The task whose keys lm-eval has as `config`, its code in `folder`, on its data set at `commit`.

    EnvironmentMissing where there is no hub, with the tasks that need none.
    """
    repo, subset = str(config.get("dataset_path")), config.get("dataset_name")
    try:
        files = hub.dataset_files(repo, commit)
    except EnvironmentMissing as error:
        hint = f"{error.hint}; tasks that need no hub: {', '.join(tasks.shipped())}"
        raise EnvironmentMissing(error.message, place=place, hint=hint) from None
    splits = {str(config[key]) for key in USED if config.get(key)}
    data = {split: files_of(files, subset, split) for split in sorted(splits)}
    missing = sorted(split for split in splits if not data[split])
    if missing:
        raise InputError(
            f"{repo} has no parquet or JSON files of {' and '.join(missing)} at {commit[:12]}",
            place=place,
            hint="name a commit that has them (the branch refs/convert/parquet), or write a task file of your own",
        )
    kept = {key: v for key, v in config.items() if key not in DROPPED and (key, v) not in HARMLESS.items()}
    named = {split: [f"hf-dataset:{repo}@{commit}/{name}" for name in names] for split, names in data.items()}
    loader = LOADERS[Path(next(iter(data.values()))[0]).suffix]
    task = tasks.checked(kept | {"dataset_path": loader, "dataset_kwargs": {"data_files": named}}, folder, place)
    digest = digest_json({"task": config} | {m: digest_bytes(path.read_bytes()) for m, path in task.code.items()})
    return tasks.allowed(replace(task, digest=digest), allow, place)


def files_of(files: Sequence[str], subset: str | None, split: str) -> list[str]:
    """One split's files, as data sets on the hub name them: SUBSET/SPLIT-00000-of-00001.parquet, data/SPLIT.jsonl."""
    folders = [subset] if subset else ["", "data", "default"]
    for folder in folders:
        start = f"{folder}/" if folder else ""
        own = re.compile(rf"{re.escape(start)}{re.escape(split)}([-/][\w.-]+)?(\.parquet|\.jsonl?)")
        if found := sorted(name for name in files if own.fullmatch(name)):
            suffix = Path(found[0]).suffix
            return [name for name in found if Path(name).suffix == suffix]
    return []
