"""Every (library, method) that a recipe may name, with its fields, read from the recipe's JSON Schema."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from optpipe.recipe.reference import json_schema


@dataclass(frozen=True)
class Method:
    """One method of one library; `fields` are the schema's properties but the two that name it."""

    library: str
    name: str
    summary: str
    what: str
    fields: dict[str, dict[str, Any]]
    schema: dict[str, Any]


def methods() -> tuple[Method, ...]:
    """In the order of the recipe's schema: the block of each class that has both `library` and `method`."""
    schema = json_schema()
    return tuple(method for node in schema["$defs"].values() for method in of_block(node, schema))


def of_block(node: dict[str, Any], schema: dict[str, Any]) -> Iterator[Method]:
    properties = node.get("properties", {})
    if not {"method", "library"} <= set(properties):
        return
    what = sentence(properties["method"].get("description", ""))
    fields = {key: value for key, value in properties.items() if key not in ("method", "library")}
    for library in choices(properties["library"]):
        for name in choices(properties["method"]):
            yield Method(library, name, sentence(node.get("description", "")), what, fields, schema)


def choices(value: dict[str, Any]) -> list[str]:
    """What a key with fixed words takes."""
    return [str(value["const"])] if "const" in value else [str(word) for word in value.get("enum", ())]


def sentence(text: str) -> str:
    return " ".join(text.split())
