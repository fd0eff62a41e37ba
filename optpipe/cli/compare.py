"""`optpipe compare | gate`: two versions side by side, and a build against a published one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from optpipe.cli.registry import opened
from optpipe.cli.shared import AsJson, Where, github_file

if TYPE_CHECKING:
    from optpipe.gate import Against, Gated
    from optpipe.report.side import Side

WHAT = "A run folder, a bundle's folder, or name@alias; RUN:CANDIDATE for another than the winner."
First = Annotated[str, typer.Argument(metavar="A", help=WHAT, show_default=False)]
Second = Annotated[str, typer.Argument(metavar="B", help=WHAT, show_default=False)]
Changed = Annotated[
    Literal["model", "engine", "driver", "hardware"] | None,
    typer.Option("--changed", help="What is under test, and so may differ."),
]
EXIT_CODES = {"passed": 0, "inconclusive": 7}
REGRESSED = 5


def compare(a: First, b: Second, changed: Changed = None, as_json: AsJson = False, registry: Where = None) -> None:
    """Put two versions side by side from their records: what is better, worse, the same, or not comparable."""
    from optpipe import console
    from optpipe.records import to_json
    from optpipe.report.compare import compare as compare_
    from optpipe.report.compare import markdown

    found = compare_(side_of(a, registry), side_of(b, registry), changed)
    if as_json:
        console.emit(to_json(found))
    else:
        console.out(markdown(found))


def gate(
    run: Annotated[Path, typer.Argument(help="A run folder, e.g. artifacts/latest.", show_default=False)],
    against: Annotated[str, typer.Option("--against", metavar="REFERENCE", help="A version; @alias of its own model.")],
    changed: Changed = None,
    threshold: Annotated[float, typer.Option(help="Per cent that a key serving figure may be worse by.")] = 10.0,
    recorded: Annotated[bool, typer.Option("--recorded", help="From the records of both; measure nothing.")] = False,
    github: Annotated[bool, typer.Option("--github", help="Write the step's outputs of GitHub Actions.")] = False,
    allow_missing: Annotated[bool, typer.Option(help="Pass where that version is not there yet.")] = False,
    as_json: AsJson = False,
    registry: Where = None,
) -> None:
    """Hold a build against a published version: exit 5 on a regression, 7 where it cannot tell."""
    from optpipe import console
    from optpipe.errors import InputError, NotPublished
    from optpipe.gate import gate as gate_
    from optpipe.gate import require_record
    from optpipe.records import to_json

    if not 0 < threshold < 100:
        hint = "10 is what most teams block at"
        raise InputError(f"{threshold:g} is not between 0 and 100", place="--threshold", hint=hint)
    wanted = own(against, run)
    require_record(run)
    try:
        version = published(wanted, registry)
    except NotPublished as error:
        if not allow_missing:
            error.hint = f"{error.hint or ''}; --allow-missing passes the first version".lstrip("; ")
            raise
        console.say(f"{error}")
        if github:
            github_file("GITHUB_OUTPUT", "gate=passed\nchampion=\n")
        return console.emit({"verdict": "passed", "against": None}) if as_json else console.out("passed: nothing there")
    found = gate_(run, version, changed, threshold, not recorded)
    verdict = verdict_of(found)
    if github:
        github_file("GITHUB_OUTPUT", f"gate={verdict}\nchampion={found.digest}\n")
    if as_json:
        console.emit({"verdict": verdict, **to_json(found)})
    else:
        console.out(told(found, verdict))
    raise typer.Exit(EXIT_CODES.get(found.status, REGRESSED))


def verdict_of(found: Gated) -> str:
    """The word of `gate --json`."""
    return found.status if found.status in EXIT_CODES else "regressed"


def told(found: Gated, verdict: str) -> str:
    """The verdict, each check, and the figures of both."""
    from optpipe.report.compare import markdown

    how = "measured by turns on this machine" if found.measured else "from the records of each"
    lines = [f"{verdict}: {found.candidate or found.run} against {found.against} ({how})", ""]
    lines += [f"- {check.status}: {check.reason}" for check in found.checks]
    return "\n".join(lines) + ("\n\n" + markdown(found.comparison) if found.comparison else "")


def side_of(reference: str, registry: str | None) -> Side:
    """The records that a reference means."""
    from optpipe.errors import InputError
    from optpipe.report.side import side

    path, colon, candidate = reference.partition(":") if not Path(reference).exists() else (reference, "", "")
    if colon and not candidate:
        raise InputError("names no candidate after the colon", place=reference, hint="RUN, or RUN:CANDIDATE")
    if Path(path).is_dir():
        return side(Path(path), path, candidate or None)
    found = published(reference, registry)
    return side(found.folder, reference)


def own(reference: str, run: Path) -> str:
    """`@alias` means the model that the run is of; a run that is not there ends here, whatever `reference` is."""
    from optpipe.report.side import read_either

    name = read_either(run).name
    return f"{name}{reference}" if reference.startswith("@") else reference


def published(reference: str, registry: str | None) -> Against:
    """A version of a registry, or a bundle's folder."""
    from optpipe.bundle import MANIFEST, bundle_at
    from optpipe.gate import Against
    from optpipe.rundir import digest_file

    if (folder := bundle_at(Path(reference))) is not None:
        return Against(reference, digest_file(folder / MANIFEST), folder)
    with opened(registry) as source:
        version = source.resolve(reference)
        return Against(reference, version.digest, source.local(version))
