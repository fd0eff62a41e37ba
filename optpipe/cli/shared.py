"""Options that several commands have."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from optpipe.model.compat import Finding

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
Where = Annotated[
    str | None,
    typer.Option("--registry", metavar="WHERE", help="The registry's folder or URL; by default artifacts/registry."),
]
Key = Annotated[
    Path | None,
    typer.Option("--key", metavar="FILE", help="Trust this public key alone, not the policy's signers."),
]
Identity = Annotated[
    str | None,
    typer.Option("--identity", metavar="WHO", help="Trust this identity of Sigstore's alone, with its --issuer."),
]
Issuer = Annotated[str | None, typer.Option("--issuer", metavar="URL", help="Who vouches for the --identity.")]
AllowUnsigned = Annotated[
    bool, typer.Option("--allow-unsigned", help="Take what nobody signed who is trusted here, with a warning.")
]
DEFAULT_ARTIFACTS = Path("artifacts")


def end_like_ctrl_c() -> None:
    """SIGTERM, as batch systems and container runtimes send it, ends a command as Ctrl-C does, with all it started."""
    signal.signal(signal.SIGTERM, interrupted)


def interrupted(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def finding_lines(finding: Finding) -> Iterator[str]:
    """One check of a candidate: outcome, what was looked at, and what follows where it is not fine."""
    yield f"{finding.outcome:<5} {finding.check}: {finding.value}"
    if finding.reason:
        source = f" ({finding.source})" if finding.source else ""
        yield f"{'':<5} {finding.reason}{source}"
    if finding.nearest:
        yield f"{'':<5} nearest that works: {finding.nearest}"


def github_file(variable: str, text: str) -> None:
    """Add to the file that a variable of a job on GitHub names; outside of a job there is none."""
    from optpipe.errors import EnvironmentMissing, InputError

    path = os.environ.get(variable)
    if not path:
        hint = "--github is for a step of GitHub Actions; everything else works without it"
        raise InputError("the variable is not set", place=variable, hint=hint)
    try:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        told = f"cannot write to {path}: {error.strerror}"
        raise EnvironmentMissing(told, place=variable, hint="it names the file that GitHub gave the step") from None
