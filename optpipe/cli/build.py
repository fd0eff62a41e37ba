"""`optpipe build`: a recipe through the whole line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optpipe.cli.shared import DEFAULT_ARTIFACTS, Artifacts, AsJson, RecipePath, Set, end_like_ctrl_c

if TYPE_CHECKING:
    from optpipe.build import Built

EXIT_CODES = {"published": 0, "selected": 0, "rejected": 5, "inconclusive": 7, "failed": 4}


Require = Annotated[
    list[str] | None,
    typer.Option(
        "--require-target",
        metavar="TARGET",
        help="End with 3 where this target's engine is absent; otherwise its candidates are skipped.",
    ),
]


def build(
    recipe: RecipePath,
    artifacts: Artifacts = DEFAULT_ARTIFACTS,
    overrides: Set = None,
    require: Require = None,
    as_json: AsJson = False,
    allow_commands: Annotated[
        bool,
        typer.Option("--allow-commands", help="Run the programs that the recipe names under tasks.commands."),
    ] = False,
) -> None:
    """Quantize, judge, serve, tune, choose, confirm, package and publish what a recipe describes."""
    from optpipe import console
    from optpipe.build import run_build
    from optpipe.errors import OptpipeError
    from optpipe.recipe.load import load
    from optpipe.summary import NOTHING

    end_like_ctrl_c()
    try:
        built = run_build(
            load(recipe, tuple(overrides or ())), artifacts, tuple(require or ()), allow_commands=allow_commands
        )
    except OptpipeError as error:
        error.document = error.document or dict(NOTHING)
        raise
    if as_json:
        console.emit(built.summary())
    else:
        show(built)
    raise typer.Exit(EXIT_CODES[built.verdict])


def show(built: Built) -> None:
    """The report for a terminal, and where the rest is."""
    from optpipe.console import out, say
    from optpipe.rundir import shown

    out(built.markdown)
    say(f"report: {shown(built.folder / 'report.html')}")
    for published in built.published:
        aliases = ", ".join(published.aliases)
        say(f"published: {published.name}@{published.digest[:19]} ({aliases}) in {shown(Path(published.location))}")
    if built.published:
        say(f"next: optpipe serve {built.published[0].name}@{built.published[0].aliases[-1]}")
