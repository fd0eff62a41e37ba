"""A compiled target beside vLLM over the fakes: what is recorded, what runs again, what is refused."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Any

import pytest

from optpipe.errors import InputError
from optpipe.model.hardware import this_machine
from optpipe.serve import toolchain_for
from optpipe.toolchains import Interpreter, get
from tests.fakes.place import W4, Done, Place

TARGETS = {
    "vllm": {"engine": "vllm", "max_model_len": 512},
    "ort": {"engine": "onnxruntime", "max_model_len": 512},
}
CHANGES: dict[str, Any] = {"checkpoints": {"w4": W4}, "targets": TARGETS, "publish": []}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Place, Done]:
    place = Place.new(tmp_path_factory.mktemp("both") / "place")
    place.recipe |= CHANGES
    return place, place.build()


def kept(place: Place) -> dict[str, dict[str, Any]]:
    """What each kept job's key was made of."""
    paths = place.artifacts.glob("cache/jobs/*/record.json")
    return {path.parent.name: json.loads(path.read_text())["parts"] for path in paths}


def record(place: Place, candidate: str) -> dict[str, Any]:
    path = place.artifacts / "latest" / "05-compile" / candidate / "record.json"
    return dict(json.loads(path.read_text()))


def test_both_targets_end_with_figures_in_the_report(both: tuple[Place, Done]) -> None:
    place, done = both
    assert done.code == 0, done.err
    candidates = done.said["candidates"]
    assert {name for name, one in candidates.items() if one["output_tokens_per_s"]} == {
        f"{checkpoint}@{target}" for checkpoint in ("base", "w4") for target in TARGETS
    }
    assert candidates["w4@ort"]["model_digest"] == record(place, "w4@ort")["digest"]
    assert candidates["w4@ort"]["bytes"] == record(place, "w4@ort")["bytes"]
    report = (place.artifacts / "latest" / "report.md").read_text()
    assert "| stories +0.00 % |" in report, "what compiling did to the perplexity"
    assert "| w4@ort | graph with the checkpoint's 4-bit codes" in report and "version 0.18.0" in report


def test_the_record_says_what_the_artifact_is_bound_to(both: tuple[Place, Done]) -> None:
    built, plain = record(both[0], "w4@ort"), record(both[0], "w4@vllm")
    assert (built["engine"], built["engine_version"], built["built"]) == ("onnxruntime", "0.18.0", True)
    assert built["bound_to"] == {"engine": "onnxruntime", "version": "0.18.0", "processor": platform.machine()}
    assert built["limits"] == {"max_model_len": 512}
    assert built["options"] == {"accuracy_level": 1, "quantize_head": False}
    assert built["bytes"] > plain["bytes"] > 0 and built["seconds"] > 0
    assert built["made_from"] == plain["digest"] != built["digest"]
    assert (plain["built"], plain["bound_to"], plain["job"]) == (False, {}, None)


def test_the_compiled_artifact_itself_is_scored_and_compared_with_its_checkpoint(both: tuple[Place, Done]) -> None:
    place = both[0]
    found = json.loads((place.artifacts / "latest" / "06-evaluate" / "w4@ort.json").read_text())
    assert found["model_digest"] == record(place, "w4@ort")["digest"]
    (check,) = [one for one in found["checks"] if one["name"] == "compiled on stories"]
    assert (check["status"], check["value"]) == ("passed", 0.0)
    kinds = [parts["kind"] for parts in kept(place).values()]
    assert kinds.count("score-onnxruntime") == kinds.count("compile-onnxruntime") == 2


def test_another_engine_version_compiles_and_measures_again_and_nothing_else(
    both: tuple[Place, Done], tmp_path: Path
) -> None:
    place = both[0].copied(tmp_path / "place")
    before = kept(place)
    place.python("onnxruntime", FAKE_ONNXRUNTIME_VERSION="0.19.0")
    done = place.build()
    assert done.code == 0, done.err
    new = [parts for key, parts in kept(place).items() if key not in before]
    again = {parts["kind"] for parts in new}
    assert {"compile-onnxruntime", "score-onnxruntime", "canary", "parity", "load"} == again
    served = [parts["engine"]["engine"] for parts in new if "engine" in parts]
    assert set(served) == {"onnxruntime"}, "nothing of vLLM ran again"
    assert record(place, "w4@ort")["engine_version"] == "0.19.0"
    assert place.build().jobs["run"] == 0


def test_a_variable_that_reaches_into_engines_measures_again_and_quantizes_nothing(
    both: tuple[Place, Done], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = both[0].copied(tmp_path / "place")
    before = kept(place)
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    assert place.build().code == 0
    again = {parts["kind"] for key, parts in kept(place).items() if key not in before}
    assert {"compile-onnxruntime", "load"} <= again and not again & {"quantize", "score", "tokens"}


# ---------------------------------------------------------------- what is not there, what does not fit


def test_an_absent_engine_is_skipped_with_the_reason(both: tuple[Place, Done], tmp_path: Path) -> None:
    place = both[0].copied(tmp_path / "place")
    (place.root / "bin" / "onnxruntime").unlink()
    done = place.build()
    assert (done.code, done.status("w4@ort"), done.status("w4@vllm")) == (0, "skipped", "passed")
    assert "onnxruntime is absent" in done.reasons("w4@ort") and "not a program" in done.reasons("w4@ort")


def test_a_required_engine_that_is_absent_ends_the_build_with_3(both: tuple[Place, Done], tmp_path: Path) -> None:
    place = both[0].copied(tmp_path / "place")
    (place.root / "bin" / "onnxruntime").unlink()
    done = place.build("--require-target", "ort")
    assert done.code == 3 and "bin/onnxruntime" in done.err
    wrong = place.build("--require-target", "onnx")
    assert wrong.code == 2 and "no target of this recipe" in wrong.err


def test_a_version_for_another_engine_version_is_refused_with_how_to_rebuild(
    both: tuple[Place, Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, here = both[0], this_machine()
    chain = get("onnxruntime-cpu", {"onnxruntime": Interpreter(str(place.root / "bin" / "onnxruntime"))})
    monkeypatch.setattr("optpipe.serve.toolchains.get", lambda *words: chain)
    about = {
        "candidate": "w4@ort",
        "target": {"engine": "onnxruntime"},
        "requirements": {"platform": "cpu"},
        "compiled": {"bound_to": record(place, "w4@ort")["bound_to"]},
    }
    assert toolchain_for(about, here) is chain
    about["compiled"]["bound_to"] |= {"version": "0.17.0"}  # type: ignore[index,operator]
    with pytest.raises(InputError, match=r"compiled for version 0\.17\.0, here 0\.18\.0") as refused:
        toolchain_for(about, here)
    assert "optpipe build" in str(refused.value.hint)
