"""`optpipe plan` on the shipped recipes as a user runs it: their models are fetched as they say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optpipe.recipe.load import load
from optpipe.records import to_json
from optpipe.stages.inspect import inspect
from tests.real.conftest import optpipe
from tests.shipped import MODELS

pytestmark = pytest.mark.real

ROOT = Path(__file__).parents[2]
RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_plans(path: Path, tmp_path: Path) -> None:
    recipe = load(path).recipe
    if recipe.model.source.startswith("hf:"):
        pytest.skip(f"{path.name} reads headers from the hub, which tests do not ask")
    done = optpipe("plan", str(path), "--json", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert len(plan["feasible"]) == (1 + len(recipe.checkpoints)) * len(recipe.targets) and plan["refused"] == []


def test_the_facts_that_unit_tests_plan_with_are_those_of_the_real_model() -> None:
    recipe = load(ROOT / "recipes" / "demo.yaml").recipe
    facts = inspect(recipe, ROOT / "recipes", lambda text: None)
    assert to_json(facts) == to_json(MODELS[recipe.model.source])
