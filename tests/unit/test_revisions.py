"""A kept result must not outlive the code that made it: a body's source changes only with its REVISION.

Where the results are the same, say so: pytest tests/unit/test_revisions.py --same-results "why"
"""

from __future__ import annotations

import ast
import hashlib
import json
from pathlib import Path

import pytest

from optpipe.worker import BODIES, load_body

ROOT = Path(__file__).parents[2]
KNOWN = ROOT / "tests" / "golden" / "revisions.json"
ROOMS = ("optpipe.backends", "optpipe.model")
"""Where code that makes results lives; records, errors and the worker only carry them."""


def module_file(name: str) -> Path | None:
    path = ROOT / Path(*name.split("."))
    found = [p for p in (path.with_suffix(".py"), path / "__init__.py") if p.is_file()]
    return found[0] if found else None


def closure(name: str, seen: set[str]) -> set[str]:
    """The module and every module of the rooms that it imports, at the top or inside a function."""
    path = module_file(name)
    if path is None or name in seen or not name.startswith(ROOMS):
        return seen
    seen.add(name)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                closure(alias.name, seen)
        if isinstance(node, ast.ImportFrom) and node.module:
            closure(node.module, seen)
            for alias in node.names:
                closure(f"{node.module}.{alias.name}", seen)
    return seen


def source_digest(kind: str) -> str:
    """SHA-256 of the code without comments, docstrings and layout: of what can change a result."""
    sha = hashlib.sha256()
    for name in sorted(closure(BODIES[kind], set())):
        path = module_file(name)
        assert path is not None
        sha.update(name.encode() + ast.dump(stripped(path)).encode())
    return sha.hexdigest()


def stripped(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            body[:] = [n for n in body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant))] or [
                ast.Pass()
            ]
    return tree


@pytest.mark.parametrize("kind", sorted(BODIES))
def test_source_changes_only_with_a_revision(kind: str, request: pytest.FixtureRequest) -> None:
    known = json.loads(KNOWN.read_text(encoding="utf-8")) if KNOWN.exists() else {}
    revision, source = load_body(kind).REVISION, source_digest(kind)
    before = known.get(kind, {})
    note = request.config.getoption("--same-results")
    if source != before.get("source") and (note or revision != before.get("revision")):
        known[kind] = {"revision": revision, "source": source, "note": note or "new revision"}
        if note or request.config.getoption("--update-golden"):
            KNOWN.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            return
    assert known.get(kind, {}).get("revision") == revision, f"{kind}: run pytest --update-golden on this test"
    assert before.get("source") == source, (
        f"the code behind {BODIES[kind]} changed: raise its REVISION, or say that results are the same: "
        "pytest tests/unit/test_revisions.py --same-results 'why'"
    )


def test_a_change_in_a_helper_of_a_body_is_seen() -> None:
    names = closure(BODIES["quantize"], set())
    assert "optpipe.backends.quantizers.llmcompressor_run" in names
    assert "optpipe.model.selectors" in names
