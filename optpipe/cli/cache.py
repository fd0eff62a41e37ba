"""`optpipe cache`: what is kept of jobs, and how to let go of it."""

from __future__ import annotations

from typing import Annotated

import typer

from optpipe.cli.shared import DEFAULT_ARTIFACTS, Artifacts, AsJson

cache_app = typer.Typer(help="What is kept of jobs.", no_args_is_help=True, rich_markup_mode=None)


@cache_app.command()
def gc(
    max_size: Annotated[str, typer.Option(help="Bytes that all of it may take, e.g. 20G, 500M, 0.")],
    artifacts: Artifacts = DEFAULT_ARTIFACTS,
    as_json: AsJson = False,
) -> None:
    """Drop files of jobs and what engines compiled, unused longest first, until the rest fits; records stay."""
    from optpipe import console
    from optpipe.keep import collect, parse_size
    from optpipe.rundir import JobStore

    freed = collect(JobStore(artifacts.absolute() / "cache"), parse_size(max_size))
    if as_json:
        console.emit({"dropped": len(freed), "bytes": sum(freed.values())})
    else:
        code = sum(name.startswith("compiled ") for name in freed)
        told = f"the files of {len(freed) - code} jobs and the compiled code of {code} engines"
        console.out(f"dropped {told}, {sum(freed.values()) / 1e6:,.1f} MB")
