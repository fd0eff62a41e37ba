"""May a new version take the champion's place? A second build of another candidate in the place of the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optpipe.records import Measured
from optpipe.stats import rate
from optpipe.versus import Champion, rate_check
from tests.fakes.place import INT8, W4, Done, Place
from tests.models import tiny_llama

Built = tuple[Place, Done]
UNTUNED: dict[str, Any] = {"tune": {"trials": 0}}


def rebuilt(place: Place, **keys: Any) -> Done:
    """A build of what these keys make of the recipe, which always publishes a new version."""
    place.recipe |= keys
    done = place.build()
    assert (done.code, done.said["verdict"]) == (0, "published"), done.err
    return done


def champion(place: Place) -> str:
    aliases = json.loads(place.run("list", "--json").out)["models"]["tiny"]["aliases"]
    return str(aliases["champion"])


def told(place: Place, done: Done) -> str:
    """Why the champion stays, once it is sure that it does and that the version is there all the same."""
    (published,) = done.said["published"]
    before, challenge = champion(place), published["challenge"]
    assert published["aliases"] == ["latest"] and Path(published["location"]).is_dir()
    assert (challenge["champion"], challenge["passed"]) == (before, False) and before != published["digest"]
    reasons = [str(reason) for reason in challenge["reasons"]]
    (record,) = json.loads((place.artifacts / "latest" / "11-challenge.json").read_text())
    assert [check["reason"] for check in record["checks"]] == reasons
    report = (place.artifacts / "latest" / "report.md").read_text()
    for reason in reasons:
        assert f"against the champion: {reason}" in done.err and reason.split(":")[0] in report
    assert f"champion stays at {before[:19]}" in done.err
    return "\n".join(reasons)


def loads(place: Place, after: int = 0) -> list[tuple[str, int]]:
    """(who, seed) of each load of a comparison, in order."""
    acts = [act["who"].split() for act in place.log()[after:] if act["at"] == "load"]
    found = [(f"{name} {kind}", int(seed)) for name, kind, _, seed in acts]
    return [(who, seed) for who, seed in found if seed > 2000]


# ---------------------------------------------------------------- it moves


def test_a_version_that_is_as_good_takes_the_place(again: Place, built: Built) -> None:
    before = len(again.log())
    done = rebuilt(again, checkpoints={"w4-g64": W4 | {"group_size": 64}})
    (published,) = done.said["published"]
    assert published["aliases"] == ["latest", "champion"] and champion(again) == done.said["digest"]
    challenge = published["challenge"]
    assert (challenge["champion"], challenge["passed"]) == (built[1].said["digest"], True)
    assert [reason.split()[0] for reason in challenge["reasons"]] == ["perplexity", "goodput", "output"]
    assert "champion moves to the new version" in done.err
    first, second = loads(again, before)[0][1], loads(again, before)[2][1]
    assert loads(again, before) == [
        ("champion tuned", first),
        ("w4-g64@vllm tuned", first),
        ("champion tuned", second),
        ("w4-g64@vllm tuned", second),
    ], "by turns, each pair under one load of its own"


def test_the_same_version_again_measures_nothing(again: Place) -> None:
    before = len(again.log())
    done = again.build()
    assert done.said["published"][0]["aliases"] == ["latest", "champion"]
    assert done.said["published"][0]["challenge"]["reasons"] == []
    assert again.log()[before:] == [] and done.jobs["run"] == 0


def test_a_lost_challenge_again_measures_nothing_and_another_measures_the_champion_anew(again: Place) -> None:
    rebuilt(again, **UNTUNED, checkpoints={"int8": INT8})
    earlier, before = loads(again), len(again.log())
    second = rebuilt(again)
    assert second.jobs["run"] == 0 and again.log()[before:] == []
    assert "goodput" in told(again, second)
    rebuilt(again, checkpoints={"w4-g64": W4 | {"group_size": 64}})
    anew = loads(again, before)
    assert [who for who, _ in anew].count("champion tuned") == 2
    assert not {seed for _, seed in anew} & {seed for _, seed in earlier}


# ---------------------------------------------------------------- it stays


def test_a_slower_version_is_published_and_the_champion_stays(again: Place) -> None:
    before = len(again.log())
    done = rebuilt(again, **UNTUNED, checkpoints={"int8": INT8})
    reason = told(again, done)
    assert "goodput" in reason and "at most 10 % may be lost" in reason
    engines = {act["who"] for act in again.log()[before:] if act["at"] == "engine"}
    assert "champion tuned" in engines, "in the configuration and environment that it was confirmed with"
    assert not any(act["who"].startswith("int8@vllm tuned") for act in again.log()[before:])


def test_a_worse_version_is_published_and_the_champion_stays(fresh: Callable[..., Place]) -> None:
    place = fresh(**UNTUNED, checkpoints={"int8": INT8})
    place.order({"at": "score", "who": "8 bits", "do": "flatter"})
    rebuilt(place)
    place.order()
    done = rebuilt(place, checkpoints={"w4": W4})
    reason = told(place, done)
    assert reason.startswith("perplexity on stories against the champion's") and "above the gate of +5.0 %" in reason
    assert loads(place) == [], "what is worse need not be measured under load"


@pytest.mark.parametrize(("flattered", "moves"), [("4 bits", True), ("8 bits", False)])
def test_another_base_is_judged_on_the_same_text(fresh: Callable[..., Place], flattered: str, moves: bool) -> None:
    """The champion has 8 bits of one base, the challenger 4 bits of another, and is served faster."""
    place = fresh(**UNTUNED, checkpoints={"int8": INT8})
    rebuilt(place)
    tiny_llama(place.root / "model", seed=2)
    place.order({"at": "score", "who": flattered, "do": "flatter"})
    done = rebuilt(place, checkpoints={"w4": W4})
    assert [act["who"] for act in place.log() if act["at"] == "excerpts"], "each model with a tokenizer of its own"
    (published,) = done.said["published"]
    reason = published["challenge"]["reasons"][0] if moves else told(place, done)
    assert "stories per token of the champion's" in reason and "bits per byte" in reason
    assert (champion(place) == done.said["digest"]) is moves


def test_what_is_open_says_how_to_move_it_by_hand(again: Place, built: Built) -> None:
    again.order({"at": "engine", "who": "champion", "do": "fail", "message": "no such device"})
    done = rebuilt(again, **UNTUNED, checkpoints={"int8": INT8})
    command = f"optpipe promote tiny@{done.said['digest'][:19]}"
    assert command in done.err and champion(again) == built[1].said["digest"]
    assert again.run(*command.split()[1:], "--registry", "artifacts/registry").code == 0
    assert champion(again) == done.said["digest"]


def test_a_champion_whose_engine_does_not_start_stays(again: Place) -> None:
    again.order({"at": "engine", "who": "champion", "do": "fail", "message": "no such device"})
    reason = told(again, rebuilt(again, **UNTUNED, checkpoints={"int8": INT8}))
    assert "serving could not be compared: champion: " in reason and "no such device" in reason


def test_a_champion_that_cannot_be_read_stays(again: Place, built: Built) -> None:
    digest = str(built[1].said["digest"])
    about = again.artifacts / "registry" / "tiny" / "versions" / digest.removeprefix("sha256:") / "optpipe.json"
    about.chmod(0o644)
    about.write_text("{}")
    assert "the champion cannot be read" in told(again, rebuilt(again, **UNTUNED, checkpoints={"int8": INT8}))


def test_without_promote_a_champion_stays_unmeasured(again: Place, built: Built) -> None:
    done = rebuilt(again, **UNTUNED, checkpoints={"int8": INT8}, publish=[{"registry": "folder"}])
    (published,) = done.said["published"]
    assert published["aliases"] == ["latest"] and champion(again) == built[1].said["digest"]
    assert "names no alias" in published["challenge"]["reasons"][0] and loads(again) == []


# ---------------------------------------------------------------- parts


def test_a_champion_is_read_with_its_configuration_and_environment(built: Built) -> None:
    folder = Path(built[1].said["published"][0]["location"])
    found = Champion.read("sha256:1", folder)
    confirmed = json.loads((built[0].artifacts / "latest" / "10-confirm.json").read_text())
    assert (found.config, found.environment) == (confirmed["config"], confirmed["environment"])
    assert found.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0", "the first build's tuned setting"
    model = built[1].said["candidates"]["w4@vllm"]["model_digest"]
    assert (found.checkpoint.model_digest, found.checkpoint.path) == (model, folder)


def goodput(level: float, spread: float = 0.02) -> Measured:
    return rate([level * (1 + spread * k) for k in (-2, -1, 0, 1, 2)] * 2, "requests/s")


@pytest.mark.parametrize(
    ("level", "spread", "status"),
    [
        (12, 0.02, "passed"),
        (10, 0.02, "passed"),
        (8, 0.02, "rejected"),
        (9, 0.02, "inconclusive"),
        (9.5, 0.2, "inconclusive"),
    ],
)
def test_goodput_may_fall_by_a_tenth_and_no_more(level: float, spread: float, status: str) -> None:
    check = rate_check("goodput", goodput(10), goodput(level, spread), 10)
    assert (check.status, check.limit) == (status, -10)
    assert check.value == pytest.approx(10 * level - 100)


def test_goodput_without_an_interval_is_open_and_a_champion_that_serves_nothing_is_beaten() -> None:
    few = rate([20.0, 20.0], "requests/s")
    assert rate_check("goodput", goodput(10), few, 10).status == "inconclusive"
    assert rate_check("goodput", rate([0.0] * 10, "requests/s"), goodput(1), 10).status == "passed"
