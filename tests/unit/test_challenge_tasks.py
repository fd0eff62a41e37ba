"""A new version against the champion on tasks: the same items of the same content alone, judged only by a gate."""

from __future__ import annotations

from dataclasses import replace

import pytest

from optpipe import stats
from optpipe.judge import tasks_against
from optpipe.records import TaskQuality

RIGHT = (1, 1, 0, 0) * 10


def task(name: str, correct: tuple[float, ...]) -> TaskQuality:
    accuracy = stats.proportion(sum(correct), len(correct))
    items = tuple(range(len(correct)))
    return TaskQuality(name, "1.0", "acc", accuracy, items, correct, content=f"sha256:{name}")


def test_the_difference_is_told_with_its_flips_and_decides_nothing_without_a_gate() -> None:
    mine = task("piqa", (0, 0, 0, 0, *RIGHT[4:]))
    (check,) = tasks_against([task("piqa", RIGHT)], [mine], None)
    assert check.status == "passed" and check.value == pytest.approx(-5)
    assert "-5.0 points [" in check.reason and "2 items lost, 0 won of 40" in check.reason


@pytest.mark.parametrize(
    ("wrong", "allowed", "status"), [(0, 20.0, "passed"), (20, 10.0, "rejected"), (2, 5.0, "inconclusive")]
)
def test_a_gate_judges_the_bound(wrong: int, allowed: float, status: str) -> None:
    mine = task("piqa", (*(0,) * wrong, *RIGHT[wrong:]))
    (check,) = tasks_against([task("piqa", RIGHT)], [mine], allowed)
    assert (check.status, check.limit) == (status, -allowed)


def test_other_items_other_content_or_none_at_all_are_no_comparison() -> None:
    mine, theirs = task("piqa", RIGHT), task("piqa", RIGHT)
    others = (
        [],
        [replace(theirs, content="sha256:other")],
        [replace(theirs, content="")],
        [replace(theirs, items=tuple(range(1, 41)))],
    )
    for other in others:
        assert tasks_against(other, [mine], None) == ()
        (check,) = tasks_against(other, [mine], 5.0)
        assert check.status == "inconclusive" and "no task was scored on the same items" in check.reason


def test_only_what_both_have_is_compared() -> None:
    mine = [task("piqa", RIGHT), task("boolq", RIGHT)]
    (check,) = tasks_against([task("piqa", RIGHT[::-1]), task("sciq", RIGHT)], mine, None)
    assert "of 40" in check.reason
