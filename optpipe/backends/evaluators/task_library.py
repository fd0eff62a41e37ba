"""Worker body `task-library`: lm-eval's own task files by name, as plain data; none of their code is run.

files: NAME/MODULE.py, the code that `!function` names, to be allowed by digest before anything runs it.
"""

from __future__ import annotations

import shutil
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from optpipe.backends.evaluators.harness import version
from optpipe.records import Json
from optpipe.worker import Work

REVISION = 1


def run(options: Json, work: Work) -> Json:
    """Option `names`. {"tasks": {name: its keys, includes merged}, "unknown": {name: close ones}, "lm_eval"}."""
    import lm_eval

    root = Path(lm_eval.__file__).parent / "tasks"
    work.out.mkdir(parents=True, exist_ok=True)
    named = files_by_name(root)
    found, unknown = {}, {}
    for name in options["names"]:
        if name not in named:
            unknown[name] = get_close_matches(name, sorted(named), 3)
            continue
        found[name] = plain(read(named[name]), root, work.out / name)
    return {"tasks": found, "unknown": unknown, "lm_eval": version()}


def files_by_name(root: Path) -> dict[str, Path]:
    """Task files by the `task:` that they name at their top level."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.yaml")):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            key, colon, value = line.partition(":")
            if colon and key.strip("\"'") == "task" and value.strip():
                found.setdefault(value.partition("#")[0].strip().strip("\"'"), path)
    return found


def read(path: Path) -> Json:
    """A task file with what it includes; lm-eval leaves functions as text behind their folder."""
    from lm_eval.tasks._yaml_loader import load_yaml

    config: Json = load_yaml(path, resolve_func=False)
    return config


def plain(config: Json, root: Path, folder: Path) -> Json:
    """The keys with `{"!function": "module.name"}` for code, whose file is copied into `folder`."""
    return {key: function(value, root, folder) for key, value in config.items()}


def function(value: Any, root: Path, folder: Path) -> Any:
    if not (isinstance(value, str) and value.startswith(f"{root.resolve()}/")):
        return value
    path, _, name = value.rpartition(".")
    source = Path(f"{path}.py")
    if source.is_file():
        folder.mkdir(exist_ok=True)
        shutil.copyfile(source, folder / source.name)
    return {"!function": f"{source.stem}.{name}"}
