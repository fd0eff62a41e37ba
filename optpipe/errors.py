"""Every way optpipe ends, by cause; the exit code belongs to the class.

OptpipeError            1  a bug of ours (what the others are not)
+- InputError           2  a recipe, model, text or reference is wrong
|  +- NotPublished         a version or alias that is not there, or not yet
+- EnvironmentMissing   3  a toolchain, GPU, disk space, port is not there
+- BackendFailed        4  a quantizer, engine or load generator failed
+- GateFailed           5  nothing passed the gates, or a regression was found
+- PublishFailed        6  a registry refused or a bundle is not what it says
|  +- AliasMoved           somebody else moved the alias meanwhile
|  +- Unreachable          no connection to a registry's server
+- Inconclusive         7  more measuring would be needed to decide
+- Interrupted        130  the user stopped it
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any


class OptpipeError(Exception):
    """What a user is told: `place: message`, then `hint: ...` for the next step."""

    exit_code = 1

    def __init__(self, message: str, *, place: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.hint = hint
        self.document: dict[str, Any] = {}
        """What is known all the same: with `--json` it is printed, and the error with it."""

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return f"{text}\nhint: {self.hint}" if self.hint else text


class InputError(OptpipeError):
    exit_code = 2


class NotPublished(InputError):
    """No such model, version or alias in a registry that answered: the first version has nothing before it."""


class EnvironmentMissing(OptpipeError):
    exit_code = 3


class BackendFailed(OptpipeError):
    """A job ended without a result; a `transient` failure is tried again, a definite one is kept."""

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        place: str | None = None,
        hint: str | None = None,
        transient: bool = True,
        log: str | None = None,
    ) -> None:
        super().__init__(message, place=place, hint=hint)
        self.transient = transient
        self.log = log


class GateFailed(OptpipeError):
    exit_code = 5


class PublishFailed(OptpipeError):
    exit_code = 6


class AliasMoved(PublishFailed):
    """An alias means something else than it was expected to: somebody else was faster."""


class Unreachable(PublishFailed):
    """A registry's server to which no connection came about; where it is a source, an environment that lacks."""


class Inconclusive(OptpipeError):
    exit_code = 7


class Interrupted(OptpipeError):
    exit_code = 130


@dataclass(frozen=True)
class Problem:
    """One thing wrong in an input: several are collected and shown together."""

    place: str
    message: str
    hint: str | None = None

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}"
        return f"{text}\n  hint: {self.hint}" if self.hint else text


class InputProblems(InputError):
    """All the problems of one input at once, each with its place, value and hint."""

    def __init__(self, problems: tuple[Problem, ...]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


def did_you_mean(word: str, known: list[str]) -> str:
    """A hint that names the closest known word, else lists them."""
    from difflib import get_close_matches

    close = get_close_matches(word, known, n=1, cutoff=0.6)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(sorted(known))}"


WRONG_PATH = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP)
"""Of an OSError: what was named cannot be read or written as that."""
CLOSED = (errno.EACCES, errno.EPERM, errno.EROFS)
FULL = (errno.ENOSPC, errno.EDQUOT)


def of_system(error: OSError) -> OptpipeError | None:
    """What the operating system refused, for a user; None where it rather is a bug of ours."""
    place = None if error.filename is None else str(error.filename)
    told = error.strerror or str(error)
    if error.errno in WRONG_PATH:
        hint = "a file stands where a folder belongs, or the name cannot be used"
        return InputError(told, place=place, hint="name a file" if error.errno == errno.EISDIR else hint)
    if error.errno in CLOSED:
        return EnvironmentMissing(told, place=place, hint="name a place that this user may read and write")
    if error.errno in FULL:
        hint = "make room; `optpipe cache gc --max-size 0` drops all that can be made again"
        return EnvironmentMissing(told, place=place, hint=hint)
    return None
