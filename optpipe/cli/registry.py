"""`optpipe list | pull | verify | promote | rollback`: published versions and the aliases that move."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optpipe.cli.shared import AsJson

if TYPE_CHECKING:
    from optpipe.backends.registries import FolderRegistry

DEFAULT = Path("artifacts/registry")

Reference = Annotated[str, typer.Argument(help="name, name@alias or name@sha256:...", show_default=False)]
Where = Annotated[Path, typer.Option("--registry", metavar="PATH", help="The registry's folder.")]
Alias = Annotated[str, typer.Option("--alias", help="The alias to move.")]
Because = Annotated[str, typer.Option("--because", help="Why, for the registry's history.")]


def open_registry(path: Path) -> FolderRegistry:
    """The registry at `path`; one that was named and is not there is an error."""
    from optpipe.backends.registries import FolderRegistry
    from optpipe.errors import InputError

    if path != DEFAULT and not path.is_dir():
        hint = f"the default is {DEFAULT}"
        raise InputError("there is no such folder", place=f"--registry {path}", hint=hint)
    return FolderRegistry(path)


def list_(as_json: AsJson = False, registry: Where = DEFAULT) -> None:
    """List published models, their aliases and versions."""
    from optpipe import console

    found = open_registry(registry).listing()
    if as_json:
        return console.emit(found)
    for name, model in found["models"].items():
        for digest in model["versions"]:
            aliases = sorted(alias for alias, target in model["aliases"].items() if target == digest)
            console.out(f"{name}@{digest[:19]}  {', '.join(aliases)}".rstrip())
    if not found["models"]:
        console.say(f"nothing is published in {registry}")


def pull(
    reference: Reference,
    destination: Annotated[Path, typer.Argument(help="A new or empty folder.", show_default=False)],
    as_json: AsJson = False,
    registry: Where = DEFAULT,
) -> None:
    """Copy a version into a folder, every file verified."""
    from optpipe import console

    version = open_registry(registry).pull(reference, destination)
    if as_json:
        return console.emit({"name": version.name, "digest": version.digest, "path": str(destination)})
    console.say(f"{version.name}@{version.digest} is in {destination}, whole")


def verify(reference: Reference, as_json: AsJson = False, registry: Where = DEFAULT) -> None:
    """Check every byte of a version, or of a bundle's folder, against its manifest; exit 6 if one differs."""
    from optpipe import bundle, console
    from optpipe.backends.registries.folder import told
    from optpipe.errors import PublishFailed

    expected, path = None, Path(reference)
    if not path.is_dir():
        version = open_registry(registry).resolve(reference)
        expected, path = version.digest, version.path
    problems = bundle.verify(path, expected)
    manifest, _ = bundle.read_manifest(path)
    signed = (path / bundle.SIGNATURE).is_file()
    known = {"digest": manifest and manifest.digest, "files": len(manifest.files) if manifest else 0}
    document = {"ok": not problems, **known, "signed": signed, "problems": problems}
    if problems:
        hint = "pull it again, or publish it again from its run"
        error = PublishFailed(told(problems), place=reference, hint=hint)
        error.document = document
        raise error
    if as_json:
        console.emit(document)
    elif manifest:
        word = (
            "signed: not checked here" if signed else "unsigned: whole, but by whom it was made is not proven"
        )
        console.out(f"{manifest.digest}  {len(manifest.files)} files  {word}")


def promote(
    reference: Reference,
    alias: Alias = "champion",
    because: Because = "promoted by hand",
    as_json: AsJson = False,
    registry: Where = DEFAULT,
) -> None:
    """Point an alias at a version; refused if somebody else moves it at the same time."""
    folder = open_registry(registry)
    version = folder.resolve(reference)
    before = folder.alias(version.name, alias)
    folder.move(version, alias, expected=before, evidence=because)
    _moved(version.name, alias, before, version.digest, as_json)


def rollback(
    name: Annotated[str, typer.Argument(help="A published model.", show_default=False)],
    alias: Alias = "champion",
    because: Because = "rolled back by hand",
    as_json: AsJson = False,
    registry: Where = DEFAULT,
) -> None:
    """Point an alias back at the version that it meant before; again, further back."""
    folder = open_registry(registry)
    before = folder.resolve(f"{name}@{alias}").digest
    version = folder.rollback(name, alias, evidence=because)
    _moved(name, alias, before, version.digest, as_json)


def _moved(name: str, alias: str, before: str | None, now: str, as_json: bool) -> None:
    from optpipe import console

    if as_json:
        return console.emit({"name": name, "alias": alias, "from": before, "to": now})
    console.out(f"{name}@{alias}: {now}" + (f" (was {before})" if before and before != now else ""))
