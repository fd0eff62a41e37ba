"""`optpipe report`: a run's report again, from its records, also as CI systems want it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from optpipe.cli.shared import AsJson, github_file

if TYPE_CHECKING:
    from optpipe.gate import Gated
    from optpipe.report.data import ReportData

RunPath = Annotated[Path, typer.Argument(help="A run folder, e.g. artifacts/latest.")]
Junit = Annotated[Path | None, typer.Option("--junit", help="Write every check as JUnit XML.")]
Comment = Annotated[Path | None, typer.Option("--comment", help="Write a comment for a pull request, to be updated.")]
GitHub = Annotated[
    bool, typer.Option("--github", help="Write the step's summary and outputs, and annotate the recipe's lines.")
]


def report(
    run: RunPath = Path("artifacts/latest"),
    junit: Junit = None,
    comment: Comment = None,
    github: GitHub = False,
    as_json: AsJson = False,
) -> None:
    """Write report.html and report.md of a run anew, and show the latter."""
    from optpipe import console
    from optpipe.gate import read_gated
    from optpipe.report import ci
    from optpipe.report.data import read
    from optpipe.report.markdown import markdown
    from optpipe.report.page import html
    from optpipe.rundir import write_atomic

    data, gated = read(run), read_gated(run)
    text = markdown(data)
    write_atomic(run / "report.md", text.encode())
    write_atomic(run / "report.html", html(data).encode())
    whole = with_gate(text, gated)
    if junit is not None:
        write_atomic(junit, ci.junit(data, gated.checks if gated else ()).encode())
    if comment is not None:
        write_atomic(comment, ci.comment(whole, data.name).encode())
    if github:
        to_github(run, data, whole)
    if as_json:
        console.emit(
            {"html": str(run / "report.html"), "markdown": str(run / "report.md"), "verdict": data.verdict}
        )
    elif not github:
        console.out(whole)


def with_gate(text: str, gated: Gated | None) -> str:
    """The report, below how the run did against what is published, where a gate was held: that decides a merge."""
    from optpipe.cli.compare import told, verdict_of

    return text if gated is None else f"## Gate: {told(gated, verdict_of(gated))}\n{text}"


def to_github(run: Path, data: ReportData, text: str) -> None:
    """Append to the files that GitHub names for a step's summary and outputs; annotations go to stdout."""
    from optpipe import console
    from optpipe.bundle import MANIFEST
    from optpipe.report import ci
    from optpipe.rundir import digest_file

    bundle = run / "package"
    digest = digest_file(bundle / MANIFEST) if (bundle / MANIFEST).is_file() else None
    outputs = ci.outputs(data, digest, str(bundle) if digest else None)
    github_file("GITHUB_STEP_SUMMARY", ci.cut(text, ci.SUMMARY_LIMIT))
    github_file("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in outputs.items()))
    for notice in ci.notices(data, places(run, data)):
        console.out(str(notice))


def places(run: Path, data: ReportData) -> dict[str, str]:
    """Each checkpoint's place in the recipe, where the recipe is still there."""
    from optpipe.recipe.places import dotted_place
    from optpipe.recipe.tree import compose
    from optpipe.rundir import read_json

    recipe = Path(str(read_json(run / "run.json").get("recipe_path", "")))
    if not recipe.is_file():
        return {}
    tree = compose(recipe)
    return {name: dotted_place(tree, f"checkpoints.{name}") for name in data.recipe.get("checkpoints", {})}
