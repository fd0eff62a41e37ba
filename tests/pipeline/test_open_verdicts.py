"""`on_inconclusive`: what an open verdict does to a build."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.place import INT8, Done, Place

Built = tuple[Place, Done]
FEW = {"units": 8, "unit_tokens": 128, "max_units": 16, "parity_units": 2}
"""Too few units for any verdict."""


def small(fresh: Callable[..., Place], **keys: Any) -> Place:
    return fresh(tune={"trials": 0}, checkpoints={"int8": INT8}, scoring=FEW, **keys)


def looks(place: Place) -> list[str]:
    return [act["who"] for act in place.log() if act["at"] == "score"]


def test_warn_ships_the_best_of_the_open_ones_but_not_as_champion(fresh: Callable[..., Place]) -> None:
    place = small(fresh, on_inconclusive="warn")
    done = place.build()
    assert (done.code, done.said["verdict"], done.said["winner"]) == (0, "published", "int8@vllm")
    assert {done.status("int8@vllm"), done.status("base@vllm")} == {"inconclusive"}
    assert "selected" in done.reasons("int8@vllm") and "at least 30" in done.reasons("int8@vllm")
    assert looks(place) == ["16 bits", "8 bits"], "nothing is measured on"
    assert "warning: not decided: perplexity on stories" in done.err
    assert "its verdict is open" in (place.artifacts / "latest" / "report.md").read_text()
    (published,) = done.said["published"]
    assert published["aliases"] == ["latest"] and not published["challenge"]["passed"]
    assert "champion stays free" in done.err
    assert json.loads(place.run("list", "--json").out)["models"]["tiny"]["aliases"] == {"latest": done.said["digest"]}


def test_warn_tunes_and_confirms_an_open_winner(fresh: Callable[..., Place]) -> None:
    place = small(fresh, on_inconclusive="warn", publish=[])
    place.recipe["tune"] = {"trials": 1, "finalists": 2}
    done = place.build()
    assert (done.code, done.said["verdict"], done.said["winner"]) == (0, "selected", "int8@vllm")
    tuned = {path.stem for path in (place.artifacts / "latest" / "08-tune").iterdir()}
    assert tuned == {"int8@vllm", "base@vllm"} and done.said["tuned"]["config"]


@pytest.mark.parametrize("policy", ["extend", "fail"])
def test_nobody_passed_and_one_is_open_is_exit_7(fresh: Callable[..., Place], policy: str) -> None:
    place = small(fresh, on_inconclusive=policy)
    done = place.build()
    assert (done.code, done.said["verdict"], done.said["winner"]) == (7, "inconclusive", None)
    assert len(looks(place)) == (4 if policy == "extend" else 2)
    assert not (place.artifacts / "registry").exists()


@pytest.mark.parametrize("policy", ["warn", "fail"])
def test_one_passed_and_another_is_open(again: Place, built: Built, policy: str) -> None:
    """The gate is put where w4 is, so that its verdict is open."""
    divergence = built[1].said["candidates"]["w4@vllm"]["kl_divergence"]["stories"]["value"]
    again.recipe |= {"gates": {"kl_divergence": divergence}, "on_inconclusive": policy, "tune": {"trials": 0}}
    done = again.build()
    assert (done.status("w4@vllm"), done.status("int8@vllm")) == ("inconclusive", "passed")
    if policy == "warn":
        assert (done.code, done.said["verdict"], done.said["winner"]) == (0, "published", "int8@vllm")
        return
    assert (done.code, done.said["verdict"], done.said["winner"]) == (7, "inconclusive", None)
    assert "nobody is chosen while w4@vllm may still pass" in done.reasons("int8@vllm")
    assert (done.said["bundle"], done.said["published"]) == (None, [])
    assert (again.artifacts / "latest" / "report.md").is_file()
