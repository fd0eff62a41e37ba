"""The README, and pages of the docs, say what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import readme
from benchmarks.document import RESULTS


@pytest.mark.parametrize("page", readme.PAGES, ids=lambda page: page.name)
def test_the_figures_are_those_of_the_results(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert readme.MARK.search(text), "no figure is marked"
    assert readme.filled(text) == text, "run: python -m benchmarks.readme"


@pytest.mark.parametrize("name", readme.SENTENCES)
def test_another_figure_gives_another_sentence(name: str) -> None:
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    changed = {key: value + 0.25 for key, value in result["figures"].items()}
    assert readme.SENTENCES[name](result | {"figures": changed}) != readme.SENTENCES[name](result)


def test_every_result_is_computed_from_its_raw_data() -> None:
    """--from-raw is what makes a committed figure checkable."""
    for name in readme.SENTENCES:
        assert (RESULTS / f"{name}.raw.json").is_file(), name
