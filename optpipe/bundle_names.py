"""Names of files that mean the same on every file system, and nothing outside the folder they are in."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from optpipe.errors import Problem


def name_problems(paths: Iterable[str], taken: Iterable[str]) -> list[Problem]:
    """Names that leave the folder, or that mean another file on another file system; `taken` are none of theirs."""
    paths = list(paths)
    problems = [Problem(repr(path)[1:-1], reason) for path in paths if (reason := unsafe(path))]
    files = set(taken)
    spelled = {name: name for name in files}
    for path in paths:
        others = [spelled.setdefault(folded, here) for folded, here in _steps(path)]
        clash = [other for other, (_, here) in zip(others, _steps(path)) if other != here]
        if clash:
            problems.append(Problem(path, f"is the same name as {clash[0]!r} on some file systems"))
        elif path in files:
            problems.append(Problem(path, "listed twice, or not to be listed"))
        files.add(path)
    return problems


def _steps(path: str) -> list[tuple[str, str]]:
    """Each folder on the way to a file, with a slash, and the file: folded, and as spelled."""
    parts = path.split("/")
    steps = ["/".join(parts[:depth]) for depth in range(1, len(parts))]
    named = [(step, step + "/") for step in steps] + [(path, path)]
    return [(unicodedata.normalize("NFC", step).casefold(), here) for step, here in named]


def unsafe(path: str) -> str | None:
    """Why a relative path is refused, or None."""
    parts = path.split("/")
    if path.startswith(("/", "~")) or ":" in path or "\\" in path:
        return "is an absolute path, or one on another system"
    if any(part in ("", ".", "..") for part in parts):
        return "leaves the bundle or names a folder twice"
    if any(part != part.strip() or part.endswith(".") for part in parts):
        return "begins or ends with a space, or ends with a dot"
    if not path.isprintable() or path != unicodedata.normalize("NFC", path):
        return "holds characters that cannot be seen or are written in more than one way"
    return None
