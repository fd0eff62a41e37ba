"""`optpipe list | pull | verify | promote | rollback`: what they print, and how they fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from optpipe.backends.registries import at
from optpipe.cli import registry as commands
from optpipe.cli import run
from optpipe.errors import InputError, OptpipeError, PublishFailed
from optpipe.proofs import Notary
from tests.bundles import small_bundle

ROOT = Path(__file__).parents[2]


class Shop:
    """A registry with two versions of one model, and the command line in front of it."""

    def __init__(self, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys
        self.registry = at(str(root / "registry"), notary=Notary(lambda line: None))
        self.app = typer.Typer(rich_markup_mode=None)
        for name in ("list_", "pull", "verify", "promote", "rollback"):
            self.app.command(name.rstrip("_"))(getattr(commands, name))
        self.digests = [self.publish(root / name, name) for name in ("one", "two")]

    def publish(self, folder: Path, text: str) -> str:
        version = self.registry.upload(small_bundle(folder, text))
        for alias in ("latest", "champion"):
            self.registry.move(version, alias, expected=self.registry.alias("tiny", alias), evidence="test")
        return version.digest

    def __call__(self, *words: str) -> str:
        """What the command leaves on stdout."""
        self.capsys.readouterr()
        self.app([*words, "--registry", self.registry.where], standalone_mode=False)
        return self.capsys.readouterr().out

    def json(self, *words: str) -> Any:
        return json.loads(self(*words, "--json"))


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shop:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    return Shop(tmp_path, capsys)


def test_list_shows_aliases_and_versions(shop: Shop) -> None:
    one, two = shop.digests
    assert shop.json("list") == {
        "models": {"tiny": {"aliases": {"champion": two, "latest": two}, "versions": [one, two]}}
    }
    assert shop("list").splitlines() == [f"tiny@{one[:19]}", f"tiny@{two[:19]}  champion, latest"]


def test_promote_and_rollback_move_the_champion(shop: Shop) -> None:
    one, two = shop.digests
    assert shop.json("promote", f"tiny@{one}") == {
        "name": "tiny",
        "alias": "champion",
        "from": two,
        "to": one,
    }
    assert shop.json("rollback", "tiny")["to"] == two
    assert shop.json("rollback", "tiny")["to"] == one
    with pytest.raises(InputError, match="nothing but"):
        shop("rollback", "tiny")


def test_promote_to_another_alias_with_a_reason(shop: Shop) -> None:
    shop("promote", "tiny", "--alias", "staging", "--because", "canary looks good")
    assert shop.registry.alias("tiny", "staging") == shop.digests[1]
    assert shop.registry.history("tiny")[-1].move.evidence == "canary looks good"


def test_pull_and_verify(shop: Shop, tmp_path: Path) -> None:
    assert shop.json("pull", "tiny@champion", str(tmp_path / "here"))["digest"] == shop.digests[1]
    told = shop.json("verify", str(tmp_path / "here"))
    signer = told.pop("signer")
    assert told == {"ok": True, "digest": shop.digests[1], "files": 4, "signed": True, "problems": []}
    assert f"signed by {signer}" in shop("verify", "tiny")


def test_verify_names_what_was_changed_and_ends_with_six(shop: Shop, tmp_path: Path) -> None:
    shop("pull", "tiny", str(tmp_path / "here"))
    (tmp_path / "here" / "model.safetensors").write_text("twO")
    with pytest.raises(PublishFailed, match=r"model\.safetensors: sha256") as error:
        shop("verify", str(tmp_path / "here"))
    assert error.value.exit_code == 6


def test_verify_prints_its_document_even_where_something_is_wrong(
    shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "two" / "extra.txt").write_text("added")
    capsys.readouterr()
    assert run(["verify", str(tmp_path / "two"), "--json"]) == 6
    told = json.loads(capsys.readouterr().out)
    assert not told["ok"] and told["problems"][0]["place"] == "extra.txt"
    assert told["error"]["exit_code"] == 6 and "extra.txt" in told["error"]["message"]


@pytest.mark.parametrize(
    "words", [("pull", "tinny", "x"), ("promote", "tiny@nobody"), ("verify", "no/such/path")]
)
def test_what_is_not_known_ends_with_two(shop: Shop, words: tuple[str, ...]) -> None:
    with pytest.raises(OptpipeError) as error:
        shop(*words)
    assert error.value.exit_code == 2 and error.value.hint


def test_a_registry_that_was_named_and_is_not_there_is_an_error(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        shop.app(["list", "--registry", str(tmp_path / "none")], standalone_mode=False)


@pytest.mark.parametrize(
    "registry",
    ["oci+http://127.0.0.1:9/a", "mlflow+http://127.0.0.1:9", "s3+http://127.0.0.1:9/bucket", "hf://me"],
)
def test_a_registry_that_cannot_be_reached_says_where_and_what_to_look_at(registry: str) -> None:
    reach = {"HF_ENDPOINT": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    argv = [sys.executable, "-m", "optpipe", "list", "--registry", registry]
    ended = subprocess.run(argv, env={**os.environ, **reach}, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 6, ended.stderr
    assert "127.0.0.1:9" in ended.stderr and "check the" in ended.stderr and "network" in ended.stderr
    assert "Retrying" not in ended.stderr, "the hub's client would try for 23 s"


@pytest.mark.parametrize("registry", ["oci+http://127.0.0.1:9/a", "s3+http://127.0.0.1:9/bucket", "hf://me"])
def test_a_registry_that_is_a_source_and_cannot_be_reached_is_told_at_its_place(registry: str, tmp_path: Path) -> None:
    demo = (ROOT / "recipes" / "demo.yaml").read_text(encoding="utf-8")
    source = f"registry:{registry}/tiny@champion"
    (tmp_path / "recipe.yaml").write_text(re.sub(r"source: wheel:llm\S+", f"source: {source}", demo), encoding="utf-8")
    reach = {"HF_ENDPOINT": "http://127.0.0.1:9", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    env = {**os.environ, **reach, "PYTHONPATH": str(ROOT), "OPTPIPE_HOME": str(tmp_path / "home")}
    argv = [sys.executable, "-m", "optpipe", "plan", "recipe.yaml"]
    ended = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 3, ended.stderr
    assert f"recipe.yaml:8:11: model.source: {source}: " in ended.stderr and "127.0.0.1:9" in ended.stderr
    assert "name a folder as the source" in ended.stderr


def test_the_default_registry_may_be_empty(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    capsys.readouterr()
    shop.app(["list", "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"models": {}}


def test_the_commands_load_nothing_heavy() -> None:
    heavy = "{'pydantic', 'yaml', 'jinja2', 'numpy', 'rich', 'optpipe.rundir'}"
    code = f"import sys, optpipe.cli.registry; print(*({heavy} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == ""
