"""What people write to name a published version: `name`, `name@alias`, `name@sha256:...`."""

from __future__ import annotations

import re
from dataclasses import dataclass

from optpipe.errors import InputError, Problem

LATEST = "latest"
CHAMPION = "champion"
SHORTEST_PREFIX = 8
"""Hexadecimal digits that a shortened digest must have."""

_NAME = re.compile(r"[a-z0-9_][a-z0-9._-]{0,95}")
_DIGEST = re.compile(rf"sha256:[0-9a-f]{{{SHORTEST_PREFIX},64}}")


@dataclass(frozen=True)
class Reference:
    """A model and one of its versions: an alias, or a digest that may be shortened."""

    name: str
    alias: str | None = None
    digest: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.alias or self.digest}"


@dataclass(frozen=True)
class Version:
    """A complete version in a registry, with its full digest."""

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}"


def parse(text: str) -> Reference:
    """The reference that `text` is; without `@`, the alias `latest` is meant."""
    name, at, rest = text.removeprefix("registry:").partition("@")
    if not name or any(mark in name for mark in "/\\:"):
        hint = "name a folder that is there, or a published model: name, name@alias or name@sha256:..."
        raise InputError(f"{text!r} is neither a folder that is there nor the name of a model", hint=hint)
    checked_name(name, "model")
    if not at:
        return Reference(name, alias=LATEST)
    if not rest.startswith("sha256:"):
        return Reference(name, alias=checked_name(rest, "alias"))
    if not _DIGEST.fullmatch(rest):
        raise InputError(
            f"{rest!r} is not sha256: and {SHORTEST_PREFIX} to 64 hexadecimal digits in lower case",
            place=text,
            hint="`optpipe list --json` shows whole digests",
        )
    return Reference(name, digest=rest)


def checked_name(name: str, what: str) -> str:
    """`name` if it is safe as one folder or file name everywhere, else an InputError."""
    if not _NAME.fullmatch(name) or ".." in name or name.endswith("."):
        raise InputError(
            f"{name!r} cannot be the name of {'an' if what[0] in 'aeiou' else 'a'} {what}",
            hint="lower-case letters, digits, '.', '_' and '-', beginning with a letter or digit, 96 at most",
        )
    return name


def told(problems: tuple[Problem, ...], most: int = 8) -> str:
    """The first few problems on one line each, and how many more there are."""
    lines = [str(problem) for problem in problems[:most]]
    return "\n".join(lines + [f"and {len(problems) - most} more"] * (len(problems) > most))
