"""Checks of what stands beside the weights: tokenizer, generation configuration, the model's own code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optpipe.errors import InputError, Problem
from optpipe.model.config import Shape, read_mapping, text_config
from optpipe.model.facts import KNOWN_TYPES
from optpipe.model.folder import PICKLES
from optpipe.records import Json

REFETCH = "fetch the file again"
SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": 50, "min_p": None, "typical_p": 1.0}
"""Generation settings that only sampling uses, with the values that mean nothing."""

LOCAL_IMPORT = re.compile(r"^\s*from\s+\.(\w+)\s+import\b", re.MULTILINE)


# ---------------------------------------------------------------- tokenizer


def tokenizer_problems(folder: Path, shape: Shape) -> list[Problem]:
    """A tokenizer that is missing, unreadable, or has more tokens than the model has rows."""
    try:
        place, tokens = highest_id(folder)
    except InputError as error:
        return [Problem(error.place or str(folder), error.message, error.hint)]
    if tokens < shape.vocabulary:
        return []
    text = f"has token ids up to {tokens}, but the model has {shape.vocabulary} rows (vocab_size)"
    hint = "resize the model's embeddings to its tokenizer, or take the tokenizer that belongs to the model"
    return [Problem(str(place), text, hint)]


def highest_id(folder: Path) -> tuple[Path, int]:
    """The tokenizer's file and its highest token id; padded rows above it are fine."""
    path = folder / "tokenizer.json"
    if path.exists() or path.is_symlink():
        return path, max(fast_ids(path), default=-1)
    if (folder / "tokenizer.model").exists():
        path = folder / "tokenizer.model"
        return path, max(pieces(path) - 1, *added_ids(folder), -1)
    if (folder / "vocab.json").exists():
        path = folder / "vocab.json"
        return path, max(*numbers(read_mapping(path, REFETCH)), *added_ids(folder), -1, -1)
    raise InputError(
        "has no tokenizer (tokenizer.json, tokenizer.model or vocab.json)",
        place=str(folder),
        hint="copy the tokenizer's files from the model's source",
    )


def fast_ids(path: Path) -> Iterator[int]:
    """Every id of a tokenizer.json: the model's vocabulary and the added tokens."""
    value = read_mapping(path, REFETCH)
    model = value.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict | list) or not vocabulary:
        raise InputError("model.vocab: no vocabulary is there", place=str(path), hint=REFETCH)
    if isinstance(vocabulary, dict):
        yield from numbers(vocabulary)
    else:
        yield len(vocabulary) - 1
    for token in value.get("added_tokens") or []:
        if isinstance(token, dict) and isinstance(token.get("id"), int):
            yield token["id"]


def added_ids(folder: Path) -> list[int]:
    path = folder / "added_tokens.json"
    return numbers(read_mapping(path, REFETCH)) if path.exists() else []


def numbers(mapping: Json) -> list[int]:
    return [value for value in mapping.values() if isinstance(value, int)]


def pieces(path: Path) -> int:
    """How many pieces a SentencePiece model has: fields number 1 of the outermost protocol buffer."""
    data, at, count = path.read_bytes(), 0, 0
    while at < len(data):
        key, at = varint(data, at, path)
        if key & 7 != 2:
            if key & 7 != 0:
                break
            _, at = varint(data, at, path)
            continue
        length, at = varint(data, at, path)
        count += key >> 3 == 1
        at += length
    if not count or at != len(data):
        raise InputError(f"{len(data)} bytes that are no SentencePiece model", place=str(path), hint=REFETCH)
    return count


def varint(data: bytes, at: int, path: Path) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
    raise InputError(f"ends within a number at byte {at}", place=str(path), hint=REFETCH)


# ---------------------------------------------------------------- generation configuration


def generation_problems(folder: Path) -> list[Problem]:
    path = folder / "generation_config.json"
    if not (path.exists() or path.is_symlink()):
        return []
    try:
        read_mapping(path, REFETCH)
    except InputError as error:
        return [Problem(error.place or str(path), error.message, error.hint)]
    return []


def ignored_sampling(generation: Json) -> list[str]:
    """Sampling settings that do_sample: false switches off."""
    if generation.get("do_sample", False):
        return []
    return [
        f"{key}: {generation[key]}"
        for key, empty in SAMPLING.items()
        if generation.get(key) is not None and generation[key] != empty
    ]


# ---------------------------------------------------------------- the model's own code


def code_problems(folder: Path, config: Json, trusted: bool) -> list[Problem]:
    """Code that the model needs and that is missing, lies elsewhere, or may not run."""
    place = str(folder / "config.json")
    problems = []
    for key, reference in code_references(config):
        module = reference.rpartition(".")[0]
        if "--" in reference:
            text = f"auto_map.{key}: {reference!r} is code in another repository"
            problems.append(Problem(place, text, "copy that code into this folder and name it here"))
            continue
        for file in missing_code(folder, module):
            text = f"auto_map.{key}: {reference!r} needs {file}, which is not in the folder"
            problems.append(Problem(place, text, f"copy {file} from the model's source"))
    if not problems and not trusted and needs_own_code(config):
        text = f"model type {config.get('model_type')!r} runs only with its own code ({code_files(config)})"
        hint = "read that code; then set model.trust_remote_code: true with a source pinned by its commit"
        problems.append(Problem(place, text, hint))
    return problems


def code_references(config: Json) -> list[tuple[str, str]]:
    """(class, `module.Name`) of each entry of auto_map; entries may be lists with nulls."""
    mapping = config.get("auto_map")
    found: list[tuple[str, str]] = []
    for key, value in mapping.items() if isinstance(mapping, dict) else ():
        items = value if isinstance(value, list) else [value]
        found += [(key, item) for item in items if isinstance(item, str)]
    return found


def missing_code(folder: Path, module: str) -> list[str]:
    """The Python files that a module and what it imports from its side need and that are not there."""
    seen: set[str] = set()
    waiting, missing = [module], []
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        path = folder / f"{name}.py"
        if path.is_file():
            waiting += LOCAL_IMPORT.findall(path.read_text(encoding="utf-8", errors="replace"))
        else:
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
    if code_references(config) and not needs_own_code(config):
        yield f"the folder brings code ({code_files(config)}); it is not run, the architecture is known"
