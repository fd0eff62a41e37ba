"""The command line: parse, call, print; errors become exit codes here and nowhere else."""

from __future__ import annotations

import os
import sys
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from optpipe.errors import OptpipeError

ISSUES = "https://github.com/optpipe/optpipe/issues"


def main() -> None:
    """The `optpipe` command."""
    sys.excepthook = bug
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; its exit code. A user's or a backend's mistake is a message, never a traceback."""
    import typer

    from optpipe.cli.app import app
    from optpipe.errors import Interrupted, OptpipeError, of_system

    try:
        result = app(arguments, standalone_mode=False, prog_name="optpipe")
        return result if isinstance(result, int) else 0
    except OptpipeError as error:
        return told(error, arguments)
    except KeyboardInterrupt:
        return told(Interrupted("interrupted; the next build goes on where this one stopped"), arguments)
    except BrokenPipeError:
        sys.stderr.close()
        return 0
    except OSError as error:
        if (refused := of_system(error)) is None:
            raise
        return told(refused, arguments)
    except typer.TyperException as error:
        return misused(error, arguments)
    except typer.Abort:
        return told(Interrupted("interrupted"), arguments)


def misused(error: Exception, arguments: list[str]) -> int:
    """A command line that cannot be read: what is wrong with it and where help is; exit 2."""
    from optpipe.console import say
    from optpipe.errors import InputError

    text = getattr(error, "format_message", error.__str__)()
    if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help text
        say(text)
        return 2
    context = getattr(error, "ctx", None)
    hint = f"`{context.command_path if context else 'optpipe'} --help` shows what it takes"
    return told(InputError(text, hint=hint), arguments)


def told(error: OptpipeError, arguments: list[str]) -> int:
    """Say what is wrong; with `--json` as a document too, behind what is known all the same. The exit code."""
    from optpipe.console import emit, say
    from optpipe.errors import InputProblems

    say(str(error) if error.exit_code == 130 else f"error: {error}")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        annotate(error)
    if "--json" in arguments:
        about = {"exit_code": error.exit_code, "place": error.place, "message": error.message, "hint": error.hint}
        several = error.problems if isinstance(error, InputProblems) else ()
        problems = {"problems": [vars(problem) for problem in several]} if several else {}
        emit({**error.document, "error": about | problems})
    return error.exit_code


def annotate(error: OptpipeError) -> None:
    """The same at the lines of the recipe, as GitHub shows it in a pull request."""
    from optpipe.console import say
    from optpipe.errors import InputProblems, Problem
    from optpipe.report.ci import annotation

    problems = error.problems if isinstance(error, InputProblems) else ()
    for problem in problems or (Problem(error.place or "", error.message, error.hint),):
        say(str(annotation(problem)))


def bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What none of the errors above is: a fault of optpipe, told with all that mends it; Python exits 1."""
    from optpipe import __version__

    sys.__excepthook__(kind, error, trace)
    sys.stderr.write(
        f"error: this is a bug of optpipe {__version__}, not of your recipe\n"
        f"hint: report it with the lines above: {ISSUES}\n"
    )
    if "--json" in sys.argv:
        from optpipe.console import emit

        told = f"a bug of optpipe: {kind.__name__}: {error}"
        emit({"error": {"exit_code": 1, "place": None, "message": told, "hint": f"report it: {ISSUES}"}})
