"""`optpipe doctor`: what this machine has, what is missing, the command that mends it."""

from __future__ import annotations

import typer

from optpipe.cli.shared import AsJson


def doctor(as_json: AsJson = False) -> None:
    """Say what this machine has of what optpipe needs; exit 3 if something is missing."""
    from optpipe import console
    from optpipe.toolchains.doctor import doctor as look

    findings = look()
    missing = [finding.name for finding in findings if finding.verdict == "missing"]
    if as_json:
        console.emit({"ok": not missing, "missing": missing, "checks": findings})
    else:
        wide = max(len(finding.name) for finding in findings)
        for finding in findings:
            console.out(
                f"{finding.verdict:<8}  {finding.name:<{wide}}  {finding.found}  [{finding.needed_for}]"
            )
            if finding.mend:
                console.out(f"{'':<8}  {'':<{wide}}  -> {finding.mend}")
    if missing:
        raise typer.Exit(3)
