"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RecipePath = Annotated[Path, typer.Argument(help="The recipe's YAML file.", show_default=False)]
Artifacts = Annotated[
    Path, typer.Option("--artifacts", help="Where runs, cache and the default registry lie.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the recipe, e.g. --set tune.trials=8."
    ),
]
HardwareName = Annotated[
    str | None,
    typer.Option("--hardware", help="Plan for another machine: its name (h100, h100x8, ...) or a YAML file."),
]
DEFAULT_ARTIFACTS = Path("artifacts")
