"""An engine that compiles when it starts, over the fakes: what is kept, under which key, and what changes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from optpipe import serve
from optpipe.model.hardware import this_machine
from optpipe.toolchains import Interpreter, get
from tests.fakes.place import W4, Done, Place

TARGETS = {"vllm": {"engine": "vllm", "max_model_len": 512, "enforce_eager": False}}
CHANGES: dict[str, Any] = {"checkpoints": {"w4": W4}, "targets": TARGETS}
CANDIDATES = ("base@vllm", "w4@vllm")


def place_at(root: Path) -> Place:
    """With a compiler on PATH, and an environment of vLLM's own."""
    place = Place.new(root)
    place.recipe |= CHANGES
    place.python("vllm", FAKE_VLLM_VERSION="0.32.0")
    place.pythons["vllm"] = root / "bin" / "vllm"
    compiler = root / "compiler" / "g++"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    place.on_path.append(compiler.parent)
    return place


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Done]:
    place = place_at(tmp_path_factory.mktemp("compiled") / "place")
    return place, place.build()


@pytest.fixture
def again(done: tuple[Place, Done], tmp_path: Path) -> Place:
    place = done[0].copied(tmp_path / "place")
    place.on_path.append(tmp_path / "place" / "compiler")
    return place


def record(place: Place, candidate: str) -> dict[str, Any]:
    path = place.artifacts / "latest" / "05-compile" / candidate / "record.json"
    return dict(json.loads(path.read_text()))


def kept(place: Place) -> dict[str, dict[str, Any]]:
    """What each kept job's key was made of."""
    paths = place.artifacts.glob("cache/jobs/*/record.json")
    return {path.parent.name: json.loads(path.read_text())["parts"] for path in paths}


def code(place: Place) -> set[str]:
    """Keys of the code that is kept."""
    return {f"sha256:{path.name}" for path in (place.artifacts / "cache" / "compiled").iterdir() if path.is_dir()}


def compiles(place: Place) -> int:
    return len([act for act in place.log() if act["at"] == "compile"])


# ---------------------------------------------------------------- what is recorded


def test_the_record_says_what_is_compiled_where_it_is_kept_and_how_the_starts_went(done: tuple[Place, Done]) -> None:
    place, said = done
    assert said.code == 0, said.err
    for name in CANDIDATES:
        made = record(place, name)
        assert made["built"] is False and made["bound_to"]["version"] == "0.32.0"
        assert made["options"] == {"dtype": "bfloat16", "kv-cache-dtype": "auto", "max-model-len": 512}
        cold = made["code"]["starts"][0]
        assert (cold["found_bytes"], cold["bytes"], cold["added"]) == (0, 1000, 1) and cold["seconds"] > 0
        assert cold["told"] == {"mode": "FAKE_ONCE", "backend": "fake"}
    assert {record(place, name)["code"]["key"] for name in CANDIDATES} == code(place)
    report = (place.artifacts / "latest" / "report.md").read_text()
    assert "| base@vllm | torch.compile at the engine's first start, kept for the next" in report
    assert "first start " in report


def test_a_second_build_starts_nothing_and_says_the_same(done: tuple[Place, Done], again: Place) -> None:
    second = again.build()
    assert (second.code, second.jobs["run"]) == (0, 0), second.err
    assert second.said["digest"] == done[1].said["digest"]
    assert record(again, "w4@vllm") == record(done[0], "w4@vllm") | {"path": record(again, "w4@vllm")["path"]}


def test_a_job_that_runs_anew_finds_the_code_of_the_first_start(again: Place) -> None:
    before = compiles(again)
    again.recipe["load"] |= {"requests": 61}
    again.recipe["tune"] = {"trials": 0}
    assert again.build().code == 0
    starts = record(again, "w4@vllm")["code"]["starts"]
    assert compiles(again) == before and [start["added"] for start in starts if start["found_bytes"]]
    assert "from what was kept" in (again.artifacts / "latest" / "report.md").read_text()


# ---------------------------------------------------------------- another environment


def test_another_engine_version_compiles_and_measures_again_and_nothing_else(again: Place) -> None:
    before, code_before = kept(again), code(again)
    again.python("vllm", FAKE_VLLM_VERSION="0.33.0")
    done = again.build()
    assert done.code == 0, done.err
    new = [parts for key, parts in kept(again).items() if key not in before]
    assert {parts["kind"] for parts in new} == {"canary", "parity", "load"}
    for name in CANDIDATES:
        made = record(again, name)
        assert made["engine_version"] == "0.33.0" and made["code"]["key"] in code(again) - code_before
        assert made["code"]["starts"][0]["found_bytes"] == 0
    assert again.build().jobs["run"] == 0


@pytest.mark.parametrize("change", [{"driver": "590.10"}, {"name": "NVIDIA H200"}])
def test_another_driver_or_gpu_compiles_and_measures_again(tmp_path: Path, change: dict[str, str]) -> None:
    """On a GPU vLLM compiles unless it is told not to. A driver changes no checkpoint and no score."""
    place = place_at(tmp_path / "place")
    place.recipe["targets"] = {"vllm": {"engine": "vllm", "max_model_len": 512}}
    place.recipe |= {"tune": {"trials": 0}, "publish": []}
    place.gpu()
    first = place.build()
    assert first.code == 0, first.err
    before, code_before = kept(place), code(place)
    place.gpu(**change)
    second = place.build()
    assert second.code == 0, second.err
    new = {parts["kind"] for key, parts in kept(place).items() if key not in before}
    assert {"load"} <= new and ("driver" not in change or new == {"load"})
    assert {record(place, name)["code"]["key"] for name in CANDIDATES} == code(place) - code_before


# ---------------------------------------------------------------- what is lost or broken off


def test_records_outlive_the_code_and_the_next_engine_compiles_again(again: Place) -> None:
    before = record(again, "w4@vllm")
    shutil.rmtree(again.artifacts / "cache" / "compiled")
    second = again.build()
    assert (second.code, second.jobs["run"]) == (0, 0), second.err
    assert record(again, "w4@vllm")["code"] == before["code"]
    again.recipe["load"] |= {"requests": 62}
    again.recipe["tune"] = {"trials": 0}
    assert again.build().code == 0
    assert code(again) == {record(again, name)["code"]["key"] for name in CANDIDATES}


def test_an_engine_that_was_killed_while_it_compiled_leaves_nothing_to_load(tmp_path: Path) -> None:
    place = place_at(tmp_path / "place")
    place.order({"at": "compile", "who": "base@vllm", "do": "die"})
    assert place.build().status("base@vllm") == "failed"
    assert list(place.artifacts.glob("cache/compiled/**/*.part"))
    place.order()
    assert place.build().status("base@vllm") == "passed"
    assert not list(place.artifacts.glob("cache/compiled/**/*.part"))


def test_code_that_is_damaged_is_made_again_at_once(again: Place) -> None:
    for made in again.artifacts.glob("cache/compiled/**/model"):
        made.write_bytes(b"half")
    again.recipe["load"] |= {"requests": 64}
    again.recipe["tune"] = {"trials": 0}
    done = again.build()
    assert done.code == 0 and "starting again without the code that was kept" in done.err
    sizes = {made.stat().st_size for made in again.artifacts.glob("cache/compiled/**/model")}
    assert sizes == {1000}
    assert record(again, "w4@vllm")["code"]["starts"][-1]["found_bytes"] == 0


def test_code_that_others_can_write_to_ends_the_build_with_3(again: Place) -> None:
    again.recipe["load"] |= {"requests": 63}
    for key in code(again):
        (again.artifacts / "cache" / "compiled" / key.removeprefix("sha256:")).chmod(0o777)
    done = again.build()
    assert done.code == 3 and "others can write here" in done.err and "would be executed" in done.err


# ---------------------------------------------------------------- who else uses it


def test_keep_lets_go_of_the_code_of_those_that_lost(again: Place) -> None:
    again.recipe["keep"] = "winner"
    assert again.build().code == 0
    assert code(again) == {record(again, again.build().said["winner"])["code"]["key"]}


def test_a_published_version_is_served_from_the_code_of_its_build(done: tuple[Place, Done]) -> None:
    place, said = done
    bundle = place.root / said.said["bundle"]
    about = json.loads((bundle / "optpipe.json").read_text())
    chain = get("vllm-cpu", {"vllm": Interpreter(str(place.root / "bin" / "vllm"))})
    with serve.kept_code(about, chain, place.artifacts / "cache") as kept_code:
        assert kept_code is not None and not kept_code.empty
        kept_code.started(1.0, {})
    assert f"sha256:{kept_code.path.name}" == record(place, said.said["winner"])["code"]["key"]
    assert "{compiled}" not in (bundle / "engine" / "vllm.env").read_text()
    assert this_machine().instruction_set == about["requirements"]["instruction_set"]
