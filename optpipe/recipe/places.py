"""Where in a recipe an error is, and what to do about it: for pydantic's errors and for those of the stages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from optpipe.errors import Problem, did_you_mean
from optpipe.recipe.reference import keys_at, tags_at
from optpipe.recipe.tree import TAG, children, kind_of, mark_of

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

Keys = tuple[str | int, ...]
REFERENCE = "docs/reference/recipe.md"

HINTS = {
    "int_type": "write a whole number, without quotes",
    "int_from_float": "write a whole number",
    "float_type": "write a number, without quotes",
    "bool_type": "write true or false",
    "string_type": 'write a text; "quotes" make one of anything',
    "string_pattern_mismatch": "lower-case letters, digits, dot, dash and underscore, beginning with a letter or digit",
    "list_type": "write a list: [a, b]",
    "tuple_type": "write a list: [a, b]",
    "too_short": "give at least one",
}


def walk(tree: Node, keys: Keys) -> tuple[Node, Node, tuple[str, ...]]:
    """(key node, value node, path) as deep as the tree follows `keys`; union tags in a loc are passed over."""
    key_node, node, path = tree, tree, []
    for key in keys:
        if isinstance(node, MappingNode):
            pair = next(((k, v) for k, v in node.value if k.value == str(key)), None)
            if pair is None:
                continue
            key_node, node = pair
        elif isinstance(node, SequenceNode) and isinstance(key, int) and key < len(node.value):
            key_node = node = node.value[key]
        else:
            continue
        path.append(str(key))
    return key_node, node, tuple(path)


def dotted_place(tree: Node, dotted: str) -> str:
    """`file:line:column: a.b.c` of a dotted path, as deep as the file has it; names may hold dots too."""
    key_node, node, rest = tree, tree, dotted
    while rest:
        pairs = pairs_of(node, rest)
        if not pairs:
            break
        name, key_node, node = max(pairs, key=lambda pair: len(pair[0]))
        rest = rest[len(name) :].removeprefix(".")
    exact = node if isinstance(node, ScalarNode) and not rest else key_node
    return f"{mark_of(exact)}: {dotted}"


def source_place(tree: Node, source: str) -> str | None:
    """`file:line:column: a.b.c: source` where the recipe names a source (`hf:...`) that an error is about."""
    stack: list[tuple[Node, str]] = [(tree, "")]
    while stack:
        node, path = stack.pop()
        if isinstance(node, ScalarNode) and (node.value == source or node.value.startswith(f"{source}/")):
            return f"{mark_of(node)}: {path}: {source}"
        names = [str(key.value) for key, _ in node.value] if isinstance(node, MappingNode) else []
        values = [value for _, value in node.value] if names else list(children(node))
        pairs = zip(values, names or map(str, range(len(values))), strict=True)
        stack += reversed([(value, f"{path}.{name}".lstrip(".")) for value, name in pairs])
    return None


def pairs_of(node: Node, rest: str) -> list[tuple[str, Node, Node]]:
    """The entries of a mapping or list that a dotted path can begin with."""
    if isinstance(node, MappingNode):
        entries = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, SequenceNode):
        entries = [(str(index), item, item) for index, item in enumerate(node.value)]
    else:
        entries = []
    return [entry for entry in entries if rest == entry[0] or rest.startswith(f"{entry[0]}.")]


def problem_of(tree: Node, error: ErrorDetails) -> Problem:
    """pydantic's error with the place of its key, the value and a hint."""
    loc, kind = error["loc"], error["type"]
    key_node, value, path = walk(tree, loc)
    name = ".".join(path) or "recipe"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return Problem(f"{mark_of(key_node)}: {name}", "no such key", did_you_mean(str(loc[-1]), keys_at(loc[:-1])))
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return tag_problem(tree, error)
    place = f"{mark_of(exact(key_node, value))}: {name}"
    if kind in ("missing", "missing_argument"):
        return Problem(place, f"the key {loc[-1]!r} is missing", f"add `{loc[-1]}:`; {REFERENCE} says what it means")
    message = error["msg"].removeprefix("Value error, ")
    shown = message if kind == "value_error" else f"{found(value)}: {message[:1].lower()}{message[1:]}"
    return Problem(place, shown, hint_of(error, value, loc))


def tag_problem(tree: Node, error: ErrorDetails) -> Problem:
    """A union's key that is missing or not known; a function that tells is named after the key that it reads."""
    context, loc = error.get("ctx", {}), error["loc"]
    field, known = str(context.get("discriminator", "")).strip("'").removesuffix("()"), tags_at(loc)
    key_node, value, path = walk(tree, (*loc, field))
    place = f"{mark_of(exact(key_node, value))}: {'.'.join(path) or 'recipe'}"
    if "tag" not in context:
        return Problem(place, f"the key {field!r} is missing", f"{field}: one of {', '.join(known)}")
    known = known or [tag.strip().strip("'") for tag in str(context["expected_tags"]).split(",")]
    hint = did_you_mean(str(context["tag"]), known)
    every = "" if hint.startswith("known") else f" known: {', '.join(known)}"
    return Problem(place, f"{found(value)} is not known", hint + every)


def exact(key_node: Node, value: Node) -> Node:
    """What to point at: a single value itself, else the key that it belongs to."""
    return value if isinstance(value, ScalarNode) else key_node


def found(value: Node) -> str:
    """A value as it is told."""
    return f"{value.value!r}" if isinstance(value, ScalarNode) else f"a {kind_of(value)}"


def hint_of(error: ErrorDetails, value: Node, loc: Keys) -> str:
    """What to do: always something, if only where to read."""
    kind, context = error["type"], error.get("ctx", {})
    if kind == "literal_error":
        known = [w.strip().strip("'") for w in str(context["expected"]).replace(" or ", ", ").split(",")]
        return did_you_mean(str(error["input"]), known)
    if value.tag == f"{TAG}null":
        return "`null` removes a key of the recipe that is extended, which has none of this name here"
    if kind in ("model_type", "model_attributes_type", "dataclass_type", "dict_type"):
        known_keys = keys_at(loc)
        return f"write a mapping of {', '.join(known_keys)}" if known_keys else "write a mapping: {name: value}"
    return HINTS.get(kind) or f"{REFERENCE} says what it takes"
