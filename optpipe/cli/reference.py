"""Writes the reference pages from what they describe: `python -m optpipe.cli.reference [FOLDER]`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from optpipe.cli.app import app
from optpipe.rundir import write_atomic

FOLDER = Path("docs/reference")

HEAD = """\
# The commands

stdout is data, stderr is talk; `--json` prints one JSON document, for errors too: what is known all the same, and
`"error": {"exit_code", "place", "message", "hint"}`. Exit codes: 0 done; 1 a bug of optpipe; 2 a recipe, model, text
or command line is wrong; 3 something is missing here (toolchain, GPU, disk); 4 a backend failed for every candidate;
5 nothing passed the gates; 6 publishing failed; 7 more measuring is needed; 130 interrupted.
"""


def commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """(full name, command) of each command that does something, in the order of `--help`."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child, inner in children.items():
        yield from commands(inner, f"{name} {child}")


def every() -> list[tuple[str, Any]]:
    return list(commands(typer.main.get_command(app), "optpipe"))


def parameters(command: Any) -> Iterator[tuple[str, Any]]:
    """(how it is written, parameter), `--help` left out."""
    for one in command.params:
        if one.param_type_name == "argument":
            name = str(one.human_readable_name).upper()
            yield (name if one.required else f"[{name}]"), one
        elif "--help" not in one.opts:
            word = "" if one.is_flag else f" {one.metavar or one.type.name.upper()}"
            yield ", ".join(one.opts) + word, one


def markdown() -> str:
    """The page of all commands."""
    parts = [HEAD]
    for name, command in every():
        arguments = [text for text, one in parameters(command) if one.param_type_name == "argument"]
        lines = [f"## {name}", "", " ".join(str(command.help).split()), ""]
        lines += ["```", " ".join([name, *arguments, "[OPTIONS]"]), "```", ""]
        rows = [f"| `{text}` | {described(one)} |" for text, one in parameters(command)]
        parts.append("\n".join([*lines, *(["| | |", "|---|---|", *rows, ""] if rows else [])]))
    return "\n".join(parts)


def described(one: Any) -> str:
    text = " ".join(str(one.help or "").split())
    shown = one.default is not None and not getattr(one, "is_flag", False) and not callable(one.default)
    return f"{text} Default: `{one.default}`." if shown else text


def surface() -> list[str]:
    """Every command with its arguments and options, one a line."""
    return [f"{name} {text}" for name, command in every() for text in ["", *(t for t, _ in parameters(command))]]


def pages() -> dict[str, str]:
    """The reference pages by file name."""
    from optpipe.model import compat_page
    from optpipe.recipe import method_pages, page

    own = {"recipe.md": page.markdown(), "cli.md": markdown(), "compat.md": compat_page.markdown()}
    return own | method_pages.pages()


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    made = pages()
    for name, text in made.items():
        write_atomic(folder / name, text.encode())
    for page in (folder / "methods").glob("*.md"):
        if f"methods/{page.name}" not in made:
            page.unlink()
