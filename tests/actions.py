"""Runs the steps of a composite action or of a job under bash, with files of this machine in GitHub's place.

Of GitHub's expressions it knows what the workflows here use: names with dots, texts, ==, !=, &&, ||, !, brackets,
always(). Steps that `uses:` another action are noted and passed over.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

TOKEN = re.compile(r"\s*('(?:[^']|'')*'|&&|\|\||==|!=|!|\(|\)|[\w.-]+(?:\(\))?)")
INSERTED = re.compile(r"\$\{\{\s*(.*?)\s*\}\}", re.S)


@dataclass
class Ran:
    """What each step did: its outcome, and what it said."""

    outcomes: dict[str, str] = field(default_factory=dict)
    outputs: dict[str, dict[str, str]] = field(default_factory=dict)
    said: dict[str, str] = field(default_factory=dict)
    summary: str = ""

    @property
    def failed(self) -> bool:
        return "failure" in self.outcomes.values()


class Expression:
    """One expression over a context; what is not known is the empty text, as on GitHub."""

    def __init__(self, text: str, context: Mapping[str, Any]) -> None:
        self.tokens = TOKEN.findall(text)
        self.context = context

    def value(self) -> Any:
        found = self._both()
        assert not self.tokens, f"not understood: {self.tokens}"
        return found

    def _both(self) -> Any:
        left = self._and()
        while self._take("||"):
            right = self._and()
            left = left or right
        return left

    def _and(self) -> Any:
        left = self._compared()
        while self._take("&&"):
            right = self._compared()
            left = left and right
        return left

    def _compared(self) -> Any:
        left = self._one()
        for sign in ("==", "!="):
            if self._take(sign):
                return (str(left) == str(self._one())) is (sign == "==")
        return left

    def _one(self) -> Any:
        if self._take("!"):
            return not self._one()
        if self._take("("):
            found = self._both()
            assert self._take(")")
            return found
        word = self.tokens.pop(0)
        if word.startswith("'"):
            return word[1:-1].replace("''", "'")
        if word == "always()":
            return True
        found: Any = self.context
        for name in word.split("."):
            found = found.get(name, "") if isinstance(found, Mapping) else ""
        return found

    def _take(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            self.tokens.pop(0)
            return True
        return False


def filled(text: str, context: Mapping[str, Any]) -> str:
    return INSERTED.sub(lambda found: str(Expression(found[1], context).value()), text)


def action(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text(encoding="utf-8")))


def inputs_of(about: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    """The action's inputs with their defaults; an unknown one is an error, as is a required one that lacks."""
    assert set(given) <= set(about["inputs"]), set(given) - set(about["inputs"])
    found = {name: given.get(name, str(one.get("default", ""))) for name, one in about["inputs"].items()}
    assert all(found[name] for name, one in about["inputs"].items() if one.get("required"))
    return found


def run_steps(
    steps: list[dict[str, Any]],
    context: Mapping[str, Any],
    cwd: Path,
    env: Mapping[str, str],
    skip: tuple[str, ...] = (),
) -> Ran:
    """Every step in order; after a failure only those that are for always."""
    ran = Ran()
    for number, step in enumerate(steps):
        name = step.get("id") or step.get("name") or str(number)
        known = {
            **context,
            "steps": {n: {"outputs": ran.outputs.get(n, {}), "outcome": o} for n, o in ran.outcomes.items()},
        }
        condition = step.get("if", "")
        wanted = bool(Expression(str(condition), known).value()) if condition else True
        if not wanted or (ran.failed and "always()" not in str(condition)) or step.get("name") in skip:
            ran.outcomes[name] = "skipped"
        elif "uses" in step:
            ran.outcomes[name] = "success"
        else:
            one_step(name, step, known, cwd, env, ran)
    return ran


def one_step(
    name: str, step: Mapping[str, Any], known: Mapping[str, Any], cwd: Path, env: Mapping[str, str], ran: Ran
) -> None:
    assert step["shell"] == "bash"
    assert "${{" not in step["run"], "what comes from outside reaches a script through env alone"
    files = {variable: cwd / f".{variable.lower()}" for variable in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    for path in files.values():
        path.write_text("")
    own = {key: filled(str(value), known) for key, value in step.get("env", {}).items()}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=cwd,
        env={**os.environ, **env, **own, **{variable: str(path) for variable, path in files.items()}},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    ran.outcomes[name] = "success" if done.returncode == 0 else "failure"
    ran.said[name] = done.stdout + done.stderr
    lines = files["GITHUB_OUTPUT"].read_text().splitlines()
    ran.outputs[name] = dict(line.split("=", 1) for line in lines)
    ran.summary += files["GITHUB_STEP_SUMMARY"].read_text()
