"""Selectors name modules by whole dotted segments: `layers.1` never means `layers.10`. Standard library only.

A selector is its segments (`*` is any part of one segment), or `re:` and a regular expression that must match
from the name's start. In JSON it is a string, or {"select": ..., "expect": N}.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from optpipe.errors import InputError, Problem, did_you_mean


def text_of(selector: Any) -> str:
    """The selector's own text, from a string, its JSON mapping or an object with `select`."""
    if isinstance(selector, str):
        return selector
    return str(selector["select"] if isinstance(selector, Mapping) else selector.select)


def expected(selector: Any) -> int | None:
    """How many modules the selector says that it matches."""
    if isinstance(selector, str):
        return None
    found = selector.get("expect") if isinstance(selector, Mapping) else selector.expect
    return None if found is None else int(found)


def matches(selector: Any, name: str) -> bool:
    """Whether the selector's segments stand one after another, whole, in the dotted `name`.

    >>> matches("layers.1.*", "model.layers.1.mlp.up_proj"), matches("layers.1.*", "model.layers.10.mlp")
    (True, False)
    """
    text = text_of(selector)
    if text.startswith("re:"):
        return bool(pattern_of(text).match(name))
    wanted, found = text.split("."), name.split(".")
    return any(
        all(fnmatchcase(segment, pattern) for pattern, segment in zip(wanted, found[start:], strict=False))
        for start in range(len(found) - len(wanted) + 1)
    )


def pattern_of(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text.removeprefix("re:"))
    except re.error as error:
        raise InputError(
            f"{text!r} is no regular expression: {error}", place="ignore", hint="escape dots as \\."
        ) from None


def matched(selectors: Sequence[Any], names: Iterable[str]) -> tuple[str, ...]:
    """The names that any of the selectors matches, in their order."""
    return tuple(name for name in names if any(matches(selector, name) for selector in selectors))


def selector_problems(selectors: Sequence[Any], names: Sequence[str], place: str) -> tuple[Problem, ...]:
    """A problem for each selector that matches nothing, or not as many modules as it expects."""
    problems = []
    for selector in selectors:
        text, found, wanted = text_of(selector), matched([selector], names), expected(selector)
        shown = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        if not found and text != "lm_head":
            message = f"{text!r} matches none of {len(names)} linear layers"
            problems.append(Problem(place, message, did_you_mean(text, segments(names))))
        elif wanted is not None and wanted != len(found):
            message = f"{text!r} matches {len(found)} layers ({shown}); {wanted} are expected"
            problems.append(Problem(place, message, f"write `expect: {len(found)}` if that is meant"))
    return tuple(problems)


def segments(names: Sequence[str]) -> list[str]:
    """The last segments of the names, which is what selectors mostly use."""
    return sorted({name.rpartition(".")[2] for name in names})
