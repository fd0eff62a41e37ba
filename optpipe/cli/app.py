"""The commands by name. Bodies import what they need, so that `--help` stays light."""

from __future__ import annotations

from typing import Annotated

import typer

from optpipe.cli import registry
from optpipe.cli.build import build
from optpipe.cli.cache import cache_app
from optpipe.cli.check import check
from optpipe.cli.compare import compare, gate
from optpipe.cli.deploy import deploy
from optpipe.cli.doctor import doctor
from optpipe.cli.init import init
from optpipe.cli.plan import plan
from optpipe.cli.report import report
from optpipe.cli.serve import serve
from optpipe.cli.toolchain import toolchain_app

app = typer.Typer(
    help="From a base language model to the best deployable artifact, with evidence.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def show_version(asked: bool) -> None:
    if asked:
        from optpipe import __version__
        from optpipe.console import out

        out(f"optpipe {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Quantize, judge, serve, tune and publish language models."""


app.command()(init)
app.command()(plan)
app.command()(check)
app.command()(build)
app.command()(report)
app.command()(compare)
app.command()(gate)
app.command()(deploy)
app.command()(serve)
app.command("publish")(registry.publish)
app.command("pull")(registry.pull)
app.command("verify")(registry.verify)
app.command("list")(registry.list_)
app.command("history")(registry.history)
app.command("promote")(registry.promote)
app.command("rollback")(registry.rollback)
app.command()(doctor)
app.add_typer(toolchain_app, name="toolchain")
app.add_typer(cache_app, name="cache")
