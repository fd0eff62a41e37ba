"""The recipe's JSON Schema, for editors, for the reference page, and for "did you mean"."""

from __future__ import annotations

from typing import Any


def json_schema() -> dict[str, Any]:
    """JSON Schema (draft 2020-12) of a recipe."""
    from optpipe.recipe.schema import Recipe

    schema = Recipe.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "optpipe recipe", **schema}


def keys_at(loc: tuple[str | int, ...]) -> list[str]:
    """The keys known at a place in the recipe; tags of unions in `loc` choose their branch."""
    schema = json_schema()
    found = [leaf for node in nodes_at(schema, loc) for leaf in leaves(schema, node)]
    return sorted({key for leaf in found for key in leaf.get("properties", {})})


def tags_at(loc: tuple[str | int, ...]) -> list[str]:
    """What the union at a place in the recipe can be, by the values of the key that tells."""
    found = (node.get("discriminator", {}).get("mapping", {}) for node in nodes_at(json_schema(), loc))
    return sorted({tag for mapping in found for tag in mapping})


def nodes_at(schema: dict[str, Any], loc: tuple[str | int, ...]) -> list[dict[str, Any]]:
    """The sub-schemas that `loc` leads to; steps that lead nowhere are passed over."""
    nodes = [schema]
    for step in loc:
        nodes = [child for node in nodes for child in step_into(schema, node, step)] or nodes
    return nodes


def leaves(schema: dict[str, Any], node: dict[str, Any]) -> list[dict[str, Any]]:
    """`node` with its references followed and its unions opened."""
    if "$ref" in node:
        return leaves(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]])
    branches = node.get("oneOf", []) + node.get("anyOf", []) + node.get("allOf", [])
    return [leaf for branch in branches for leaf in leaves(schema, branch)] if branches else [node]


def has_tag(schema: dict[str, Any], branch: dict[str, Any], tag: str | int) -> bool:
    """Whether a branch is what a function's tag stands for: all that is in it has that constant in one key."""
    each = ({p.get("const") for p in leaf.get("properties", {}).values()} for leaf in leaves(schema, branch))
    return set.intersection(*each) >= {tag}


def step_into(schema: dict[str, Any], node: dict[str, Any], step: str | int) -> list[dict[str, Any]]:
    """The sub-schemas that `step` leads to: a property, a list item, a named entry, or a union's tag."""
    mapping = node.get("discriminator", {}).get("mapping", {})
    if step in mapping:
        return leaves(schema, {"$ref": mapping[step]})
    if tagged := [branch for branch in node.get("oneOf", []) if has_tag(schema, branch, step)]:
        return tagged
    found = []
    for leaf in leaves(schema, node):
        if isinstance(step, int):
            found.append(leaf.get("items", {}))
        elif step in leaf.get("properties", {}):
            found.append(leaf["properties"][step])
        elif isinstance(leaf.get("additionalProperties"), dict):
            found.append(leaf["additionalProperties"])
        elif isinstance(leaf.get("patternProperties"), dict):
            found.extend(leaf["patternProperties"].values())
    return [item for item in found if item]
