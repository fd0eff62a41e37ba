"""What the schemes of all libraries have in common. Standard library only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from optpipe.errors import Problem, did_you_mean
from optpipe.records import Json

Scheme = TypeVar("Scheme")

CONFIG: Json = {"extra": "forbid", "use_attribute_docstrings": True}
"""`__pydantic_config__` of every scheme: unknown keys fail, the text under a field is its documentation."""
OUTPUT_HEAD = ("lm_head",)
"""What stays in bf16 by default."""


class Block:
    """The base of every scheme: frozen dataclasses, one a method of a library, with `library` and `method`."""

    __pydantic_config__: ClassVar[Json] = CONFIG
    needs_calibration: ClassVar[bool] = True
    """Whether it is made with calibration text."""


@dataclass(frozen=True)
class Select:
    """A selector of modules that says how many it must match."""

    __pydantic_config__: ClassVar[Json] = CONFIG

    select: str
    """Whole dotted segments, `*` being any part of one (`layers.1.*` is not layers.10); or `re:...`."""
    expect: int | None = None
    """How many modules must match; another number is an error."""


def read(options: Json, known: Mapping[str, type[Scheme]]) -> Scheme:
    """The scheme in a job's options (plain JSON of one of a library's classes, `known` by their method)."""
    method = str(options.get("method"))
    if method not in known:
        raise ValueError(f"method: {method!r} is not known; {did_you_mean(method, list(known))}")
    values: Json = {"ignore": OUTPUT_HEAD, **options}
    for key in ("ignore", "int8"):
        if key in values:
            values[key] = tuple(selector(value) for value in values[key])
    return known[method](**values)


def grouped_problems(bits: int, group_size: int, allowed: tuple[int, ...]) -> Iterator[Problem]:
    """What is wrong with bits and group size, whoever quantizes."""
    if bits not in allowed:
        yield Problem("bits", f"{bits} is not {' or '.join(map(str, allowed))}", "bits: 4")
    if group_size != -1 and (group_size < 1 or group_size % 8):
        text = f"{group_size} is not -1 or a positive multiple of 8"
        yield Problem("group_size", text, "32, 64 and 128 are what engines have kernels for")


def selector(value: str | Json) -> str | Select:
    return Select(**value) if isinstance(value, dict) else value
