"""`optpipe check`: can a checkpoint be served here, by which engine, else why not and what is nearest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from optpipe.cli.shared import DEFAULT_ARTIFACTS, Artifacts, AsJson, HardwareName, Where

if TYPE_CHECKING:
    from optpipe.model.sources import Source
    from optpipe.stages.check import Servable


def check(
    reference: Annotated[
        str, typer.Argument(help="A model's or bundle's folder, name@alias, or hf:owner/name@revision.")
    ],
    hardware: HardwareName = None,
    artifacts: Artifacts = DEFAULT_ARTIFACTS,
    registry: Where = None,
    as_json: AsJson = False,
) -> None:
    """Say which engine serves a checkpoint on this machine; exit 3 if none does, 2 if none does anywhere."""
    from optpipe import console
    from optpipe.model import hardware as machines
    from optpipe.model.look import look
    from optpipe.rundir import optpipe_home
    from optpipe.stages.check import check as check_

    machine = machines.named(hardware) if hardware else machines.this_machine()
    source, target = named(reference, registry or str(artifacts / "registry"))
    facts = look(source, reference, optpipe_home(), console.say, trust_remote_code=True)
    found = check_(facts, machine, target, {} if hardware else releases())
    if as_json:
        console.emit({"servable": found.by is not None, "by": found.by, **vars(found)})
    else:
        show(found)
    if found.by is None:
        raise typer.Exit(3 if found.elsewhere else 2)


def releases() -> dict[str, str]:
    """{engine: version} of engines that optpipe does not install and that are found on this machine."""
    from optpipe.backends.engines import ENGINES
    from optpipe.toolchains import ON_PATH
    from optpipe.toolchains.found import release_of

    found = {name: release_of(name, ENGINES[name].PACKAGES[0], {}).version for name in ON_PATH}
    return {name: version for name, version in found.items() if version}


def named(reference: str, registry: str) -> tuple[Source, dict[str, Any]]:
    """What a reference stands for, and the engine settings that come with it."""
    from optpipe.backends import registries
    from optpipe.model import sources
    from optpipe.stages.check import settings_of

    plain = reference.removeprefix("registry:")
    if not Path(reference).exists() and ":" not in plain.partition("@")[0] and "/" not in plain.partition("@")[0]:
        source_of = registries.at(registry)
        folder = source_of.local(source_of.resolve(plain))
        return sources.Folder(folder), settings_of(folder)
    source = sources.parse(reference, place="REFERENCE")
    return source, settings_of(source.path) if isinstance(source, sources.Folder) else {}


def show(found: Servable) -> None:
    """The answer for people: the engine, or why none, every reason with what is nearest."""
    from optpipe.cli.shared import finding_lines
    from optpipe.console import out

    served_by = f"served by {found.by}{', but slowly' if found.slow else ''}"
    answer = served_by if found.by else "no engine serves it"
    out(f"{found.model} ({found.stored_as}) on {found.hardware}: {answer}")
    for served in found.engines:
        out(f"\n{served.engine}: {served.outcome}")
        for finding in served.findings:
            for line in finding_lines(finding) if finding.outcome != "ok" else ():
                out(f"  {line}")
    if not found.by and found.elsewhere:
        out(f"\nwhere the table says that it runs: {'; '.join(found.elsewhere)}")
