"""The action's steps under bash, over the fakes: what a team sees when its model is updated."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from tests.actions import Ran, action, filled, inputs_of, run_steps
from tests.fakes.place import INT8, ROOT, W4, Place
from tests.models import edit_json, tiny_llama
from tests.pipeline.test_challenge import UNTUNED

ACTION = ROOT / ".github" / "actions" / "optpipe" / "action.yml"
WORKFLOW = ROOT / ".github" / "workflows" / "optpipe.yml"
GITHUB = {"server_url": "https://github.example", "repository": "team/models", "run_id": "17"}


class Ci:
    """A repository with a recipe, a runner, and what the action's outputs were."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.temp = place.root / "runner-temp"
        command = self.temp / "optpipe" / "bin" / "optpipe"
        command.parent.mkdir(parents=True)
        command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m optpipe "$@"\n')
        command.chmod(0o755)

    def __call__(self, **given: str) -> tuple[Ran, dict[str, str]]:
        """The action with these inputs; what its steps did, and its outputs."""
        self.place.command("list").communicate()  # writes the recipe as it is now
        about = action(ACTION)
        inputs = inputs_of(about, {"recipe": "recipe.yaml"} | {k.replace("_", "-"): v for k, v in given.items()})
        context: dict[str, Any] = {"inputs": inputs, "github": {**GITHUB, "action_path": str(ACTION.parent)}}
        env = {**self.place.environment(), "RUNNER_TEMP": str(self.temp), "GITHUB_ACTIONS": "true"}
        ran = run_steps(about["runs"]["steps"], context, self.place.root, env, skip=("Install",))
        known = {"steps": {name: {"outputs": found} for name, found in ran.outputs.items()}}
        outputs = {name: filled(one["value"], known) for name, one in about["outputs"].items()}
        return ran, outputs

    def update(self) -> tuple[Ran, dict[str, str]]:
        """What the workflow does on a change: build, and publish what passed."""
        ran, outputs = self(mode="build")
        if outputs["gate"] == "passed":
            published, _ = self(mode="publish", expected=outputs["champion"])
            assert not published.failed, published.said
        return ran, outputs

    def champion(self) -> str:
        models = json.loads(self.place.run("list", "--json").out)["models"]
        return str(models["tiny"]["aliases"]["champion"]) if models else ""


@pytest.fixture
def ci(fresh: Callable[..., Place]) -> Ci:
    return Ci(fresh(**UNTUNED, checkpoints={"int8": INT8}))


def test_a_team_updates_its_model(ci: Ci) -> None:
    """First update, the same again, a worse model, a better one, another tokenizer, and back."""
    ran, first = ci.update()
    assert not ran.failed, ran.said
    assert (first["changed"], first["verdict"], first["gate"], first["champion"]) == ("true", "selected", "passed", "")
    assert ci.champion() == first["digest"]
    assert "int8@vllm" in ran.summary

    ran, same = ci.update()
    assert (same["changed"], same["verdict"], ran.outcomes["build"]) == ("false", "", "skipped")
    assert ci.champion() == first["digest"]

    tiny_llama(ci.place.root / "model", seed=2)
    ci.place.order({"at": "score", "who": "8 bits", "do": "flatter"})  # the champion, not what is new
    ci.place.recipe["checkpoints"] = {"w4": W4}
    ran, worse = ci.update()
    assert (ran.outcomes["gate"], worse["gate"]) == ("failure", "regressed"), ran.said
    assert ci.champion() == first["digest"], "a worse model moves nothing"
    assert "## Gate" in ran.summary and "bits per byte" in ran.summary, "reported all the same"
    assert ran.outcomes["report"] == "success" and worse["verdict"] == "selected"

    ci.place.order({"at": "score", "who": "4 bits", "do": "flatter"})
    ci.place.recipe["scoring"] = ci.place.recipe["scoring"] | {"seed": 2}  # else the champion's scores are kept
    ran, better = ci.update()
    assert better["gate"] == "passed" and better["champion"] == first["digest"], ran.said
    assert ci.champion() == better["digest"]

    rolled = ci.place.run("rollback", "tiny", "--because", "users complain")
    assert rolled.code == 0 and ci.champion() == first["digest"]


def test_another_tokenizer_is_judged_by_what_does_not_depend_on_it(ci: Ci) -> None:
    _, first = ci.update()
    tokenizer = ci.place.root / "model" / "tokenizer_config.json"
    edit_json(tokenizer, clean_up_tokenization_spaces=True)
    ci.place.recipe["checkpoints"] = {"w4": W4}
    ci.place.order({"at": "score", "who": "4 bits", "do": "flatter"})
    ran, new = ci.update()
    assert new["gate"] == "passed" and "bits per byte" in ran.summary
    assert ci.champion() == new["digest"] != first["digest"]


def test_a_wrong_recipe_is_annotated_at_its_line_and_nothing_is_built(ci: Ci) -> None:
    ci.place.recipe["tune"] = {"trails": 3}
    ran, outputs = ci(mode="plan")
    assert ran.failed and "::error file=recipe.yaml,line=" in ran.said["plan"] and outputs["changed"] == ""
    assert ran.outcomes["build"] == "skipped"


def test_only_planning_needs_no_toolchain(ci: Ci) -> None:
    ran, outputs = ci(mode="plan")
    assert not ran.failed and outputs["changed"] == "true" and outputs["name"] == "tiny"
    assert ci.place.log() == []


def test_somebody_who_moved_the_champion_meanwhile_is_not_overrun(ci: Ci) -> None:
    _, first = ci.update()
    late, _ = ci(mode="publish", expected="sha256:" + "0" * 64)
    assert not late.failed, "it is what the alias means already"
    ci.place.recipe["load"] = ci.place.recipe["load"] | {"output_tokens": 12}
    _, second = ci(mode="build")
    late, _ = ci(mode="publish", expected="sha256:" + "0" * 64)
    assert late.failed and "somebody else moved it" in "".join(late.said.values())
    assert ci.champion() == first["digest"] != second["digest"]


def test_the_comment_is_made_once_and_then_updated(ci: Ci) -> None:
    step = next(
        step for job in action(WORKFLOW)["jobs"].values() for step in job["steps"] if step.get("name") == "Comment"
    )
    bin_folder, log = ci.place.root / "bin", ci.place.root / "gh.log"
    gh = bin_folder / "gh"
    gh.write_text(
        "#!/bin/sh\n"
        f'echo "$*" >> "{log}"\n'
        f'case "$*" in *--paginate*) cat "{ci.place.root}/comments.json";; esac\n'
    )
    gh.chmod(0o755)
    folder = ci.place.root / "artifacts"
    folder.mkdir(exist_ok=True)
    (folder / "comment.md").write_text("<!-- optpipe: tiny -->\n# text\n")
    env = {"PATH": f"{bin_folder}:/usr/bin:/bin"}
    context = {
        "github": {**GITHUB, "event_name": "pull_request", "event": {"pull_request": {"number": 4}}},
        "steps": {"optpipe": {"outputs": {"verdict": "selected"}}},
    }
    asked = [
        ("[]", "--method POST repos/team/models/issues/4/comments --field body=@artifacts/comment.md"),
        (
            '[{"id": 7, "body": "<!-- optpipe: other -->"}, {"id": 8, "body": "<!-- optpipe: tiny -->\\nold"}]',
            "--method PATCH repos/team/models/issues/comments/8 --field body=@artifacts/comment.md",
        ),
    ]
    for known, words in asked:
        (ci.place.root / "comments.json").write_text(known)
        ran = run_steps([{**step, "if": ""}], context, ci.place.root, env)
        assert not ran.failed, ran.said
        assert log.read_text().splitlines()[-1].endswith(words)


def test_forks_reach_no_runner_of_ours_and_no_secret() -> None:
    jobs = action(WORKFLOW)["jobs"]
    assert "head.repo.full_name == github.repository" in jobs["build"]["if"]
    assert "secrets" not in json.dumps(jobs["plan"]) and jobs["plan"]["permissions"] == {"contents": "read"}
    assert jobs["publish"]["needs"] == ["plan", "build"] and "environment" in jobs["publish"]
