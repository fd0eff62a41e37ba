"""What the documents tell people to type is what the commands take."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.S | re.M)
COMMAND = re.compile(r"(?:^|[\s\"'`/])optpipe ((?:[a-z]+)(?: [^\n`#|;&]*)?)")


def surface() -> dict[str, set[str]]:
    """Each command's options, of those that the frozen list has."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "tests" / "golden" / "surface.txt").read_text().splitlines():
        words = line.split()
        if words[0] != "optpipe" or len(words) < 2:
            continue
        name = words[1] if words[1] not in ("toolchain", "cache") else " ".join(words[1:3])
        found.setdefault(name, set()).update(word for word in words[2:] if word.startswith("--"))
    return found


def fences(path: Path, *languages: str) -> list[str]:
    return [body for language, body in FENCE.findall(path.read_text(encoding="utf-8")) if language in languages]


def told(path: Path) -> list[str]:
    """Every command line of a page, continued lines joined."""
    text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    return [f"optpipe {found.strip()}" for found in COMMAND.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_names_is_one_of_the_command(page: Path) -> None:
    known = surface()
    for line in told(page):
        words = line.split()
        name = " ".join(words[1:3]) if words[1] in ("toolchain", "cache") else words[1]
        if name not in known:
            continue  # prose: "optpipe turns ..."
        options = set(re.findall(r"(?<=\s)--[a-z][a-z-]*", line))
        assert options <= known[name] | {"--help"}, f"{page.name}: {line}"


def test_the_pages_name_commands_at_all() -> None:
    assert sum(line.split()[1] in surface() for page in PAGES for line in told(page)) > 20


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_shell_snippets_are_shell_and_yaml_is_yaml(page: Path) -> None:
    for body in fences(page, "sh", "bash"):
        subprocess.run(["bash", "-n"], input=body, text=True, check=True)
    for body in fences(page, "yaml"):
        assert list(yaml.safe_load_all(body))


def test_the_workflow_of_the_page_is_clean_for_actionlint(tmp_path: Path) -> None:
    (body,) = (b for b in fences(ROOT / "docs" / "ci.md", "yaml") if b.startswith("# .github/workflows/"))
    path = tmp_path / ".github" / "workflows" / "model.yml"
    path.parent.mkdir(parents=True)
    path.write_text(body)
    done = subprocess.run(
        [Path(sys.executable).parent / "actionlint", str(path)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_gitlab_job_runs_shell(tmp_path: Path) -> None:
    (body,) = (b for b in fences(ROOT / "docs" / "ci.md", "yaml") if b.startswith("# .gitlab-ci.yml"))
    job = yaml.safe_load(body)["optpipe"]
    for line in (*job["script"], *job["after_script"]):
        assert shlex.split(line)
        subprocess.run(["bash", "-n"], input=line, text=True, check=True)
