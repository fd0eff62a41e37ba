"""Checks of the model's own code, and notes on what is unusual beside the weights."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from optpipe.errors import Problem
from optpipe.model.audit_config import ignored_sampling, strange_ids
from optpipe.model.audit_tokenizer import TEMPLATE, templates
from optpipe.model.config import LFS_POINTER, read_mapping, shape_of, text_config
from optpipe.model.facts import KNOWN_TYPES
from optpipe.model.folder import PICKLES
from optpipe.records import Json

REFETCH = "fetch the file again"
LOCAL_IMPORT = re.compile(r"^\s*from\s+\.(\w+)\s+import\b", re.MULTILINE)


# ---------------------------------------------------------------- the model's own code


def code_problems(folder: Path, config: Json, trusted: bool, others: Collection[str] = ()) -> list[Problem]:
    """Code that the model or its tokenizer needs and that is missing, lies elsewhere, or may not run.

    `others` are files of the model's source that are not in the folder.
    """
    place = str(folder / "config.json")
    problems = named_code(folder, place, config, others)
    path = folder / "tokenizer_config.json"
    if path.is_file():
        problems += named_code(folder, str(path), read_mapping(path, REFETCH), others)
    if not problems and not trusted and needs_own_code(config):
        text = f"model type {config.get('model_type')!r} runs only with its own code ({code_files(config)})"
        hint = "read that code; then set model.trust_remote_code: true with a source pinned by its commit"
        problems.append(Problem(place, text, hint))
    return problems


def named_code(folder: Path, place: str, config: Json, others: Collection[str]) -> list[Problem]:
    """What is wrong with the files that one `auto_map` names."""
    problems = []
    for key, reference in code_references(config):
        module = reference.rpartition(".")[0]
        if "--" in reference:
            text = f"auto_map.{key}: {reference!r} is code in another repository"
            problems.append(Problem(place, text, "copy that code into this folder and name it here"))
            continue
        if not all(part.isidentifier() for part in reference.split(".")):
            text = f"auto_map.{key}: {reference!r:.80} is not module.Class"
            problems.append(Problem(place, text, "take the file of the model's source"))
            continue
        for file in missing_code(folder, module, others):
            text = f"auto_map.{key}: {reference!r} needs {file}, which is not in the folder"
            problems.append(Problem(place, text, f"copy {file} from the model's source"))
    return problems


def code_references(config: Json) -> list[tuple[str, str]]:
    """(class, `module.Name`) of each entry of auto_map; entries may be lists with nulls."""
    mapping = config.get("auto_map")
    found: list[tuple[str, str]] = []
    for key, value in mapping.items() if isinstance(mapping, dict) else ():
        items = value if isinstance(value, list) else [value]
        found += [(key, item) for item in items if isinstance(item, str)]
    return found


def missing_code(folder: Path, module: str, others: Collection[str]) -> list[str]:
    """The Python files that a module and what it imports from its side need and that are not there, or pointers."""
    seen: set[str] = set()
    waiting, missing = [module], []
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = folder / f"{name}.py"
        code = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else None
        if code is not None and not code.startswith(LFS_POINTER):
            waiting += LOCAL_IMPORT.findall(code)
        elif path.name not in others:
            missing.append(path.name)
    return sorted(missing)


def needs_own_code(config: Json) -> bool:
    """Model types that transformers and the engines know run without the code that the folder brings."""
    models = [key for key, _ in code_references(config) if key.startswith("AutoModel")]
    return bool(models) and str(text_config(config).get("model_type")) not in KNOWN_TYPES


def code_files(config: Json) -> str:
    return ", ".join(sorted({f"{item.rpartition('.')[0]}.py" for _, item in code_references(config)}))


# ---------------------------------------------------------------- notes


def extra_notes(folder: Path, config: Json) -> Iterator[str]:
    """What is unusual beside the weights, in sentences."""
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        yield f"{', '.join(pickles[:3])} beside the safetensors: pickled weights are never read"
    path = folder / "generation_config.json"
    generation: dict[str, Any] = read_mapping(path, REFETCH) if path.exists() else {}
    if ignored := ignored_sampling(generation):
        settings = ", ".join(ignored)
        yield f"generation_config.json has do_sample false, so {settings} has no effect; it is kept as it is"
    for strange in strange_ids(config, shape_of(config, str(folder / "config.json"))):
        yield f"config.json: {strange}"
    if code_references(config) and not needs_own_code(config):
        yield f"the folder brings code ({code_files(config)}); it is not run, the architecture is known"
    texts = {text for _, text in templates(folder)}
    if len(texts) > 1 and (folder / TEMPLATE).is_file():
        yield f"{TEMPLATE} and tokenizer_config.json have different chat templates; the file is the one that counts"
