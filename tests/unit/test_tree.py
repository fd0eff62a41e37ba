"""The tree in the README is the tree: what it names is there, and what is there it names."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def told() -> dict[str, str]:
    """Path and purpose of each line of the README's tree."""
    section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## The tree")[2]
    lines = section.split("```")[1].strip().splitlines()
    found, above = {}, ""
    for line in lines:
        name, _, purpose = line.strip().partition(" ")
        if not line.startswith(" "):
            above = name
        found[above + name if line.startswith(" ") else name] = purpose.strip()
    return found


def test_what_the_tree_names_is_there_with_its_purpose() -> None:
    for path, purpose in told().items():
        assert (ROOT / path).is_dir() if path.endswith("/") else (ROOT / path).is_file(), path
        assert purpose or path == "optpipe/", path


def test_every_module_and_room_of_the_package_is_named() -> None:
    """Dunder files speak for themselves."""
    package = ROOT / "optpipe"
    modules = {f"optpipe/{path.name}" for path in package.glob("*.py") if not path.name.startswith("__")}
    rooms = {f"optpipe/{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert modules | rooms <= told().keys()


def test_every_kind_of_backend_is_named() -> None:
    named = set(re.findall(r"\w+", told()["optpipe/backends/"]))
    assert {path.parent.name for path in (ROOT / "optpipe" / "backends").glob("*/__init__.py")} <= named
