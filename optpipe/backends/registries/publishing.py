"""Bundles on their way in and out: what a folder holds to publish, and a published version as a source."""

from __future__ import annotations

import json
from pathlib import Path

from optpipe import bundle as bundles
from optpipe.backends import registries
from optpipe.errors import InputError
from optpipe.model import sources
from optpipe.proofs import Notary
from optpipe.records import Bundle


def packaged(path: Path, name: str | None = None) -> Bundle:
    """The bundle at `path` or in `path/package`, under its own name or `name`."""
    folder = path / "package" if (path / "package" / bundles.MANIFEST).is_file() else path
    manifest, problems = bundles.read_manifest(folder)
    if manifest is None or problems:
        raise InputError(str(problems[0]), place=str(path), hint="name a run's folder that has package/, or a bundle")
    about = folder / "optpipe.json"
    known = json.loads(about.read_text(encoding="utf-8")) if about.is_file() else {}
    name = name or known.get("name")
    if not name:
        raise InputError("says no name", place=str(folder), hint="give one with --name")
    return Bundle(name, folder, manifest.digest, str(known.get("model_digest", "")), manifest.bytes)


def puller(default: Path, say: sources.Say) -> sources.Pull:
    """Brings `registry:` sources here; `default` is the folder registry where they name none."""

    def pull(wanted: sources.RegistryRef) -> Path:
        registry = registries.at(wanted.registry or str(default), notary=Notary(say))
        return registry.local(registry.resolve(f"{wanted.name}@{wanted.reference}"))

    return pull
