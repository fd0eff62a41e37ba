"""`optpipe publish | list | history | pull | verify | promote | rollback`: versions, and the aliases that move."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optpipe.cli.shared import DEFAULT_ARTIFACTS, AllowUnsigned, AsJson, Identity, Issuer, Key, Where

if TYPE_CHECKING:
    from optpipe.backends.registries import Registry
    from optpipe.proofs import Policy

Reference = Annotated[str, typer.Argument(help="name, name@alias or name@sha256:...", show_default=False)]
Model = Annotated[str, typer.Argument(help="A published model.", show_default=False)]
Alias = Annotated[str, typer.Option("--alias", help="The alias to move.")]
Expected = Annotated[
    str | None,
    typer.Option("--expected", metavar="DIGEST", help="Move the alias only where it means this; `none`: nothing yet."),
]
Because = Annotated[str, typer.Option("--because", help="Why, for the registry's history.")]


@contextmanager
def opened(where: str | None, policy: Policy | None = None) -> Iterator[Registry]:
    """The registry at a folder or URL, its progress shown; a folder that was named and is not there is an error.

    Without a `policy`, the policy file says whose signatures count.
    """
    from optpipe.backends import registries
    from optpipe.console import Talk
    from optpipe.errors import InputError
    from optpipe.proofs import Notary

    default = str(DEFAULT_ARTIFACTS / "registry")
    if where == "":
        hint = f"leave it out for {default}; is a variable empty?"
        raise InputError("names nothing", place="--registry", hint=hint)
    if where and registries.missing_folder(where):
        if Path(where).exists():
            raise InputError("is a file, not a folder", place=f"--registry {where}", hint=f"the default is {default}")
        hint = f"`mkdir -p {shlex.quote(where)}` makes a new registry; the default is {default}"
        raise InputError("there is no such folder", place=f"--registry {where}", hint=hint)
    with Talk() as talk:
        yield registries.at(where or default, notary=Notary(talk.say, policy), progress=talk.transfer)


def publish(
    bundle: Annotated[Path, typer.Argument(help="A run's folder, or a bundle's.", show_default=False)],
    name: Annotated[str | None, typer.Option("--name", help="Under which name, if not the recipe's.")] = None,
    alias: Annotated[str, typer.Option("--alias", help="The alias that moves to it.")] = "latest",
    expected: Expected = None,
    because: Because = "published by hand",
    as_json: AsJson = False,
    registry: Where = None,
) -> None:
    """Make a bundle an immutable version, then move an alias to it; what broke off goes on."""
    from optpipe.backends.registries.publishing import packaged

    found = packaged(bundle, name)
    with opened(registry) as target:
        version = target.upload(found)
        before = meant(target.alias(version.name, alias), expected)
        target.move(version, alias, expected=before, evidence=because)
    _moved(version.name, alias, before, version.digest, as_json)


def meant(now: str | None, expected: str | None) -> str | None:
    """What a move takes the alias to mean: what it means now, or what the caller says that it must."""
    return now if expected in (None, "any") else None if expected == "none" else expected


def list_(as_json: AsJson = False, registry: Where = None) -> None:
    """List published models, their aliases and versions."""
    from optpipe import console

    with opened(registry) as source:
        found = source.listing()
    if as_json:
        return console.emit(found)
    for name, model in found["models"].items():
        for digest in model["versions"]:
            aliases = sorted(alias for alias, target in model["aliases"].items() if target == digest)
            console.out(f"{name}@{digest[:19]}  {', '.join(aliases)}".rstrip())
    if not found["models"]:
        console.say(f"nothing is published in {source.where}")


def history(name: Model, as_json: AsJson = False, registry: Where = None) -> None:
    """Who moved which alias of a model from what to what, when, on which evidence; oldest first."""
    from optpipe import console
    from optpipe.backends.registries.references import checked_name

    with opened(registry) as source:
        checked_name(name, "model")
        moves = [kept.move for kept in source.history(name)]
        if not moves:
            source.known(name, name)
    if as_json:
        return console.emit({"name": name, "moves": moves})
    for move in moves:
        before = move.previous[:19] if move.previous else "nothing"
        what = f"{move.alias}: {before} -> {move.digest[:19]}"
        console.out(f"{move.time[:19]}Z  {what}  by {move.by}: {move.evidence}")


def pull(
    reference: Reference,
    destination: Annotated[Path | None, typer.Argument(help="A new or empty folder; by default ./NAME.")] = None,
    as_json: AsJson = False,
    registry: Where = None,
    key: Key = None,
    identity: Identity = None,
    issuer: Issuer = None,
    allow_unsigned: AllowUnsigned = False,
) -> None:
    """Copy a version into a folder, signature and every file verified; what broke off goes on."""
    from optpipe import console
    from optpipe.backends.registries.references import parse
    from optpipe.proofs import load_policy

    policy = load_policy(key, identity, issuer, allow_unsigned=allow_unsigned)
    target = destination or Path(parse(reference).name)
    with opened(registry, policy) as source:
        version = source.pull(reference, target)
    if as_json:
        return console.emit({"name": version.name, "digest": version.digest, "path": str(target)})
    console.say(f"{version.name}@{version.digest} is in {target}, whole")


def verify(
    reference: Reference,
    as_json: AsJson = False,
    registry: Where = None,
    key: Key = None,
    identity: Identity = None,
    issuer: Issuer = None,
    allow_unsigned: AllowUnsigned = False,
) -> None:
    """Check a version or a bundle's folder: signature, every file, nothing added, provenance; exit 6 if not."""
    from optpipe import console, proofs
    from optpipe.bundle import bundle_at

    policy = proofs.load_policy(key, identity, issuer, allow_unsigned=allow_unsigned)
    folder = bundle_at(Path(reference)) or Path(reference)
    if folder.is_dir():
        found = proofs.examine(folder, policy)
    else:
        with opened(registry, policy) as source:
            found = source.examine(source.resolve(reference))
    found.demand(reference)
    if as_json:
        return console.emit(found.document())
    assert found.proof is not None, "what has no manifest is not accepted"
    console.out(f"{found.digest}  {found.files} files  {found.proof.told}")


def promote(
    reference: Reference,
    alias: Alias = "champion",
    expected: Expected = None,
    because: Because = "promoted by hand",
    as_json: AsJson = False,
    registry: Where = None,
) -> None:
    """Point an alias at a version; refused if somebody else moves it at the same time."""
    with opened(registry) as source:
        version = source.resolve(reference)
        before = meant(source.alias(version.name, alias), expected)
        source.move(version, alias, expected=before, evidence=because)
    _moved(version.name, alias, before, version.digest, as_json)


def rollback(
    name: Model,
    alias: Alias = "champion",
    because: Because = "rolled back by hand",
    as_json: AsJson = False,
    registry: Where = None,
) -> None:
    """Point an alias back at the version that it meant before; again, further back."""
    with opened(registry) as source:
        before = source.resolve(f"{name}@{alias}").digest
        version = source.rollback(name, alias, evidence=because)
    _moved(name, alias, before, version.digest, as_json)


def _moved(name: str, alias: str, before: str | None, now: str, as_json: bool) -> None:
    from optpipe import console

    if as_json:
        return console.emit({"name": name, "alias": alias, "from": before, "to": now})
    console.out(f"{name}@{alias}: {now}" + (f" (was {before})" if before and before != now else ""))
