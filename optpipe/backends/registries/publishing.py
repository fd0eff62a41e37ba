"""Bundles on their way in and out: what a folder holds to publish, and a published version as a source."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from optpipe import bundle as bundles
from optpipe.backends import registries
from optpipe.backends.registries.registry import Registry
from optpipe.errors import EnvironmentMissing, InputError, PublishFailed, Unreachable
from optpipe.model import fetching, sources
from optpipe.proofs import Notary, provenance
from optpipe.records import Bundle


def packaged(path: Path, name: str | None = None) -> Bundle:
    """The bundle at `path` or in `path/package`, under its own name or `name`."""
    if (folder := bundles.bundle_at(path)) is None:
        hint = "name a run's folder that has package/ (artifacts/latest), or a bundle"
        told = "holds no manifest.json" if path.exists() else "is not there"
        raise InputError(told, place=str(path), hint=hint)
    manifest, problems = bundles.read_manifest(folder)
    if manifest is None or problems:
        raise InputError(str(problems[0]), place=str(folder), hint="build its recipe again: what is done is kept")
    require_provenance(folder, manifest)
    known = json.loads((folder / "optpipe.json").read_text(encoding="utf-8"))
    name = name or known.get("name")
    if not name:
        raise InputError("says no name", place=str(folder), hint="give one with --name")
    return Bundle(name, folder, manifest.digest, str(known.get("model_digest", "")), manifest.bytes)


def require_provenance(folder: Path, manifest: bundles.Manifest) -> None:
    """InputError where `verify` and `pull` would refuse what the bundle says of how it was made."""

    def read(path: str) -> bytes:
        with bundles.open_plain(folder / path) as file:
            return file.read()

    for problem in provenance.problems(manifest, read):
        hint = "build its recipe again with this version of optpipe: what is done is kept"
        raise InputError(f"{problem.place}: {problem.message}", place=str(folder), hint=hint)


def puller(default: Path, say: sources.Say) -> fetching.Pull:
    """Brings `registry:` sources here; `default` is the folder registry where they name none."""

    def pull(wanted: sources.RegistryRef) -> Path:
        where = wanted.registry or str(default)
        if wanted.registry and registries.missing_folder(where):
            hint = "name a registry's folder or URL, then / and the model"
            raise InputError(f"there is no folder {where}", place=str(wanted), hint=hint)
        registry = registries.at(where, notary=Notary(say))
        try:
            return registry.local(registry.resolve(f"{wanted.name}@{wanted.reference}"))
        except Unreachable as error:
            hint = "check the address and the network; without one name a folder as the source"
            raise EnvironmentMissing(f"{error.place}: {error.message}", place=str(wanted), hint=hint) from None

    return pull


@contextmanager
def reaching(registry: Registry) -> Iterator[None]:
    """What the system refuses of a registry's own files is a failure of publishing, whoever asks."""
    try:
        yield
    except OSError as error:
        told = f"{error.strerror or error}: {error.filename}" if error.filename else str(error)
        hint = "nothing half can be seen there: the next build publishes it"
        raise PublishFailed(told, place=registry.where, hint=hint) from None
