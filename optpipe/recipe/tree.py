"""YAML -> node trees that know each key's line; composition of recipes; plain data of a tree.

Recipes are read as from a stranger: a size and depth limit, no aliases (a page of them can stand for
gigabytes), no tags but those of plain data, each key once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import ComposerError
from yaml.events import AliasEvent
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from optpipe.errors import InputError, did_you_mean

MAX_BYTES = 100_000
MAX_DEPTH = 20
TAG = "tag:yaml.org,2002:"
PLAIN = {f"{TAG}{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}
LONGEST_NUMBER = 40
"""Digits; more are a slip, and slow to read."""
START = "`optpipe init` writes a recipe to start from"


class Loader(yaml.SafeLoader):
    """YAML's safe schema without dates, with the floats of YAML 1.2 (1e3), without aliases, not deep."""

    yaml_implicit_resolvers = {  # noqa: RUF012  (PyYAML's own way)
        letter: [(tag, pattern) for tag, pattern in pairs if tag != f"{TAG}timestamp"]
        for letter, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    depth = 0

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        fault = f"more than {MAX_DEPTH} levels deep" if self.depth == MAX_DEPTH else None
        if isinstance(event, AliasEvent):
            fault = f"*{event.anchor} is an alias, which is not read"
        if fault:
            raise ComposerError(None, None, fault, event.start_mark)
        self.depth += 1
        node: Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node


Loader.add_implicit_resolver(
    f"{TAG}float", re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)[eE][-+]?[0-9]+$"), list("-+.0123456789")
)


# ---------------------------------------------------------------- read


def compose(path: Path, seen: tuple[Path, ...] = ()) -> MappingNode:
    """The node tree of a file with what it `extends` merged under it."""
    tree = read_file(path)
    pair = next(((key, value) for key, value in tree.value if key.value == "extends"), None)
    if pair is None:
        return tree
    place = f"{mark_of(pair[1])}: extends"
    if not isinstance(pair[1], ScalarNode):
        raise InputError(f"a {kind_of(pair[1])} is found", place=place, hint="name one recipe by its path")
    parent, known = path.parent / str(pair[1].value), (*seen, path.resolve())
    if parent.resolve() in known:
        raise InputError(f"{pair[1].value!r} leads back to itself", place=place, hint="open the circle of `extends:`")
    if not parent.exists():
        raise InputError(f"{pair[1].value!r} is not there", place=place, hint=near_files(parent))
    return merge(compose(parent, known), tree)


def read_file(path: Path) -> MappingNode:
    """The tree of one file, checked key by key."""
    tree = read_text(decode(read_bytes(path), path), str(path))
    if not isinstance(tree, MappingNode):
        found = "nothing" if tree is None else f"a {kind_of(tree)}"
        raise InputError(f"a mapping of keys is expected, {found} found", place=f"{path}:1:1", hint=START)
    return tree


def read_bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise InputError(f"no such recipe: {path}", hint=near_files(path)) from None
    except IsADirectoryError:
        raise InputError(f"{path} is a folder", hint=near_files(path / "recipe.yaml")) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", place=str(path), hint="name a readable file") from None
    if len(data) > MAX_BYTES:
        hint = "a recipe is a page of YAML; weights and texts are named in it, not held"
        raise InputError(f"more than {MAX_BYTES:,} bytes", place=str(path), hint=hint)
    return data


def decode(data: bytes, path: Path) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8-sig")
        raise InputError(
            f"byte {data[error.start]:#04x} is not UTF-8",
            place=f"{path}:{position(before)}",
            hint="save the file as UTF-8 (iconv -f ISO-8859-1 -t UTF-8 converts it)",
        ) from None


def read_text(text: str, name: str) -> Node | None:
    """The tree of a YAML text; `name` is what marks say it came from."""
    try:
        loader = Loader(text)
        loader.name = name
        try:
            tree: Node | None = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        place = yaml_place(text, name, error)
        raise InputError(yaml_message(error), place=place, hint=yaml_hint(error)) from None
    if tree is not None:
        check(tree)
    return tree


def near_files(path: Path) -> str:
    """The recipe that was meant, else those that are near."""
    folders = [folder for folder in (path.parent, Path(), Path("recipes")) if folder.is_dir()]
    names = list(dict.fromkeys(str(file) for folder in folders for file in sorted(folder.glob("*.y*ml"))))
    by_name = {Path(name).name: name for name in reversed(names)}
    close = did_you_mean(path.name, [*by_name])
    if close.startswith("did you mean"):
        return f"did you mean {next(name for base, name in by_name.items() if repr(base) in close)}?"
    return f"near are {', '.join(names[:8])}" if names else START


def position(before: str) -> str:
    """`line:column` of what follows the text `before`."""
    return f"{before.count(chr(10)) + 1}:{len(before) - before.rfind(chr(10))}"


def yaml_message(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        found = error.character if isinstance(error.character, int) else ord(error.character[:1])
        return f"character #x{found:04x} does not belong in a text"
    problem = getattr(error, "problem", None) or "not YAML"
    context = getattr(error, "context", None)
    return f"{problem} ({context})" if context else str(problem)


def yaml_place(text: str, name: str, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"{name}:{position(text[: error.position])}"
    mark = getattr(error, "problem_mark", None)
    return f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name


def yaml_hint(error: yaml.YAMLError) -> str:
    problem = str(getattr(error, "problem", ""))
    if "'\\t'" in problem:
        return "indent with spaces; YAML takes no tabs"
    if "alias" in problem:
        return "write the value out; recipes share what is common by `extends:`"
    return "mend the YAML there, or a bracket, quote or colon shortly before"


# ---------------------------------------------------------------- check


def check(node: Node) -> None:
    """Plain data only, finite numbers, and each key once: YAML itself would let the last win in silence."""
    if node.tag not in PLAIN:
        tag = node.tag.replace(TAG, "!!")
        raise InputError(f"{tag} is not read", place=mark_of(node), hint="plain YAML values only")
    if isinstance(node, ScalarNode):
        check_number(node)
    if isinstance(node, MappingNode):
        check_keys(node)
    for child in children(node):
        check(child)


def check_keys(node: MappingNode) -> None:
    seen: dict[str, Node] = {}
    for key, _ in node.value:
        if not isinstance(key, ScalarNode) or key.value == "<<":
            shown = key.value if isinstance(key, ScalarNode) else f"a {kind_of(key)}"
            raise InputError(f"{shown} cannot be a key", place=mark_of(key), hint="recipes are composed by `extends:`")
        if key.value in seen:
            first = seen[key.value].start_mark.line + 1
            raise InputError(f"{key.value}: stands twice", place=mark_of(key), hint=f"the first is in line {first}")
        seen[key.value] = key


def children(node: Node) -> Iterator[Node]:
    if isinstance(node, SequenceNode):
        yield from node.value
    elif isinstance(node, MappingNode):
        for key, value in node.value:
            yield key
            yield value


def check_number(node: ScalarNode) -> None:
    if node.tag not in (f"{TAG}int", f"{TAG}float"):
        return
    text = node.value if len(node.value) <= LONGEST_NUMBER else f"{node.value[:LONGEST_NUMBER]}..."
    if text != node.value or not math.isfinite(construct(node)):
        raise InputError(f"{text} is no number to work with", place=mark_of(node), hint="write a finite number")


def kind_of(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "mapping"
    return "list" if isinstance(node, SequenceNode) else "single value"


def mark_of(node: Node) -> str:
    """`file:line:column`; what came from the command line has no line."""
    name, line, column = node.start_mark.name, node.start_mark.line + 1, node.start_mark.column + 1
    return name if name.startswith("--set ") else f"{name}:{line}:{column}"


# ---------------------------------------------------------------- compose, construct


def merge(base: MappingNode, over: MappingNode) -> MappingNode:
    """Mappings merge key by key, anything else is replaced; `null` removes a key that is there."""
    pairs: dict[str, tuple[Node, Node]] = {key.value: (key, value) for key, value in base.value}
    by_hand = over.start_mark.name.startswith("--set ")  # what is missing is missing in the file, not in the option
    for key, value in over.value:
        before = pairs.get(key.value)
        if before and isinstance(value, ScalarNode) and value.tag == f"{TAG}null":
            del pairs[key.value]
        elif before and isinstance(before[1], MappingNode) and isinstance(value, MappingNode):
            pairs[key.value] = (before[0] if by_hand else key, merge(before[1], value))
        else:
            pairs[key.value] = (key, value)
    whose = base if by_hand else over
    return MappingNode(over.tag, list(pairs.values()), whose.start_mark, whose.end_mark)


def override(text: str) -> MappingNode:
    """`tune.trials=2` as the mapping {tune: {trials: 2}}."""
    dotted, equals, value = text.partition("=")
    node = read_text(value, f"--set {dotted}") if equals and dotted else None
    if node is None:
        what = "there is no value" if equals and dotted else "KEY=VALUE is expected"
        raise InputError(what, place=f"--set {text}", hint="for example --set tune.trials=2")
    for key in reversed(dotted.split(".")):
        scalar = ScalarNode(f"{TAG}str", key, node.start_mark, node.end_mark)
        node = MappingNode(f"{TAG}map", [(scalar, node)], node.start_mark, node.end_mark)
    assert isinstance(node, MappingNode), "wrapped once at least"
    return node


def construct(tree: Node) -> Any:
    """Plain data of a checked tree."""
    loader = Loader("")
    try:
        return loader.construct_document(tree)
    finally:
        loader.dispose()
