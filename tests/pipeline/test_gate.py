"""`optpipe compare` and `optpipe gate`: a build against what is published."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.fakes.place import INT8, W4, Done, Place
from tests.pipeline.test_challenge import UNTUNED, champion, rebuilt

Built = tuple[Place, Done]
REGISTRY = ("--registry", "artifacts/registry")


def lines(done: Done) -> dict[str, Any]:
    return {line["figure"]: line for line in done.said["lines"]}


def test_a_version_is_the_same_as_itself(again: Place) -> None:
    done = again.run("compare", "artifacts/latest", "tiny@champion", "--json", *REGISTRY)
    found = lines(done)
    assert done.code == 0 and found["perplexity, stories"]["outcome"] == "the same"
    assert found["bytes"]["outcome"] == "the same"
    gated = again.run("gate", "artifacts/latest", "--against", "tiny@champion", "--json", *REGISTRY)
    assert (gated.code, gated.said["verdict"]) == (0, "passed"), gated.err
    assert "itself" in gated.said["checks"][0]["reason"]


def test_two_candidates_of_one_run_are_paired_on_the_same_tokens(again: Place) -> None:
    done = again.run("compare", "artifacts/latest:base@vllm", "artifacts/latest:int8@vllm", "--json", *REGISTRY)
    perplexity = lines(done)["perplexity, stories"]
    assert perplexity["how"].startswith("paired, ") and perplexity["change"]["n"] >= 32
    own = json.loads((again.artifacts / "latest" / "06-evaluate" / "int8@vllm.json").read_text())["texts"][0]
    assert abs(perplexity["change"]["value"] - own["change_pct"]["value"]) < 1e-9, "the base is the reference of both"
    table = again.run("compare", "artifacts/latest:base@vllm", "artifacts/latest:int8@vllm", *REGISTRY)
    assert "B against A:" in table.out and "| perplexity, stories |" in table.out


def test_a_slower_version_is_a_regression_and_what_the_build_measured_is_not_measured_again(again: Place) -> None:
    before = champion(again)
    rebuilt(again, **UNTUNED, checkpoints={"int8": INT8})
    loads = [act for act in again.log() if act["at"] == "load"]
    done = again.run("gate", "artifacts/latest", "--against", "tiny@champion", "--json", *REGISTRY)
    assert (done.code, done.said["verdict"], done.said["measured"]) == (5, "regressed", True), done.err
    assert [act for act in again.log() if act["at"] == "load"] == loads
    assert any("goodput" in check["reason"] and check["status"] == "rejected" for check in done.said["checks"])
    assert champion(again) == before, "a gate moves nothing"
    assert json.loads((again.artifacts / "latest" / "12-gate.json").read_text())["status"] == "rejected"
    loose = again.run("gate", "artifacts/latest", "--against", "tiny@champion", "--threshold", "80", *REGISTRY)
    assert loose.code == 0 and loose.out.startswith("passed: int8@vllm against tiny@champion (measured by turns")


def test_records_alone_tell_a_regression_too_and_refuse_what_another_load_measured(again: Place) -> None:
    rebuilt(again, **UNTUNED, checkpoints={"int8": INT8})
    words = ("gate", "artifacts/latest", "--against", "tiny@champion", "--recorded", "--json", *REGISTRY)
    before = len(again.log())
    done = again.run(*words)
    assert (done.code, done.said["verdict"], done.said["measured"]) == (5, "regressed", False), done.err
    assert len(again.log()) == before
    rebuilt(again, load={**again.recipe["load"], "output_tokens": 12})
    other = again.run(*words)
    assert (other.code, other.said["verdict"]) == (7, "inconclusive")
    assert "not the same load" in json.dumps(other.said["checks"])


def test_a_run_that_may_not_be_written_is_refused_before_anything_is_measured(again: Place) -> None:
    rebuilt(again, **UNTUNED, checkpoints={"int8": INT8})
    run, before = (again.artifacts / "latest").resolve(), again.log()
    run.chmod(0o555)
    # Of root, the capability to write everywhere is taken: then a folder's mode keeps it out as it does anybody.
    plain = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    words = ("-m", "optpipe", "gate", "artifacts/latest", "--against", "tiny@champion", *REGISTRY)
    done = subprocess.run(
        [*(plain if os.geteuid() == 0 else ()), sys.executable, *words],
        cwd=again.root, env=again.environment(), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    run.chmod(0o755)
    assert done.returncode == 3, done.stderr
    assert "artifacts/latest: the gate's record, 12-gate.json, cannot be written here: Permission denied" in done.stderr
    assert "hint: gate it where the run may be written to" in done.stderr
    assert again.log() == before, "no engine was started"


def test_what_is_under_test_may_differ_and_is_named(again: Place) -> None:
    rebuilt(again, checkpoints={"w4-g64": W4 | {"group_size": 64}})
    record = again.artifacts / "latest" / "05-compile" / "w4-g64@vllm" / "record.json"
    record.write_text(json.dumps(json.loads(record.read_text()) | {"engine_version": "0.33.0"}))
    words = ("compare", "tiny@champion", "artifacts/latest", "--json", *REGISTRY)
    goodput = lines(again.run(*words))["goodput"]
    assert (goodput["outcome"], goodput["how"]) == ("not compared", "not the same engine")
    done = again.run(*words, "--changed", "engine")
    assert lines(done)["goodput"]["change"] is not None and "under test: engine" in done.said["sentence"]
    gated = again.run("gate", "artifacts/latest", "--against", "tiny@champion", "--changed", "engine", *REGISTRY)
    assert "(from the records of each)" in gated.out


def test_what_is_not_there_is_told_with_the_next_step(again: Place) -> None:
    nobody = again.run("gate", "artifacts/latest", "--against", "other@champion", *REGISTRY)
    assert nobody.code == 2 and "--allow-missing" in nobody.err
    first = again.run("gate", "artifacts/latest", "--against", "other@champion", "--allow-missing", *REGISTRY)
    assert first.code == 0
    wrong = again.run("compare", "artifacts/latest:w5@vllm", "tiny@champion", *REGISTRY)
    assert wrong.code == 2 and "w4@vllm" in wrong.err
    assert again.run("compare", "artifacts", "tiny@champion", *REGISTRY).code == 2


def test_a_run_in_which_nothing_was_chosen_does_not_pass(again: Place) -> None:
    again.recipe["gates"] = {"kl_divergence": 1e-9}
    again.recipe["publish_base"] = False
    assert again.build().code == 5
    done = again.run("gate", "artifacts/latest", "--against", "tiny@champion", "--json", *REGISTRY)
    assert (done.code, done.said["verdict"]) == (5, "regressed")


# ---------------------------------------------------------------- what CI asks before and after


def test_a_plan_says_what_changed_since_a_version_was_built(again: Place) -> None:
    rebuilt(again)  # here: the copy's toolchain is named by another path
    words = ("plan", "recipe.yaml", "--since", "tiny@latest", "--json", *REGISTRY)
    same = again.run(*words)
    assert (same.code, same.said["unchanged"], same.said["changed"]) == (0, True, []), same.err
    again.recipe["publish"] = []
    assert again.run(*words).said["unchanged"], "where it goes changes nothing of what is built"
    again.recipe["load"] = again.recipe["load"] | {"output_tokens": 12}
    with (again.root / "text.jsonl").open("a") as file:
        file.write(json.dumps({"text": "one more story of the sun and the moon"}) + "\n")
    assert again.run(*words).said["changed"] == ["recipe", "texts"]
    (again.root / "model" / "generation_config.json").write_text("{}")
    assert "base" in again.run(*words).said["changed"]
    nobody = again.run("plan", "recipe.yaml", "--since", "other@latest", "--json", *REGISTRY)
    assert nobody.code == 0 and not nobody.said["unchanged"]


def test_a_step_of_github_gets_summary_outputs_and_annotations(
    again: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: again.root / name.lower() for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    for name, path in files.items():
        monkeypatch.setenv(name, str(path))
    again.run("gate", "artifacts/latest", "--against", "tiny@champion", *REGISTRY)
    words = ("report", "artifacts/latest", "--github", "--junit", "junit.xml", "--comment", "comment.md")
    done = again.run(*words)
    assert done.code == 0, done.err
    outputs = dict(line.split("=", 1) for line in files["GITHUB_OUTPUT"].read_text().splitlines())
    assert outputs["verdict"] == "published" and outputs["digest"].startswith("sha256:")
    summary = files["GITHUB_STEP_SUMMARY"].read_text()
    assert "## Gate" in summary and summary in (again.root / "comment.md").read_text()
    assert "<testsuite" in (again.root / "junit.xml").read_text()
    monkeypatch.delenv("GITHUB_OUTPUT")
    assert again.run(*words).code == 2
