"""The command line: parse, call, print; errors become exit codes here and nowhere else."""

from __future__ import annotations

import sys
from types import TracebackType

ISSUES = "https://github.com/optpipe/optpipe/issues"


def main() -> None:
    """The `optpipe` command."""
    sys.excepthook = bug
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; its exit code. A user's or a backend's mistake is a message, never a traceback."""
    import typer

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
    except typer.TyperException as error:
        return misused(error)
    except typer.Abort:
        return told("interrupted", 130)


def misused(error: Exception) -> int:
    """A command line that cannot be read: what is wrong with it and where help is; exit 2."""
    from optpipe.console import say

    text = getattr(error, "format_message", error.__str__)()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
        say(text)
        return 2
    context = getattr(error, "ctx", None)
    return told(f"{text}\nhint: `{context.command_path if context else 'optpipe'} --help` shows what it takes", 2)


def told(message: str, code: int) -> int:
    from optpipe.console import say

    say(message if code == 130 else f"error: {message}")
    return code


def bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What none of the errors above is: a fault of optpipe, told with all that mends it; Python exits 1."""
    from optpipe import __version__

    sys.__excepthook__(kind, error, trace)
    sys.stderr.write(
        f"error: this is a bug of optpipe {__version__}, not of your recipe\n"
        f"hint: report it with the lines above: {ISSUES}\n"
    )
