"""`optpipe plan`: what a build would do, what cannot work and why, in seconds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from optpipe.cli.shared import DEFAULT_ARTIFACTS, AsJson, HardwareName, RecipePath, Set, Where

if TYPE_CHECKING:
    from optpipe.records import Plan
    from optpipe.stages.plan import Explained


def plan(
    recipe: RecipePath,
    hardware: HardwareName = None,
    overrides: Set = None,
    check: Annotated[bool, typer.Option("--check", help="Validate the recipe alone; nothing is fetched.")] = False,
    why: Annotated[
        str | None,
        typer.Option("--why", metavar="CANDIDATE", help="Every check that was made for one candidate."),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option("--since", metavar="REFERENCE", help="Say what changed since this version (@latest) was built."),
    ] = None,
    registry: Where = None,
    github: Annotated[bool, typer.Option("--github", help="Write the step's outputs of GitHub Actions.")] = False,
    as_json: AsJson = False,
) -> None:
    """Expand a recipe: every candidate feasible with estimates, or refused with the reason."""
    from optpipe import console
    from optpipe.model import hardware as machines
    from optpipe.recipe.load import load
    from optpipe.records import to_json
    from optpipe.room import needs, shortage
    from optpipe.serving import releases, toolchains
    from optpipe.stages.inputs import inputs
    from optpipe.stages.inspect import inspect
    from optpipe.stages.plan import explain, require_feasible
    from optpipe.stages.plan import plan as plan_
    from optpipe.stages.resolve import check_local_texts

    loaded = load(recipe, tuple(overrides or ()), sources=not check)
    machine = machines.named(hardware) if hardware else machines.this_machine()
    if check:
        count = len(loaded.recipe.checkpoints)
        console.say(f"{recipe}: valid, {count} checkpoints")
        return console.emit({"valid": True, "checkpoints": count}) if as_json else None
    with loaded.places():
        facts = inspect(loaded.recipe, recipe.parent, console.say, DEFAULT_ARTIFACTS / "registry")
        check_local_texts(loaded.recipe, recipe.parent, console.say)
        if why is not None:
            explained = explain(loaded.recipe, facts, machine, why, releases(loaded.recipe, machine))
            return console.emit(explained) if as_json else show_findings(explained)
        found = plan_(loaded.recipe, facts, machine, releases(loaded.recipe, machine))
        found = replace(found, inputs=inputs(loaded.recipe, facts, recipe.parent))
    require_feasible(found)
    news = None if since is None else changes(found, of_recipe(since, loaded.recipe.name), registry)
    if github:
        changed_outputs(loaded.recipe.name, found, news)
    if as_json:
        console.emit(to_json(found) | ({} if news is None else {"changed": news, "unchanged": not news}))
    else:
        show(found)
        if news is not None:
            console.out(f"since {since}: " + (f"changed: {', '.join(news)}" if news else "nothing changed"))
    wanted = needs(found, DEFAULT_ARTIFACTS, toolchains(loaded.recipe, machine), loaded.recipe.toolchains)
    if not hardware and (lacking := shortage(wanted)):
        console.say(f"warning: `optpipe build` would refuse: {lacking}")


def of_recipe(reference: str, name: str) -> str:
    """`@alias` means the recipe's own model."""
    return f"{name}{reference}" if reference.startswith("@") else reference


def changed_outputs(name: str, found: Plan, news: list[str] | None) -> None:
    """`name`, `changed` (true or false), `what` changed, and `toolchains` (a key for their cache)."""
    from optpipe.cli.shared import github_file

    told = {"name": name, "changed": "false" if news == [] else "true", "what": " ".join(news or ())}
    told["toolchains"] = str(found.inputs["toolchains"]).removeprefix("sha256:")
    github_file("GITHUB_OUTPUT", "".join(f"{key}={value}\n" for key, value in told.items()))


def changes(found: Plan, since: str, registry: str | None) -> list[str]:
    """What is not as it was when the version `since` was built; everything where it is not there or cannot be read."""
    from optpipe import console
    from optpipe.cli.registry import opened
    from optpipe.errors import OptpipeError
    from optpipe.stages.inputs import changed

    try:
        with opened(registry) as source:
            about = json.loads(source.document(source.resolve(since), "optpipe.json"))
    except OptpipeError as error:  # a pull request of a fork may not read the registry, and is planned all the same
        console.say(f"note: {error}")
        return list(found.inputs)
    return list(changed(found.inputs, about.get("inputs", {})))


def show(found: Plan) -> None:
    """The plan as a table for people."""
    from optpipe.console import out, time_text
    from optpipe.model.memory import show as size

    out(f"{found.model} on {found.hardware.name} ({found.hardware.gpu or found.hardware.cpu})")
    out(f"\n{'candidate':<22} {'bytes':>9} {'bits/weight':>11} {'memory':>9} {'time':>12}   (estimated)")
    for planned in found.feasible:
        name = planned.candidate.name
        cells = f"{size(planned.bytes.value):>9} {planned.bits_per_weight.value:>11.2f}"
        rest = f"{size(planned.memory_bytes.value):>9} {time_text(planned.seconds.value):>12}"
        out(f"{name:<22} {cells} {rest}")
        for note in planned.notes:
            out(f"{'':<22} note: {note}")
    for refusal in found.refused:
        out(f"{refusal.candidate:<22} no: {refusal.reason}")
        if refusal.nearest:
            out(f"{'':<22} nearest that works: {refusal.nearest}")
    for warning in found.warnings:
        out(f"note: {warning}")
    out(f"\nabout {time_text(found.seconds.value)} and {size(found.disk_bytes.value)} of disk (estimated)")


def show_findings(found: Explained) -> None:
    """Every check of one candidate, for people."""
    from optpipe.cli.shared import finding_lines
    from optpipe.console import out

    out(f"{found.candidate} on {found.hardware}: {'feasible' if found.feasible else 'not feasible'}\n")
    for finding in found.findings:
        for line in finding_lines(finding):
            out(line)
