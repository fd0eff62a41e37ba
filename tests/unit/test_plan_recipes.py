"""Every shipped recipe is valid and plans; the plans that people read are golden files; estimates are sane."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest

from optpipe.cli.plan import show
from optpipe.model.hardware import HERE, named
from optpipe.recipe.load import load
from optpipe.recipe.reference import json_schema
from optpipe.recipe.tree import compose, construct
from optpipe.records import Hardware, ModelFacts, Plan
from optpipe.stages.plan import plan
from tests.shipped import MODELS
from tests.unit.wrong import ROOT, check_refusal, here

RECIPES = sorted((ROOT / "recipes").rglob("*.yaml"))
MACHINE = ROOT / "tests" / "golden" / "plan" / "machine.yaml"


def facts_of(path: Path) -> ModelFacts:
    return MODELS[load(path).recipe.model.source]


def planned(name: str, machine: Hardware, *overrides: str) -> Plan:
    path = ROOT / "recipes" / name
    return plan(load(path, overrides).recipe, facts_of(path), machine)


def test_there_are_recipes() -> None:
    assert len(RECIPES) >= 4


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_shipped_recipe_is_valid_for_the_schema_and_for_optpipe(path: Path, tmp_path: Path) -> None:
    jsonschema.Draft202012Validator(json_schema()).validate(construct(compose(path)))
    found = here("plan", str(path), "--check", cwd=tmp_path, home=tmp_path / "home")
    assert found.code == 0, found.err


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_candidate_of_a_shipped_recipe_is_feasible_on_the_machine_it_is_for(path: Path) -> None:
    recipe = load(path).recipe
    machine = named("h100") if recipe.model.source.startswith("hf:") else named(str(MACHINE))
    found = plan(recipe, facts_of(path), machine)
    assert found.refused == ()
    assert len(found.feasible) == len(recipe.targets) * (1 + len(recipe.checkpoints))


def test_the_schema_refuses_what_optpipe_refuses() -> None:
    data = construct(compose(ROOT / "recipes" / "demo.yaml"))
    data["quantisation"] = {}
    with pytest.raises(jsonschema.ValidationError, match="quantisation"):
        jsonschema.Draft202012Validator(json_schema()).validate(data)


@pytest.mark.parametrize(
    ("recipe", "machine", "file"),
    [("demo.yaml", str(MACHINE), "demo.txt"), ("gpu-8b.yaml", "h100", "gpu-8b.txt")],
)
def test_what_a_plan_shows(
    recipe: str, machine: str, file: str, capsys: pytest.CaptureFixture[str], golden: Callable[[str, str], None]
) -> None:
    show(planned(recipe, named(machine)))
    golden(f"plan/{file}", capsys.readouterr().out)


def test_a_compiled_target_without_a_compiler_is_refused_on_this_machine_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    machine, compiled = named(str(MACHINE)), "targets.vllm.enforce_eager=false"
    refused = planned("demo.yaml", replace(machine, name=HERE), compiled).refused
    assert {one.candidate for one in refused} >= {"base@vllm", "int8@vllm"}
    assert all("C++ compiler" in one.reason for one in refused)
    assert planned("demo.yaml", machine, compiled).refused == ()
    assert planned("demo.yaml", replace(machine, name=HERE)).refused == ()


def test_estimates_of_the_demo_are_near_what_was_measured() -> None:
    """Sizes and bits of the files that llm-compressor wrote, and the time that one thread took."""
    found = {one.candidate.name: one for one in planned("demo.yaml", named(str(MACHINE))).feasible}
    measured_mb = {"base@vllm": 272.59, "gptq-w4@vllm": 117.56, "sq-w8a8@vllm": 166.76, "int8@vllm": 166.76}
    for name, size in measured_mb.items():
        assert found[name].bytes.value == pytest.approx(size * 1e6, rel=0.02), name
    assert 1e9 < found["base@vllm"].memory_bytes.value < 4e9
    assert 30 < found["gptq-w4@vllm"].seconds.value - found["int8@vllm"].seconds.value < 300


def test_a_larger_machine_is_faster_and_never_needs_more_memory() -> None:
    small, large = planned("demo.yaml", named(str(MACHINE))), planned("demo.yaml", named("h100x8"))
    assert large.hardware.gpus == 8
    assert large.seconds.value < small.seconds.value / 3
    assert [one.bytes for one in large.feasible] == [one.bytes for one in small.feasible]


def test_tasks_are_counted_in_the_time_of_a_plan() -> None:
    """200 documents took an engine 31 s and transformers 65 s, for the base and the finalist, and lm-eval 10 s each."""
    machine = named(str(MACHINE))
    fast, tasks = planned("fast.yaml", machine).seconds, planned("tasks.yaml", machine).seconds
    assert 150 < tasks.value - fast.value < 600 and "s of tasks" in tasks.how and "tasks" not in fast.how
    gpu = planned("tasks.yaml", named("h100")).seconds
    assert gpu.value < fast.value


def test_a_plan_is_a_pure_function() -> None:
    machine = named("h100")
    assert planned("gpu-8b.yaml", machine) == planned("gpu-8b.yaml", machine)


def test_an_unknown_machine_is_refused_with_one_that_is_known(tmp_path: Path) -> None:
    recipe = str(ROOT / "recipes" / "demo.yaml")
    found = here("plan", recipe, "--hardware", "h100x9", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, "'h100x9'", "did you mean 'h100x8'")


def test_a_plan_names_what_tasks_need_from_elsewhere() -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    own = "tasks.commands={house: {argv: [judge, --all], version: '1'}}"
    found = planned("fast.yaml", named(str(MACHINE)), f"tasks.names=[piqa, commonsense_qa@{commit}]", own)
    assert any("task commonsense_qa" in one and commit[:12] in one for one in found.warnings)
    assert any("'judge --all'" in one and "--allow-commands" in one for one in found.warnings)
    assert not any("piqa" in one for one in found.warnings)
