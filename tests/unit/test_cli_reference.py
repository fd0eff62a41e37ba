"""The reference pages, the schema and the public surface are what the code says; what `init` writes plans."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from optpipe.cli import reference
from optpipe.recipe import page
from optpipe.recipe.reference import json_schema
from tests import models
from tests.unit.wrong import ROOT, check_refusal, here


def test_the_reference_pages_are_current() -> None:
    for name, text in reference.pages().items():
        path = ROOT / "docs" / "reference" / name
        assert path.read_text(encoding="utf-8") == text, f"run: python -m optpipe.cli.reference ({name} differs)"


def test_one_command_writes_the_reference_pages(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "optpipe.cli.reference", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=60)
    made = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.md")}
    assert made == set(reference.pages()) > {"recipe.md", "cli.md", "compat.md", "methods.md", "methods/gptq.md"}


def test_every_link_of_the_recipe_page_leads_to_a_section() -> None:
    text = page.markdown()
    titles = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    sections = {title.lower().replace(": ", "-").replace(" ", "-") for title in titles}
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert len(links) > 10 and links <= sections


def test_the_schema_for_editors_is_current() -> None:
    text = (ROOT / "recipes" / "recipe.schema.json").read_text(encoding="utf-8")
    assert json.loads(text) == json_schema(), "run: make schema"


def described(schema: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, block in [("Recipe", schema), *schema["$defs"].items()]:
        yield name, block.get("description", "")
        for key, value in block["properties"].items():
            yield f"{name}.{key}", value.get("description", "")


def test_every_key_of_a_recipe_says_what_it_means() -> None:
    found = dict(described(json_schema()))
    assert len(found) > 100
    assert [name for name, text in found.items() if not text.strip()] == []


def test_the_public_surface_changes_on_purpose(golden: Callable[[str, str], None]) -> None:
    golden("surface.txt", "\n".join(line.rstrip() for line in [*reference.surface(), *page.surface()]) + "\n")


# ---------------------------------------------------------------- init


def test_a_started_recipe_plans_once_two_lines_are_filled_in(tmp_path: Path) -> None:
    home = tmp_path / "home"
    assert here("init", "My Model.yaml", cwd=tmp_path, home=home).code == 0
    path = tmp_path / "My Model.yaml"
    text = path.read_text(encoding="utf-8")
    assert "name: my-model\n" in text
    wrong = here("plan", path.name, cwd=tmp_path, home=home)
    check_refusal(wrong, tmp_path, "model.source: 'path/to/model'", "calibration.text.source: 'calibration.jsonl'")

    models.tiny_llama(tmp_path / "mine", hidden=128)
    prompts = '{"text": "What is the capital of France?"}\n' * 10_000
    (tmp_path / "prompts.jsonl").write_text(prompts, encoding="utf-8")
    filled = text.replace('"path/to/model"', "mine").replace("calibration.jsonl", "prompts.jsonl")
    assert sum(a != b for a, b in zip(text.splitlines(), filled.splitlines(), strict=True)) == 2
    path.write_text(filled, encoding="utf-8")
    found = here("plan", path.name, "--hardware", "laptop-cpu", "--json", cwd=tmp_path, home=home)
    assert found.code == 0, found.err
    names = [one["candidate"]["name"] for one in json.loads(found.out)["feasible"]]
    assert names == ["base@vllm", "gptq-w4@vllm", "int8@vllm"]


def test_init_changes_no_file_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text("mine", encoding="utf-8")
    check_refusal(here("init", cwd=tmp_path, home=tmp_path), tmp_path, "recipe.yaml is there already")
    assert (tmp_path / "recipe.yaml").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("model", ["a folder: with # signs", '"quoted"', "{braces}", "naïve/модель"])
def test_a_started_recipe_holds_any_model_name(model: str, tmp_path: Path) -> None:
    assert here("init", "r.yaml", "--model", model, cwd=tmp_path, home=tmp_path).code == 0
    found = here("plan", "r.yaml", cwd=tmp_path, home=tmp_path / "home")
    assert found.code == 2 and "model.source" in found.err and "is not there" in found.err
