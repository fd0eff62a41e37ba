"""May a new version take the champion's place? A second build of another candidate in the place of the first."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from optpipe.records import Measured
from optpipe.stages.challenge import Champion, goodput_check
from optpipe.stats import rate
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
    reason = str(challenge["reasons"][-1])
    (record,) = json.loads((place.artifacts / "latest" / "11-challenge.json").read_text())
    assert record["checks"][-1]["reason"] == reason
    assert f"against the champion: {reason}" in done.err and f"champion stays at {before[:19]}" in done.err
    assert reason.split(":")[0] in (place.artifacts / "latest" / "report.md").read_text()
    return reason


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
    assert [reason.split()[0] for reason in challenge["reasons"]] == ["perplexity", "goodput"]
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


def test_a_champion_of_another_base_stays_until_somebody_promotes(again: Place, built: Built) -> None:
    tiny_llama(again.root / "model", seed=2)
    done = rebuilt(again, **UNTUNED)
    reason = told(again, done)
    command = f"optpipe promote tiny@{done.said['digest'][:19]}"
    assert "another base" in reason and f"`{command}`" in reason
    assert champion(again) == built[1].said["digest"] and loads(again) == []
    assert again.run(*command.split()[1:], "--registry", "artifacts/registry").code == 0
    assert champion(again) == done.said["digest"]


def test_a_champion_whose_engine_does_not_start_stays(again: Place) -> None:
    again.order({"at": "engine", "who": "champion", "do": "fail", "message": "no such device"})
    reason = told(again, rebuilt(again, **UNTUNED, checkpoints={"int8": INT8}))
    assert "goodput could not be compared: champion: " in reason and "no such device" in reason


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
    check = goodput_check(goodput(10), goodput(level, spread))
    assert (check.status, check.limit) == (status, -10)
    assert check.value == pytest.approx(10 * level - 100)


def test_goodput_without_an_interval_is_open_and_a_champion_that_serves_nothing_is_beaten() -> None:
    assert goodput_check(goodput(10), rate([20.0, 20.0], "requests/s")).status == "inconclusive"
    assert goodput_check(rate([0.0] * 10, "requests/s"), goodput(1)).status == "passed"
