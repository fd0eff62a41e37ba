"""The recipe's reference page and the list of its keys, from the JSON Schema, so from the classes themselves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from optpipe.recipe.reference import json_schema

Schema = dict[str, Any]

HEAD = """\
# The recipe

A YAML file. Unknown keys are errors; a recipe is checked by `optpipe plan RECIPE --check`, and editors
complete keys from `optpipe init --schema`. `extends:` names a recipe whose keys this one overrides: mappings
merge key by key, anything else is replaced, `null` removes a key. `--set key.sub=value` does the same from the
command line. Aliases and tags of YAML are not read.
"""


def markdown() -> str:
    """The page: the recipe's own keys, then each kind of block in the order in which it is met."""
    schema = json_schema()
    parts = [HEAD, section("Keys", schema, schema)]
    parts += [section(name, schema["$defs"][name], schema) for name in ordered(schema)]
    return "\n".join(parts)


def section(name: str, node: Schema, schema: Schema) -> str:
    tag = tag_of(node)
    lines = [f"## {f'{tag[0]}: {tag[1]}' if tag else name}", ""]
    if name != "Keys":
        lines += [" ".join(str(node.get("description", "")).split()), ""]
    lines += ["| key | what it takes | default | meaning |", "|---|---|---|---|"]
    required = node.get("required", [])
    for key, value in node["properties"].items():
        default = "required" if key in required else default_of(value)
        meaning = " ".join(str(value.get("description", "")).split())
        lines.append(f"| `{key}` | {kind(value, schema)} | {default} | {meaning} |".replace("  |", " |"))
    return "\n".join([*lines, ""])


def tag_of(node: Schema) -> tuple[str, str] | None:
    """(key, value) that tells a block from the others of its union, e.g. ("method", "gptq")."""
    keys = node.get("properties", {})
    for key in ("method", "engine", "registry", "kind"):
        value = keys.get(key, {})
        if "const" in value:
            by = f" by {keys['library']['const']}" if "library" in node.get("required", []) else ""
            return key, str(value["const"]) + by
    return None


def default_of(value: Schema) -> str:
    if value.get("default") is None:
        return ""
    return f"`{json.dumps(value['default'])}`" if not isinstance(value["default"], dict) else ""


def kind(value: Schema, schema: Schema) -> str:
    """What a key takes, in words."""
    if "$ref" in value:
        return link(value["$ref"].rsplit("/", 1)[-1], schema)
    if "const" in value:
        return f"`{value['const']}`"
    if "enum" in value:
        return ", ".join(f"`{word}`" for word in value["enum"])
    for union in ("oneOf", "anyOf"):
        if union in value:
            kinds = [kind(one, schema) for one in value[union] if one.get("type") != "null"]
            return " or ".join(dict.fromkeys(kinds))
    if value.get("type") == "array":
        return f"list of {kind(value['items'], schema)}" if "items" in value else "list"
    if value.get("type") == "object":
        inner = value.get("additionalProperties") or next(iter(value.get("patternProperties", {}).values()), None)
        return f"by name: {kind(inner, schema)}" if isinstance(inner, dict) else "mapping"
    return str(value.get("type", "")) + limits(value)


def limits(value: Schema) -> str:
    low, high = value.get("minimum"), value.get("maximum")
    if high is None and "exclusiveMaximum" in value:
        high = value["exclusiveMaximum"] - 1
    if low is None and high is None:
        return ""
    return f" from {low}" + (f" to {high}" if high is not None else "")


def link(name: str, schema: Schema) -> str:
    tag = tag_of(schema["$defs"][name])
    title = f"{tag[0]}: {tag[1]}" if tag else name
    return f"[{title}](#{title.lower().replace(': ', '-').replace(' ', '-')})"


def refs(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if "$ref" in node:
            yield node["$ref"].rsplit("/", 1)[-1]
        for key, value in node.items():
            if key != "$defs":
                yield from refs(value)
    elif isinstance(node, list):
        for item in node:
            yield from refs(item)


def ordered(schema: Schema) -> list[str]:
    """The names of all blocks, each where it is met first."""
    found: list[str] = []
    waiting = list(dict.fromkeys(refs(schema)))
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found.append(name)
            waiting = [*refs(schema["$defs"][name]), *waiting]
    return found


def surface() -> list[str]:
    """Every key that a recipe may have, one a line, with what tells its block from others."""
    schema = json_schema()
    lines = [f"recipe {key}" for key in schema["properties"]]
    for name in ordered(schema):
        tag = tag_of(schema["$defs"][name])
        title = f"{tag[0]}={tag[1]}" if tag else name
        lines += [f"recipe {title} {key}" for key in schema["$defs"][name]["properties"]]
    return lines
