"""What fails ends as little as it must: a candidate, a trial, or the build with the exit code of its cause."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.place import INT8, W4, Done, Place

Fresh = Callable[..., Place]
LEAN: dict[str, Any] = {"tune": {"trials": 0}, "publish": []}
CONFIRMING = "default seed 1001"


def acts(place: Place, at: str) -> list[str]:
    return [act["who"] for act in place.log() if act["at"] == at]


def record(place: Place, name: str) -> dict[str, Any]:
    return dict(json.loads((place.artifacts / "latest" / name).read_text()))


# ---------------------------------------------------------------- candidates


def test_a_failed_quantizer_ends_its_candidate_and_only_a_passing_failure_is_tried_again(fresh: Fresh) -> None:
    place = fresh(**LEAN)
    place.order(
        {"at": "quantize", "who": "int8", "do": "fail", "message": "no kernel for this"},
        {"at": "quantize", "who": "gptq", "do": "fail-passing", "message": "out of memory today"},
    )
    first = place.build()
    assert (first.code, first.said["verdict"], first.said["winner"]) == (0, "selected", "base@vllm")
    assert (first.status("int8@vllm"), first.status("w4@vllm")) == ("failed", "failed")
    assert "no kernel for this" in first.reasons("int8@vllm") and "out of memory today" in first.reasons("w4@vllm")
    assert first.said["candidates"]["int8@vllm"]["model_digest"] is None
    assert "int8@vllm: failed: " in first.err and "hint: " in first.err
    place.order()
    second = place.build()
    assert (second.code, second.said["winner"]) == (0, "w4@vllm")
    assert second.status("int8@vllm") == "failed" and "no kernel for this" in second.reasons("int8@vllm")
    assert sorted(acts(place, "quantize")) == ["gptq", "gptq", "int8"]


def test_an_option_that_the_installed_engine_lacks_is_told_before_any_job(fresh: Fresh) -> None:
    place = fresh(**LEAN)
    place.recipe["targets"]["vllm"] |= {"engine_args": {"max_num_seq": 4}}
    done = place.build()
    assert done.code == 2 and not place.log()
    assert "targets.vllm.engine_args.max_num_seq: this vLLM has no option --max-num-seq" in done.err
    assert "did you mean 'max-num-seqs'" in done.err


def test_every_candidate_failed_is_exit_4(fresh: Fresh) -> None:
    place = fresh(**LEAN)
    place.order({"at": "score", "do": "fail-passing"})
    done = place.build()
    assert (done.code, done.said["verdict"], done.said["winner"]) == (4, "failed", None)
    assert {candidate["status"] for candidate in done.said["candidates"].values()} == {"failed"}
    assert (done.said["bundle"], done.said["digest"], done.said["tuned"], done.said["published"]) == (None,) * 3 + ([],)
    assert (place.artifacts / "latest" / "report.md").is_file()


def test_every_candidate_rejected_is_exit_5(fresh: Fresh) -> None:
    place = fresh(**LEAN, checkpoints={"int8": INT8})
    place.order({"at": "canary", "do": "repeat"})
    done = place.build()
    assert (done.code, done.said["verdict"]) == (5, "rejected")
    assert "same answer" in done.reasons("base@vllm")
    assert not acts(place, "load"), "no load on what a canary has rejected"


def test_a_base_that_wins_is_exit_5_where_it_shall_not_be_published(again: Place) -> None:
    again.recipe |= {"gates": {"top1_agreement": 0.999}, "publish_base": False}
    done = again.build()
    assert (done.code, done.jobs["run"]) == (5, 0)
    assert "publish_base" in done.reasons("base@vllm")


def test_too_few_units_to_decide_is_exit_7(fresh: Fresh) -> None:
    place = fresh(**LEAN, checkpoints={"int8": INT8})
    place.recipe["scoring"] |= {"units": 8, "max_units": 16}
    done = place.build()
    assert (done.code, done.said["verdict"]) == (7, "inconclusive")
    assert "at least 30" in done.reasons("int8@vllm")
    assert acts(place, "score") == ["16 bits", "8 bits"] * 2, "measured on up to the budget"


def test_an_engine_that_disagrees_with_transformers_is_rejected(fresh: Fresh) -> None:
    place = fresh(**LEAN, checkpoints={"int8": INT8})
    place.order({"at": "parity", "who": "int8", "do": "skew"})
    done = place.build()
    assert (done.code, done.said["winner"], done.status("int8@vllm")) == (0, "base@vllm", "rejected")
    assert "engine and transformers disagree" in done.reasons("int8@vllm")


def test_an_engine_that_does_not_start_ends_its_candidate(fresh: Fresh) -> None:
    place = fresh(**LEAN, checkpoints={"int8": INT8})
    place.order({"at": "engine", "who": "int8", "do": "fail", "message": "ValueError: int8 is not supported"})
    done = place.build()
    assert (done.code, done.said["winner"], done.status("int8@vllm")) == (0, "base@vllm", "failed")
    assert "is not supported" in done.reasons("int8@vllm")
    place.order()
    assert place.build().status("int8@vllm") == "failed", "its log says that it always will"
    assert acts(place, "engine").count("int8@vllm default") == 1


# ---------------------------------------------------------------- trials and the confirmation


def test_an_engine_that_dies_under_load_is_an_infeasible_trial(again: Place) -> None:
    again.recipe["tune"] = {"trials": 2, "seed": 5}
    again.recipe["publish"] = []
    again.order({"at": "request", "who": "w4@vllm tuned", "do": "die"})
    done = again.build()
    tuning = record(again, "08-tune/w4@vllm.json")
    # The first trial is that of the build before, and kept.
    assert [trial["status"] for trial in tuning["trials"]] == ["measured", "measured", "infeasible"]
    assert "died" in tuning["trials"][2]["reason"]
    assert (done.code, done.said["winner"]) == (0, "w4@vllm")
    assert done.said["tuned"]["config"] == tuning["trials"][1]["config"]
    assert again.left(5) == []


def test_a_winner_that_is_not_confirmed_yields_to_the_next_best(again: Place) -> None:
    again.recipe |= LEAN
    again.order({"at": "load", "who": f"w4@vllm {CONFIRMING}", "do": "fail", "message": "no answer at all"})
    done = again.build()
    assert (done.code, done.said["winner"], done.status("w4@vllm")) == (0, "int8@vllm", "failed")
    assert "no answer at all" in done.reasons("w4@vllm")
    assert record(again, "10-confirm.json")["candidate"] == "int8@vllm"
    assert record(again, "06-evaluate/w4@vllm.json")["status"] == "failed"


def test_the_next_best_is_tuned_before_it_ships(again: Place) -> None:
    again.recipe |= {"publish": [], "load": again.recipe["load"] | {"requests": 61}}
    again.order({"at": "load", "who": "w4@vllm tuned seed 1001", "do": "fail", "message": "no answer at all"})
    done = again.build()
    assert (done.code, done.said["winner"], done.status("w4@vllm")) == (0, "int8@vllm", "failed")
    tuning, confirmation = record(again, "08-tune/int8@vllm.json"), record(again, "10-confirm.json")
    assert done.said["tuned"]["config"] == tuning["config"] and len(tuning["trials"]) == 2
    assert tuning["tuned_goodput"]["value"] > tuning["default_goodput"]["value"]
    assert confirmation["candidate"] == "int8@vllm"
    shipped = {**confirmation["config"], **confirmation["environment"]}
    assert tuning["config"].items() <= shipped.items()


def test_nobody_confirmed_is_no_winner(again: Place) -> None:
    again.recipe |= LEAN
    again.order({"at": "load", "who": CONFIRMING, "do": "fail-passing"})
    done = again.build()
    assert (done.code, done.said["winner"], done.said["bundle"]) == (4, None, None)
    again.order()
    assert again.build().said["winner"] == "w4@vllm"


# ---------------------------------------------------------------- the build itself


def broken_off(done: Done, code: int) -> dict[str, Any]:
    """What a build that an error ended says: every documented key, and the error."""
    said = done.said
    top = "run verdict winner candidates tuned jobs seconds bundle digest published error"
    assert set(said) == set(top.split())
    assert done.code == said["error"]["exit_code"] == code
    assert set(said["error"]) - {"problems"} == {"exit_code", "place", "message", "hint"}
    return said


def test_a_wrong_recipe_is_exit_2_and_leaves_no_run(fresh: Fresh) -> None:
    done = fresh(checkpoints={"x": {"method": "gptq", "bitz": 4}}).build()
    said = broken_off(done, 2)
    assert (said["verdict"], said["run"], said["candidates"]) == ("failed", None, {})
    assert "bitz" in said["error"]["message"] and "bitz" in done.err and "hint" in done.err


def test_a_missing_toolchain_is_exit_3(fresh: Fresh) -> None:
    place = fresh()
    (place.root / "bin" / "python").unlink()
    done = place.build()
    assert "toolchains." in broken_off(done, 3)["error"]["place"] and "toolchains." in done.err


def test_a_job_that_all_share_ends_the_build_with_exit_4(fresh: Fresh) -> None:
    place = fresh(**LEAN)
    place.order({"at": "tokens", "do": "fail-passing", "message": "no tokens today"})
    said = broken_off(place.build(), 4)
    assert (said["verdict"], said["winner"], said["bundle"]) == ("failed", None, None)
    assert {candidate["status"] for candidate in said["candidates"].values()} == {"skipped"}
    assert (place.root / said["run"] / "02-plan.json").is_file()
    assert "no tokens today" in said["error"]["message"] and said["error"]["hint"] == "take it out again"
    assert said["seconds"]["build"] > 0


def test_a_registry_that_cannot_be_written_is_exit_6(again: Place, built: tuple[Place, Done]) -> None:
    (again.root / "shop").mkdir()
    (again.root / "shop" / "tiny").write_text("a file where the model's folder must be")
    again.recipe["publish"] = [{"registry": "folder", "path": str(again.root / "shop")}]
    done = again.build()
    said = broken_off(done, 6)
    assert "shop" in done.err
    assert (said["verdict"], said["winner"], said["published"]) == ("selected", "w4@vllm", [])
    assert said["candidates"] == built[1].said["candidates"]
    assert (again.root / said["bundle"] / "manifest.json").is_file() and said["digest"].startswith("sha256:")


MOMENTS = {"quantize": {"checkpoints": {"w4-g64": W4 | {"group_size": 64}}}, "load": {"seed": 3}, "engine": {"seed": 4}}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_build_that_is_interrupted_leaves_nothing_and_goes_on(again: Place, moment: str, number: int) -> None:
    again.recipe |= LEAN | {"load": again.recipe["load"] | {"requests": 61}} | MOMENTS[moment]
    before = len(again.log())
    again.order({"at": moment, "do": "hold"})
    process = again.start()
    again.when(moment, after=before)
    process.send_signal(number)
    done = again.ended(process, 30)
    assert "goes on where this one stopped" in broken_off(done, 130)["error"]["message"]
    assert again.left(0) == []


def test_an_interrupted_build_goes_on(again: Place, built: tuple[Place, Done]) -> None:
    again.recipe["load"] |= {"requests": 62}
    before = len(again.log())
    again.order({"at": "load", "who": "w4@vllm", "do": "hold"})
    process = again.start()
    again.when("load", "w4@vllm", after=before)
    process.send_signal(signal.SIGINT)
    assert again.ended(process, 30).code == 130
    again.order()
    done = again.build()
    assert (done.code, done.said["winner"]) == (0, "w4@vllm")
    loads = [act["who"] for act in again.log()[before:] if act["at"] == "load" and "default" in act["who"]]
    assert sorted(loads) == [f"{name}@vllm default seed 1" for name in ("base", "int8", "w4", "w4")]
