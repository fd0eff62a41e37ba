"""check: can a checkpoint be served on a machine, by which engine, else why not and where; pure but for headers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from optpipe.model.compat import TITLES, Case, Finding, elsewhere, findings
from optpipe.model.compat_table import tables
from optpipe.records import Hardware, ModelFacts
from optpipe.rundir import read_yaml
from optpipe.toolchains.versions import locked_version

NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True)
class Served:
    """One engine's answer: `slow` works, but not as one would hope."""

    engine: str
    outcome: str
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Servable:
    """Whether a checkpoint can be served on a machine. `elsewhere`: where the table says that it runs."""

    model: str
    stored_as: str
    hardware: str
    engines: tuple[Served, ...]
    elsewhere: tuple[str, ...]

    @property
    def slow(self) -> bool:
        """Served, but not as one would hope."""
        return "ok" not in {served.outcome for served in self.engines}

    @property
    def by(self) -> str | None:
        """The engine to take: the first that serves it well, else the first that serves it."""
        order = sorted(self.engines, key=lambda served: ("ok", "slow", "no").index(served.outcome))
        return order[0].engine if order and order[0].outcome != "no" else None


def check(
    facts: ModelFacts, hardware: Hardware, target: Mapping[str, Any], found_here: Mapping[str, str] = NONE
) -> Servable:
    """Ask the table for every engine that it knows; `target` holds settings that the checkpoint is served with,
    `found_here` the releases of engines that optpipe does not install."""
    if facts.kind == "gguf" or facts.source.endswith(".gguf"):  # otherwise the folder that a build makes of it
        facts = replace(facts, quantized="gguf")
    engines: list[Served] = []
    away: list[str] = []
    for engine in tables().engines:
        versions = {**versions_of(engine, hardware), **found_here}
        case = Case(facts, None, {**target, "engine": engine}, hardware, versions)
        found = findings(case)
        outcomes = {one.outcome for one in found}
        outcome = next(word for word in ("no", "slow", "ok") if word in outcomes)
        engines.append(Served(TITLES.get(engine, engine), outcome, found))
        away += elsewhere(case)
    stored = facts.quantized or f"unquantized {facts.dtype}"
    return Servable(facts.source, stored, hardware.name, tuple(engines), tuple(dict.fromkeys(away)))


def versions_of(engine: str, hardware: Hardware) -> dict[str, str]:
    """The versions that optpipe installs."""
    packages = {"vllm": ("vllm", "torchvision"), "onnxruntime": ("onnxruntime-genai",)}
    found = {name: locked_version(engine, name, cuda=bool(hardware.gpus)) for name in packages.get(engine, ())}
    return {name: version for name, version in found.items() if version}


def settings_of(bundle: Path) -> dict[str, Any]:
    """The engine settings that a bundle ships with, as a target's keys; none for a plain folder."""
    path = bundle / "engine" / "vllm.yaml"
    if not path.is_file():
        return {}
    found = read_yaml(path)
    return {"engine_args": found} if isinstance(found, dict) else {}
