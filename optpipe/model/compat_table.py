"""What can be made and what loads, read from `compat.toml`: the first row that fits decides."""

from __future__ import annotations

import operator
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Literal

from optpipe.records import Hardware

FILE = Path(__file__).with_name("compat.toml")
TABLES = ("architectures", "writes", "loads", "dtypes", "kv_cache")
Status = Literal["ok", "slow", "no"]
Version = tuple[int, ...]

OPERATORS: dict[str, Callable[[Version, Version], bool]] = {
    ">=": operator.ge,
    "<": operator.lt,
    "==": operator.eq,
}


@dataclass(frozen=True)
class Asked:
    """What is looked up: a row fits where all that it names is so; `version` None is not known."""

    engine: str
    hardware: Hardware
    version: str | None = None
    scheme: str = "base"
    library: str = "llmcompressor"
    format: str = "plain"
    symmetric: bool = True
    value: str = ""
    model: str = ""
    experts: bool = False
    stacked: bool = False
    multimodal: bool = False


@dataclass(frozen=True)
class Row:
    """One line of a table; an empty tuple or None takes anything. `makes` is the format that a library writes,
    `experts` whether the model is a mixture of them, `stacked` whether those of a layer are stored in one tensor;
    `multimodal` whether the text model is one part of it; `lacks` are flags of which a processor has none."""

    status: Status
    source: str
    reason: str = ""
    nearest: str | None = None
    engine: str | None = None
    platform: Literal["cpu", "cuda", "any"] = "any"
    capability: tuple[float, float] = (0.0, 99.0)
    versions: str = ""
    scheme: tuple[str, ...] = ()
    library: tuple[str, ...] = ()
    format: tuple[str, ...] = ()
    symmetric: bool | None = None
    value: tuple[str, ...] = ()
    makes: str = ""
    model: tuple[str, ...] = ()
    experts: bool | None = None
    stacked: bool | None = None
    multimodal: bool | None = None
    lacks: tuple[str, ...] = ()

    def fits(self, asked: Asked) -> bool:
        """Whether this row speaks of what is asked."""
        lists = (
            (self.scheme, asked.scheme),
            (self.library, asked.library),
            (self.format, asked.format),
            (self.value, asked.value),
            (self.model, asked.model),
        )
        return (
            self.engine in (None, asked.engine)
            and all(not listed or found in listed for listed, found in lists)
            and self.symmetric in (None, asked.symmetric)
            and self.experts in (None, asked.experts)
            and self.stacked in (None, asked.stacked)
            and self.multimodal in (None, asked.multimodal)
            and self.fits_version(asked.version)
            and self.fits_machine(asked.hardware)
        )

    def fits_machine(self, hardware: Hardware) -> bool:
        if hardware.gpus == 0:
            lacking = set(self.lacks).isdisjoint(hardware.instruction_set.split())
            return self.platform in ("cpu", "any") and lacking
        low, high = self.capability
        return self.platform in ("cuda", "any") and low <= float(hardware.compute_capability or 0) < high

    def fits_version(self, version: str | None) -> bool:
        """A version that is not known is taken for the one that the rows were written for: the newest."""
        for bound in filter(None, self.versions.split(",")):
            symbol = next(symbol for symbol in OPERATORS if bound.startswith(symbol))
            newest = version if version is not None else "9999"
            if not OPERATORS[symbol](numbers(newest), numbers(bound.removeprefix(symbol))):
                return False
        return True


@dataclass(frozen=True)
class Tables:
    """The five tables."""

    architectures: tuple[Row, ...]
    writes: tuple[Row, ...]
    loads: tuple[Row, ...]
    dtypes: tuple[Row, ...]
    kv_cache: tuple[Row, ...]

    @property
    def engines(self) -> tuple[str, ...]:
        """Every engine that the table knows, in its order."""
        return tuple(dict.fromkeys(row.engine for row in self.loads if row.engine))


def numbers(version: str) -> Version:
    """The release of a version: `0.32.0+cpu` -> (0, 32, 0), `1.3.0rc20` -> (1, 3, 0)."""
    found = []
    for part in version.split("+")[0].split("."):
        digits = part[: len(part) - len(part.lstrip("0123456789"))]
        if not digits:
            break
        found.append(int(digits))
    return tuple(found)


@cache
def tables() -> Tables:
    """The tables as they are shipped."""
    with FILE.open("rb") as file:
        data = tomllib.load(file)
    sources = data["sources"]
    return Tables(**{name: tuple(row_of(item, sources) for item in data[name]) for name in TABLES})


def row_of(item: dict[str, Any], sources: dict[str, str]) -> Row:
    known = {field.name for field in fields(Row)}
    if unknown := item.keys() - known:
        raise ValueError(f"{FILE.name}: {sorted(unknown)} in {item}")
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in item.items()}
    return Row(**values | {"source": sources[item["source"]]})


def first(rows: tuple[Row, ...], asked: Asked) -> Row | None:
    """The row that decides, or None where the table has no word on it."""
    return next((row for row in rows if row.fits(asked)), None)
