"""docs/adding-an-engine.md is what works: its code, added to a copy of optpipe, builds and serves."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.place import INT8, ROOT, Place

PAGE = ROOT / "docs" / "adding-an-engine.md"
TABLE = {
    "import onnxruntime, ": "import onnxruntime, small, ",
    "Target = ": "Target = small.Small | ",
    '"onnxruntime": onnxruntime, ': '"onnxruntime": onnxruntime, "small": small, ',
}
"""What section 2 of the page says to do to the table of engines."""


class Grown(Place):
    """A place that builds with its own copy of optpipe."""

    def environment(self) -> dict[str, str]:
        paths = [str(self.root / "package"), str(ROOT)]
        return super().environment() | {"PYTHONPATH": os.pathsep.join(paths)}


@pytest.fixture
def grown(tmp_path: Path) -> Place:
    place = Grown.new(tmp_path / "place")
    shutil.copytree(ROOT / "optpipe", place.root / "package" / "optpipe", ignore=shutil.ignore_patterns("__pycache__"))
    engines = place.root / "package" / "optpipe" / "backends" / "engines"
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert code is not None
    (engines / "small.py").write_text(code[1])
    table = (engines / "__init__.py").read_text()
    for old, new in TABLE.items():
        assert table.count(old) == 1, f"{old!r} is not once in the table of engines"
        table = table.replace(old, new)
    (engines / "__init__.py").write_text(table)
    place.python("small")
    place.engines.append("small")
    place.recipe["targets"]["small"] = {"engine": "small", "max_model_len": 512}
    place.recipe["checkpoints"] = {"int8": INT8}
    return place


def test_the_engine_of_the_page_is_planned_judged_served_and_ranked(grown: Place) -> None:
    said = grown.run("plan", "recipe.yaml")
    assert said.code == 0 and "nothing is known of small" in said.out + said.err
    done = grown.build()
    assert done.code == 0, done.err
    found: dict[str, Any] = done.said["candidates"]
    for name in ("base@small", "int8@small", "int8@vllm"):
        assert found[name]["status"] == "passed" and found[name]["output_tokens_per_s"], done.reasons(name)
    wrong = grown.root / "recipe.yaml"
    grown.recipe["targets"]["small"]["speed"] = "high"
    assert grown.run("plan", str(wrong.name)).code == 2, "its options are checked like any engine's"


def test_where_it_is_absent_it_is_skipped(grown: Place) -> None:
    (grown.root / "bin" / "small").unlink()
    done = grown.build()
    assert (done.code, done.status("int8@small"), done.status("int8@vllm")) == (0, "skipped", "passed")
    assert "small is absent" in done.reasons("int8@small")
