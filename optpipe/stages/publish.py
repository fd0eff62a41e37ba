"""publish: an immutable version first, then the aliases, the champion last."""

from __future__ import annotations

from pathlib import Path

from optpipe.backends.registries import Registry, Settings, Version, connect
from optpipe.backends.registries.publishing import reaching
from optpipe.backends.registries.references import CHAMPION, LATEST
from optpipe.backends.registries.registry import Progress
from optpipe.errors import AliasMoved
from optpipe.proofs import Notary
from optpipe.records import Bundle, Challenge, Published


def publish(
    bundle: Bundle,
    settings: Settings,
    default: Path,
    challenge: Challenge,
    notary: Notary | None = None,
    progress: Progress | None = None,
) -> Published:
    """Upload, move `latest`, then `promote` (default `champion`) if it is free or was beaten; the `notary` signs."""
    registry = connect(settings, default, notary=notary, progress=progress)
    with reaching(registry):
        return put_and_move(registry, bundle, settings, challenge)


def put_and_move(registry: Registry, bundle: Bundle, settings: Settings, challenge: Challenge) -> Published:
    """The version with all its files before any alias."""
    version = registry.upload(bundle)
    move_latest(registry, version, challenge.evidence)
    alias = settings.promote or CHAMPION
    holder = registry.alias(version.name, alias)
    if challenge.passed and (holder is None or settings.promote):
        expected = challenge.champion if holder else None
        registry.move(version, alias, expected=expected, evidence=challenge.evidence)
        holder = version.digest
    aliases = (LATEST, alias) if holder == version.digest else (LATEST,)
    return Published(registry.kind, version.name, version.digest, aliases, registry.location(version))


def move_latest(registry: Registry, version: Version, evidence: str, tries: int = 10) -> None:
    """`latest` follows whoever publishes last, so a lost race is simply run again."""
    for left in reversed(range(tries)):
        now = registry.alias(version.name, LATEST)
        try:
            return registry.move(version, LATEST, expected=now, evidence=evidence)
        except AliasMoved:
            if not left:
                raise
