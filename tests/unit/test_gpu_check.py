"""The check for a GPU: its recipe can be planned for one, and it never begins what it has no time for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from optpipe.model.hardware import named
from optpipe.recipe.load import load
from optpipe.stages.inspect import inspect
from optpipe.stages.plan import plan
from tests.models import tiny_llama

ROOT = Path(__file__).parents[2]


def test_every_candidate_of_its_recipe_is_feasible_on_the_gpu_that_it_is_for(tmp_path: Path) -> None:
    folder = tiny_llama(tmp_path / "model", hidden=256, vocab_size=320)
    recipe = load(ROOT / "gpu" / "recipe.yaml", (f"model.source={folder}",)).recipe
    facts = inspect(recipe, tmp_path, lambda text: None, tmp_path / "registry")
    made = plan(recipe, facts, named("h200"))
    assert {one.candidate.name for one in made.feasible} == {"base@vllm", "fp8@vllm", "gptq-w4@vllm"}


def test_without_time_every_stage_is_skipped_and_says_so(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gpu.check", "--dry-run", "--budget", "5", "--out", str(tmp_path / "made.json")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 7, done.stderr
    made = json.loads(done.stdout)
    assert made == json.loads((tmp_path / "made.json").read_text())
    assert {stage["status"] for stage in made["stages"].values()} == {"skipped"}
    assert list(made["stages"]) == ["environment", "model", "quality", "generation", "line"]
    assert made["figures"] == {} and "mean nothing" in made["kind"] and made["hardware"]["cores"] > 0


def test_the_readme_says_that_figures_are_missing_until_there_is_a_result() -> None:
    said = "Missing as long as no `gpu/result.json` is committed" in (ROOT / "gpu" / "README.md").read_text()
    assert said != (ROOT / "gpu" / "result.json").exists()
