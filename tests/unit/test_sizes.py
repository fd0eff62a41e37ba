"""Files and functions stay short enough to be read at one go: what CONTRIBUTING's reader is promised."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "optpipe"
FILE, FUNCTION = 300, 60


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, (node.end_lineno or node.lineno) - node.lineno + 1


def test_no_file_is_longer_than_three_hundred_lines() -> None:
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in PACKAGE.rglob("*.py")}
    assert lengths
    assert {str(path.relative_to(PACKAGE)): n for path, n in lengths.items() if n > FILE} == {}


def test_no_function_is_longer_than_sixty_lines() -> None:
    found = {f"{path.name}:{name}": n for path in PACKAGE.rglob("*.py") for name, n in functions(path)}
    assert {name: n for name, n in found.items() if n > FUNCTION} == {}
