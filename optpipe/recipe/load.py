"""YAML -> Recipe. Every error has file:line:column, the key's path, the value and what to do next."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from optpipe.errors import InputError, InputProblems, Problem, did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

    from optpipe.recipe.schema import Recipe

MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class Loaded:
    """A recipe with the file it came from and the node tree that knows each key's line."""

    recipe: Recipe
    path: Path
    tree: Node

    def place(self, *keys: str | int) -> str:
        """`file:line:column: a.b.c` of a key, as far as the file has it."""
        return place_of(self.tree, keys)


def load(path: Path, overrides: tuple[str, ...] = ()) -> Loaded:
    """Read, compose and validate a recipe; `overrides` are `dotted.key=yaml value`."""
    from pydantic import ValidationError

    from optpipe.recipe.schema import Recipe

    tree = compose(path, ())
    for override in overrides:
        tree = merge(tree, override_node(override))
    try:
        return Loaded(Recipe.model_validate(construct(tree)), path, tree)
    except ValidationError as error:
        raise InputProblems(tuple(problem_of(tree, e) for e in error.errors())) from None


def compose(path: Path, seen: tuple[Path, ...]) -> Node:
    """The node tree of a file with what it `extends` merged under it."""
    if path.resolve() in seen:
        raise InputError(
            f"{path} extends itself", place=str(seen[-1]), hint="remove the circle of `extends:`"
        )
    tree = read_tree(path)
    parent = next((v for k, v in tree.value if k.value == "extends"), None)
    if parent is None:
        return tree
    if not isinstance(parent, ScalarNode):
        raise InputError("extends: a path is expected", place=place_of(tree, ("extends",)))
    base = compose(path.parent / str(parent.value), (*seen, path.resolve()))
    return merge(base, tree)


def read_tree(path: Path) -> MappingNode:
    try:
        size = path.stat().st_size
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError(f"no such recipe: {path}", hint=near_files(path)) from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder", hint="name the recipe's YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {error}", place=str(path), hint="a recipe is YAML in UTF-8"
        ) from None
    if size > MAX_BYTES:
        raise InputError(f"{size} bytes is no recipe", place=str(path), hint="a recipe is a short YAML file")
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        raise InputError(
            yaml_message(error), place=yaml_place(path, error), hint="mend the YAML there"
        ) from None
    if not isinstance(tree, MappingNode):
        found = "nothing" if tree is None else f"a {kind_of(tree)}"
        raise InputError(
            f"a mapping of keys is expected, {found} found",
            place=f"{path}:1:1",
            hint="`optpipe init` writes a recipe to start from",
        )
    name_marks(tree, str(path))
    check_keys(tree, ())
    return tree


def near_files(path: Path) -> str:
    names = [str(p) for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
    return did_you_mean(str(path), names) if names else "`optpipe init` writes a recipe to start from"


def yaml_message(error: yaml.YAMLError) -> str:
    problem = getattr(error, "problem", None) or "not YAML"
    context = getattr(error, "context", None)
    return f"{problem} ({context})" if context else str(problem)


def yaml_place(path: Path, error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else str(path)


def name_marks(node: Node, name: str) -> None:
    """Marks of a tree share nothing that names the file: put it there, for composed trees."""
    node.start_mark.name = name
    if isinstance(node, MappingNode):
        for key, value in node.value:
            name_marks(key, name)
            name_marks(value, name)
    elif isinstance(node, SequenceNode):
        for item in node.value:
            name_marks(item, name)


def check_keys(node: Node, path: tuple[str | int, ...]) -> None:
    """Keys are plain and stand once: YAML itself would let the last of two win in silence."""
    if isinstance(node, SequenceNode):
        for index, item in enumerate(node.value):
            check_keys(item, (*path, index))
    if not isinstance(node, MappingNode):
        return
    seen: dict[str, Node] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode) or key.value == "<<":
            raise InputError(
                f"{key.value!r} cannot be a key", place=mark_of(key), hint="use `extends:` to compose"
            )
        if key.value in seen:
            first = seen[key.value].start_mark.line + 1
            raise InputError(
                f"{key.value}: stands twice", place=mark_of(key), hint=f"the first is in line {first}"
            )
        seen[key.value] = key
        check_keys(value, (*path, key.value))


def kind_of(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "mapping"
    return "list" if isinstance(node, SequenceNode) else "single value"


def mark_of(node: Node) -> str:
    return f"{node.start_mark.name}:{node.start_mark.line + 1}:{node.start_mark.column + 1}"


def merge(base: Node, over: Node) -> Node:
    """Mappings merge key by key, anything else is replaced; `null` removes a key."""
    if not (isinstance(base, MappingNode) and isinstance(over, MappingNode)):
        return over
    pairs = {key.value: (key, value) for key, value in base.value}
    for key, value in over.value:
        if isinstance(value, ScalarNode) and value.tag == "tag:yaml.org,2002:null":
            pairs.pop(key.value, None)
        elif key.value in pairs:
            pairs[key.value] = (key, merge(pairs[key.value][1], value))
        else:
            pairs[key.value] = (key, value)
    return MappingNode(over.tag, list(pairs.values()), over.start_mark, over.end_mark)


def override_node(text: str) -> Node:
    """`tune.trials=2` as the mapping {tune: {trials: 2}}."""
    dotted, equals, value = text.partition("=")
    if not equals or not dotted:
        raise InputError(f"--set {text!r}: key=value is expected", hint="for example --set tune.trials=2")
    node = yaml.compose(value, Loader=yaml.SafeLoader)
    if node is None:
        raise InputError(f"--set {text!r}: there is no value", hint="for example --set tune.trials=2")
    name_marks(node, f"--set {dotted}")
    for key in reversed(dotted.split(".")):
        scalar = ScalarNode("tag:yaml.org,2002:str", key, node.start_mark, node.end_mark)
        node = MappingNode("tag:yaml.org,2002:map", [(scalar, node)], node.start_mark, node.end_mark)
    return node


def construct(tree: Node) -> Any:
    """Plain data of a tree: only what YAML's safe schema knows."""
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_document(tree)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            yaml_message(error),
            place=mark and f"{mark.name}:{mark.line + 1}:{mark.column + 1}",
            hint="plain YAML values only",
        ) from None
    finally:
        loader.dispose()


# ---------------------------------------------------------------- places of errors


def walk(tree: Node, keys: tuple[str | int, ...]) -> tuple[Node, Node, tuple[str, ...]]:
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


def place_of(tree: Node, keys: tuple[str | int, ...]) -> str:
    key_node, _, path = walk(tree, keys)
    return f"{mark_of(key_node)}: {'.'.join(path)}" if path else mark_of(key_node)


def problem_of(tree: Node, error: ErrorDetails) -> Problem:
    """pydantic's error with the place of its key and a hint."""
    loc = error["loc"]
    key_node, value_node, path = walk(tree, loc)
    value = value_node if isinstance(value_node, ScalarNode) else None
    kind = error["type"]
    name = ".".join(path) or "recipe"
    place = f"{mark_of(value if value is not None and kind != 'extra_forbidden' else key_node)}: {name}"
    if kind in ("extra_forbidden", "unexpected_keyword_argument"):
        return Problem(place, "no such key", did_you_mean(str(loc[-1]), known_keys(loc)))
    if kind in ("missing", "missing_argument"):
        return Problem(place, f"the key {loc[-1]!r} is missing", f"add `{loc[-1]}:`")
    if kind in ("union_tag_invalid", "union_tag_not_found"):
        return tag_problem(place, error)
    message = error["msg"].removeprefix("Value error, ")
    shown = f"{value.value!r}: " if value is not None else ""
    return Problem(place, f"{shown}{message[:1].lower()}{message[1:]}", hint_of(error))


def tag_problem(place: str, error: ErrorDetails) -> Problem:
    context = error.get("ctx", {})
    field = str(context.get("discriminator", "")).strip("'")
    known = [k.strip().strip("'") for k in str(context.get("expected_tags", "")).split(",") if k.strip()]
    if "tag" not in context:
        return Problem(
            place, f"the key {field!r} is missing", f"{field}: one of {', '.join(known)}" if known else None
        )
    return Problem(
        place, f"{field}: {context['tag']!r} is not known", did_you_mean(str(context["tag"]), known)
    )


def hint_of(error: ErrorDetails) -> str | None:
    context = error.get("ctx", {})
    if error["type"] == "literal_error":
        known = [w.strip().strip("'") for w in str(context["expected"]).replace(" or ", ", ").split(",")]
        return did_you_mean(str(error["input"]), known)
    if error["type"] == "string_pattern_mismatch":
        return "lower-case letters, digits, dot, dash and underscore"
    return None


def known_keys(loc: tuple[str | int, ...]) -> list[str]:
    """The keys that are known where `loc` points, from the schema."""
    from optpipe.recipe.reference import keys_at

    return keys_at(loc[:-1])
