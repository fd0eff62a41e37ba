"""Records to plain JSON and back."""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, Union

T = TypeVar("T")
Json = dict[str, Any]


def to_json(value: Any) -> Any:
    """Plain JSON for any record; a NaN or an infinity is refused here, not written."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} in a record: a figure that is not finite is a failure, not a value")
    return value


def from_json(cls: type[T], value: Any) -> T:
    """The record of type `cls` in plain JSON `value`; unknown or missing keys raise TypeError."""
    return typing.cast(T, _read(cls, value))


def _read(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _read(next(a for a in typing.get_args(kind) if a is not type(None)), value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        unknown = set(value) - set(hints)
        if unknown:
            raise TypeError(f"{getattr(kind, '__name__', kind)}: unknown keys {sorted(unknown)}")
        return typing.cast(Any, kind)(**{k: _read(hints[k], v) for k, v in value.items()})
    if origin is tuple:
        args = typing.get_args(kind)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_read(args[0], item) for item in value)
        return tuple(_read(a, item) for a, item in zip(args, value))
    if kind is Path:
        return Path(value)
    return value


def canonical(value: Any) -> bytes:
    """The one byte string of a JSON value: sorted keys, no spaces, UTF-8."""
    text = json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()
