"""What package and publish leave: a version, where it went, and against what it was measured."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from optpipe.records.results import Check
from optpipe.records.serialize import Json


@dataclass(frozen=True)
class Engine:
    """What the bundle is served with: the configuration that was confirmed, and what ran it."""

    name: str
    version: str
    config: Json
    environment: Json = field(default_factory=dict)
    """Variables that change what the engine does; never secrets."""
    compiles: Json | None = None
    """What the code depends on that it compiles when it starts; None: it compiles none."""


@dataclass(frozen=True)
class Bundle:
    """A packaged version: `digest` is that of the manifest of everything but the signature."""

    name: str
    path: Path
    digest: str
    model_digest: str
    bytes: int


@dataclass(frozen=True)
class Challenge:
    """How a new version did against the one that the alias meant when they were compared."""

    champion: str | None
    """Digest of the version it was compared with; None: there was none."""
    passed: bool
    evidence: str
    """The run whose records say so."""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Published:
    """Where a version went and which aliases moved."""

    registry: str
    name: str
    digest: str
    aliases: tuple[str, ...]
    location: str
