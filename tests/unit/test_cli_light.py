"""Help and plans stay light: which modules a command loads, seen from outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from optpipe.cli import reference
from tests import models
from tests.unit.test_cli_wrong_models import RECIPE
from tests.unit.wrong import ROOT, optpipe

SHOW = """\
import json, sys
from optpipe.cli import run
code = run(sys.argv[1:])
sys.stdout.flush()
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""
HEAVY = {"torch", "transformers", "vllm", "llmcompressor", "compressed_tensors", "datasets", "scipy", "optuna"}
MIDDLE = {"pydantic", "pydantic_core", "yaml", "rich", "numpy", "jinja2", "huggingface_hub", "psutil"}


def loaded(*arguments: str, cwd: Path) -> tuple[int, set[str]]:
    """The exit code of a command and the packages that it loaded."""
    env = {**os.environ, "OPTPIPE_HOME": str(cwd / "home"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", SHOW, *arguments]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
    code, modules = json.loads(done.stderr.splitlines()[-1])
    return code, set(modules)


@pytest.mark.parametrize("command", ["", *(name.removeprefix("optpipe ") for name, _ in reference.every())])
def test_help_loads_nothing_that_it_does_not_need(command: str, tmp_path: Path) -> None:
    code, modules = loaded(*command.split(), "--help", cwd=tmp_path)
    assert code == 0 and "typer" in modules
    assert modules & (HEAVY | MIDDLE) == set()


def test_a_plan_loads_no_heavy_library(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    code, modules = loaded("plan", "recipe.yaml", cwd=tmp_path)
    assert code == 0 and "pydantic" in modules
    assert modules & (HEAVY | {"rich", "jinja2", "huggingface_hub"}) == set()
    found = optpipe("plan", "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    print(f"{found.seconds:.2f} s")
    assert found.code == 0 and found.seconds < 10, "under a second is what it should take"


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (("plan",), "Missing argument"),
        (("plan", "--hardwear", "h100", "x"), "--hardwear"),
        (("biuld", "recipe.yaml"), "Did you mean 'build'?"),
        (("serve", "x", "--port", "many"), "'many'"),
        (("plan", "a", "b"), "unexpected extra argument"),
    ],
)
def test_a_command_line_that_cannot_be_read_is_exit_2_without_a_traceback(
    arguments: tuple[str, ...], shown: str, tmp_path: Path
) -> None:
    found = optpipe(*arguments, cwd=tmp_path, home=tmp_path)
    assert found.code == 2 and not found.out
    assert shown in found.err and "hint:" in found.err and "Traceback" not in found.err


def test_a_recipe_that_is_only_checked_says_so_as_json(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    found = optpipe("plan", "recipe.yaml", "--check", "--json", cwd=tmp_path, home=tmp_path)
    assert found.code == 0 and json.loads(found.out)["valid"] is True


@pytest.mark.parametrize("command", ["plan", "build", "report", "pull here", "verify"])
def test_json_is_one_document_for_errors_too(command: str, tmp_path: Path) -> None:
    found = optpipe(*command.split(), "nowhere", "--json", cwd=tmp_path, home=tmp_path)
    said = json.loads(found.out)["error"]
    assert found.code == said["exit_code"] == 2, found.err
    assert said["message"] in found.err and set(said) == {"exit_code", "place", "message", "hint"}


def test_a_bug_says_that_it_is_one_and_exits_1(tmp_path: Path) -> None:
    code = "import sys; from optpipe import cli; cli.run = lambda a: 1 // 0; cli.main()"
    words = [sys.executable, "-c", code, "--json"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == 1
    assert "this is a bug of optpipe" in done.stderr and "hint: report it" in done.stderr
