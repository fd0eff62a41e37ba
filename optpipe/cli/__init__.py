"""The command line: parse, call, print; errors become exit codes here and nowhere else."""

from __future__ import annotations

import sys


def main() -> None:
    """The `optpipe` command."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; its exit code. A user's or a backend's mistake is a message, never a traceback."""
    import click

    from optpipe.cli.app import app
    from optpipe.errors import OptpipeError

    try:
        result = app(arguments, standalone_mode=False, prog_name="optpipe")
        return result if isinstance(result, int) else 0
    except OptpipeError as error:
        return told(str(error), error.exit_code)
    except KeyboardInterrupt:
        return told("interrupted; the next build goes on where this one stopped", 130)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except click.ClickException as error:
        error.show()
        return 2
    except click.exceptions.Abort:
        return told("interrupted", 130)


def told(message: str, code: int) -> int:
    from optpipe.console import say

    say(message if code == 130 else f"error: {message}")
    return code
