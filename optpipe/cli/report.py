"""`optpipe report`: a run's report again, from its records."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from optpipe.cli.shared import AsJson

RunPath = Annotated[Path, typer.Argument(help="A run folder, e.g. artifacts/latest.")]


def report(run: RunPath = Path("artifacts/latest"), as_json: AsJson = False) -> None:
    """Write report.html and report.md of a run anew, and show the latter."""
    from optpipe import console
    from optpipe.report.data import read
    from optpipe.report.markdown import markdown
    from optpipe.report.page import html
    from optpipe.rundir import write_atomic

    data = read(run)
    text = markdown(data)
    write_atomic(run / "report.md", text.encode())
    write_atomic(run / "report.html", html(data).encode())
    if as_json:
        console.emit(
            {"html": str(run / "report.html"), "markdown": str(run / "report.md"), "verdict": data.verdict}
        )
    else:
        console.out(text)
