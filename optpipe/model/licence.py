"""The licence of a base model and whom it is owed to, as its card, its GGUF file or its package says it."""

from __future__ import annotations

import fnmatch
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from optpipe.errors import InputError
from optpipe.model import gguf
from optpipe.records import Json

TEXTS = ("LICENSE*", "LICENCE*", "NOTICE*", "COPYING*", "ATTRIBUTION*", "USE_POLICY*")
CARD = "README.md"
MOST_BYTES = 1_000_000
"""Of one text: what is longer is something else."""
OWED = ("name", "author", "organization", "url", "source.url", "repo_url", "source.repo_url")
"""Of a GGUF file's `general.` keys: whose work it is."""


def licence_of(path: Path) -> tuple[Json, dict[str, Path]]:
    """What is known of the model at `path` (folder or GGUF file), and the files with its texts, by name.

    `{"name": "apache-2.0" | None, "said_by": where, "attribution": {...}}`; the model's own word goes before
    that of the package that it came in.
    """
    folder = path if path.is_dir() else path.parent
    package = _package(path)
    found: list[tuple[str, Json, Any]] = [("its model card", *_card(folder / CARD))]
    if path.suffix == ".gguf":
        found.append(("its GGUF file", *_gguf(path)))
    if package:
        found.append(("the package that it came in", *_metadata(package / "METADATA")))
    known = next(((where, name) for where, _, name in found if isinstance(name, str) and name), (None, None))
    owed: Json = {}
    for _, attribution, _ in found:
        owed = attribution | owed
    texts = licence_texts(folder)
    for place in (package, package and package / "licenses"):
        texts = (licence_texts(place) | texts) if place and place.is_dir() else texts
    return {"name": known[1], "said_by": known[0], "attribution": owed}, texts


def licence_texts(folder: Path) -> dict[str, Path]:
    """Files of licence and attribution in a folder, by name."""
    paths = sorted(path for path in folder.iterdir() if path.is_file() and path.stat().st_size <= MOST_BYTES)
    return {path.name: path for path in paths if is_licence(path.name)}


def is_licence(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in TEXTS)


def _card(card: Path) -> tuple[Json, Any]:
    """`license:` of a model card, with the name and link that go with `other`."""
    import yaml

    parts = card.read_text(encoding="utf-8", errors="replace").split("---\n") if card.is_file() else []
    try:
        head = yaml.safe_load(parts[1]) if len(parts) > 2 and not parts[0] else None
    except yaml.YAMLError:  # a card that hubs would not read either
        head = None
    head = head if isinstance(head, dict) else {}
    owed = {key: str(head[key]) for key in ("license_name", "license_link") if head.get(key)}
    return owed, head.get("license")


def _gguf(path: Path) -> tuple[Json, Any]:
    try:
        general = gguf.read(path).metadata
    except InputError:  # told where the model is read
        return {}, None
    owed = {key: str(general[f"general.{key}"]) for key in OWED if general.get(f"general.{key}")}
    return owed, general.get("general.license")


def _package(path: Path) -> Path | None:
    """The metadata folder of the package that a file was downloaded in (model/wheel.py), if it was."""
    for folder in path.parents:
        if (folder / ".digests.json").is_file():
            return next(iter(sorted(folder.glob("*.dist-info"))), None)
    return None


def _metadata(path: Path) -> tuple[Json, Any]:
    if not path.is_file():
        return {}, None
    head = HeaderParser().parsestr(path.read_text(encoding="utf-8", errors="replace"))
    name = head.get("License-Expression") or head.get("License") or ""
    author = head.get("Author") or head.get("Author-email")
    owed = {"package": f"{head.get('Name')} {head.get('Version')}"} | ({"packaged_by": author} if author else {})
    return owed, name if len(name.splitlines()) == 1 else None
