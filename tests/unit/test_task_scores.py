"""Scores on tasks: paired item by item, flips told even where accuracy is equal, a gate only where one is asked for."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest

from optpipe import stats, summary
from optpipe.errors import InputError
from optpipe.records import Evaluation, Json, from_json, to_json
from optpipe.report import card
from optpipe.report import tasks as told
from optpipe.report.data import Row, rows
from optpipe.report.markdown import markdown
from optpipe.report.page import html
from optpipe.stages.tasks import with_tasks
from tests.report_data import report_data


def test_flips_are_told_by_position() -> None:
    assert stats.flips([1, 1, 0, 0], [1, 0, 1, 0]) == ([1], [2])
    with pytest.raises(InputError, match="2 items of the base, 1"):
        stats.flips([1, 0], [1])


def test_the_difference_is_that_of_the_accuracies_and_closes_up_never() -> None:
    base, mine = [1] * 20 + [0] * 20, [1] * 17 + [0] * 23
    figure = stats.paired_accuracy([(base, mine)])
    assert figure.value == pytest.approx(100 * (17 - 20) / 40)
    assert figure.ci95 and figure.bounds95 and figure.ci95[0] < figure.bounds95[0] < figure.value < figure.bounds95[1]
    same = stats.paired_accuracy([(base, base)])
    assert same.value == 0 and same.ci95 and same.ci95[0] < -3 < 3 < same.ci95[1]
    assert stats.paired_accuracy([(base[:29], mine[:29])]).bounds95 is None, "fewer than 30 items never decide"


@pytest.mark.parametrize("n", [30, 60])
@pytest.mark.parametrize("truth", [(0.02, 0.02), (0.1, 0.1), (0.15, 0.05), (0.02, 0.08)])
def test_the_interval_covers_the_true_difference_at_least_as_often_as_it_says(
    n: int, truth: tuple[float, float]
) -> None:
    """Exact, over every count of lost and won items; a bound may miss 2 % more often where the drift is large."""
    p_lost, p_won = truth
    covered = below = 0.0
    for lost, won in itertools.product(range(n + 1), repeat=2):
        if lost + won > n:
            continue
        ways = math.comb(n, lost) * math.comb(n - lost, won)
        chance = ways * p_lost**lost * p_won**won * (1 - p_lost - p_won) ** (n - lost - won)
        if chance < 1e-9:
            continue
        base = [1] * lost + [0] * (n - lost)
        mine = [0] * lost + [1] * won + [0] * (n - lost - won)
        figure = stats.paired_accuracy([(base, mine)])
        assert figure.ci95 and figure.bounds95
        covered += chance * (figure.ci95[0] <= 100 * (p_won - p_lost) <= figure.ci95[1])
        below += chance * (figure.bounds95[0] <= 100 * (p_won - p_lost))
    assert covered > 0.95 and below > 0.93


def test_the_mean_over_tasks_is_tighter_than_each() -> None:
    pair = ([1, 0] * 25, [1, 0] * 20 + [0, 1] * 5)
    one, four = stats.paired_accuracy([pair]), stats.paired_accuracy([pair] * 4)
    assert one.ci95 and four.ci95 and four.n == 200
    assert (four.ci95[1] - four.ci95[0]) == pytest.approx((one.ci95[1] - one.ci95[0]) / 2)


# ---------------------------------------------------------------- from jobs to an evaluation


def record(correct: list[int], **more: Any) -> Json:
    items = [{"id": 3 * at, "correct": right, "logprobs": [-1.0 - at, -2.0]} for at, right in enumerate(correct)]
    shown = {"version": "1.0", "metric": "acc", "n": len(items), "correct": sum(correct)}
    return {
        "tasks": {"arc_easy": {**shown, "metrics": {"acc": sum(correct) / len(correct)}, "items": items}},
        "lm_eval": "0.4.13",
        "jobs": ["requests", "answers", "scores"],
        "failures": [],
        "cut": 0,
        **more,
    }


BARE = Evaluation("x@vllm", "sha256:0", "passed", (), (), details={"canary": {}})
RIGHT = [1, 1, 0, 0] * 10
BASE = with_tasks(replace(BARE, candidate="base@vllm"), record(RIGHT), None, None)


def test_a_candidate_is_paired_with_its_base_and_the_items_that_changed_are_named() -> None:
    mine = [1, 0, 1, 0] + RIGHT[4:]
    done = with_tasks(BARE, record(mine), BASE, None)
    (task,) = done.tasks
    assert task.base_accuracy == task.accuracy.value == 0.5
    assert (task.lost, task.won, task.p_different) == ((3,), (6,), 1.0)
    assert task.change_points and task.change_points.value == 0 and task.change_points.n == 40
    assert done.jobs == ("requests", "answers", "scores") and done.status == "passed"
    assert set(done.details) == {"canary", "tasks"} and done.checks == ()
    assert from_json(Evaluation, to_json(done)) == done


def test_other_items_are_never_paired() -> None:
    other = record(RIGHT)
    other["tasks"]["arc_easy"]["items"][0]["id"] = 1
    (task,) = with_tasks(BARE, other, BASE, None).tasks
    assert task.change_points is None and task.lost == ()


@pytest.mark.parametrize(
    ("wrong", "allowed", "status"),
    [(0, 20.0, "passed"), (20, 10.0, "rejected"), (2, 5.0, "inconclusive")],
)
def test_a_gate_judges_the_bound_of_the_mean_difference(wrong: int, allowed: float, status: str) -> None:
    mine = [0] * wrong + RIGHT[wrong:]
    done = with_tasks(BARE, record(mine), BASE, allowed)
    (check,) = done.checks
    assert (check.status, done.status, check.limit) == (status, status, -allowed)
    assert "accuracy on tasks" in check.reason and "points" in check.reason


def test_what_failed_is_told_and_rejects_nothing_without_a_gate() -> None:
    nothing = {"tasks": {}, "jobs": [], "failures": ["lm-eval fell over"]}
    failed = with_tasks(BARE, nothing, BASE, None)
    assert (failed.status, failed.checks, failed.tasks) == ("passed", (), ())
    assert failed.details["tasks"] == {"failures": ["lm-eval fell over"]}
    (check,) = with_tasks(BARE, nothing, BASE, 5.0).checks
    assert check.status == "inconclusive" and "lm-eval fell over" in check.reason
    (check,) = with_tasks(BARE, record(RIGHT), None, 5.0).checks
    assert check.status == "inconclusive" and "base" in check.reason
    one_failed = record(RIGHT) | {"failures": ["w4@vllm: house: exit code 1"]}
    (check,) = with_tasks(BARE, one_failed, BASE, 20.0).checks
    assert check.status == "inconclusive" and "exit code 1" in check.reason, "the mean over tasks is that of all"


def test_scores_between_right_and_wrong_are_paired_by_the_ids_that_a_command_gave() -> None:
    def scored(scores: list[float]) -> Json:
        items = [{"id": f"q{at:02d}", "correct": score} for at, score in enumerate(scores)]
        shown = {"version": "sha256:1", "metric": "score", "n": len(items), "correct": sum(scores)}
        return {"tasks": {"house": {**shown, "metrics": {"f1": 0.4}, "items": items}}, "jobs": ["j"], "failures": []}

    base = with_tasks(BARE, scored([0.5] * 40), None, None)
    (task,) = with_tasks(BARE, scored([0.25, 1.0] + [0.5] * 38), base, None).tasks
    assert (task.lost, task.won) == (("q00",), ("q01",)) and told.others(task) == ["f1 0.400"]
    assert task.accuracy.value == pytest.approx(20.25 / 40) and task.base_accuracy == 0.5
    assert task.change_points and task.change_points.value == pytest.approx(100 * 0.25 / 40)
    assert from_json(Evaluation, to_json(base)) == base


def test_transformers_beside_the_engine() -> None:
    theirs = record([0, *RIGHT[1:]])["tasks"]
    theirs["arc_easy"]["items"][5]["logprobs"] = [-6.5, -2.0]
    found = with_tasks(BARE, record(RIGHT, transformers=theirs), None, None).details["tasks"]["transformers"]
    assert found["arc_easy"] == {
        "accuracy": 19 / 40,
        "items": 40,
        "items_that_differ": [0],
        "mean_abs": pytest.approx(0.5 / 80),
        "max_abs": 0.5,
    }


def test_generated_text_of_transformers_is_compared_on_the_items_that_it_was_asked() -> None:
    mine = record(RIGHT)
    for item in mine["tasks"]["arc_easy"]["items"]:
        item["text"] = f"it is {item.pop('logprobs')}"
    items = [dict(item) for item in mine["tasks"]["arc_easy"]["items"][:4]]
    items[1] |= {"text": "something else", "correct": 0}
    theirs = {"arc_easy": {"n": 4, "correct": 1, "items": items}}
    done = with_tasks(BARE, mine | {"transformers": theirs}, None, None)
    found = done.details["tasks"]["transformers"]["arc_easy"]
    assert found == {"accuracy": 0.25, "items": 4, "items_that_differ": [3], "same_texts": 3}
    assert "3 of 4 texts the same" in told.engine(found)


# ---------------------------------------------------------------- for readers


def scored() -> Any:
    """The invented build with tasks of the base and of its winner."""
    data = report_data()
    worse = with_tasks(BARE, record([0, 0, *RIGHT[2:]], transformers=record(RIGHT)["tasks"]), BASE, None)
    failed = {"tasks": {"failures": ["gptq-w4@vllm: tasks: the engine ended"]}}
    tasks = {"base@vllm": (BASE.tasks, BASE.details), "sq-w8a8@vllm": (worse.tasks, worse.details)}
    known = {**tasks, "gptq-w4@vllm": ((), failed)}
    evaluations = tuple(
        replace(e, tasks=known[e.candidate][0], details=known[e.candidate][1]) if e.candidate in known else e
        for e in data.evaluations
    )
    return replace(data, evaluations=evaluations)


def test_reports_tell_difference_flips_and_failures() -> None:
    lines = told.lines(rows(scored()))
    assert [(line.candidate, line.winner) for line in lines] == [("sq-w8a8@vllm", True), ("base@vllm", False)]
    assert lines[0].change.startswith("\N{MINUS SIGN}5.00 points [") and lines[0].change.endswith("n=40")
    assert lines[0].flips == "2 lost, 0 won; not shown to differ (p = 0.5)"
    assert "2 other than on the engine" in lines[0].engine and lines[1].engine == ""
    assert lines[1].change == "the reference" and lines[1].flips == ""
    for text in (html(scored()), markdown(scored())):
        assert "arc_easy 1.0, acc" in text and "2 lost, 0 won" in text
        assert "not scored: gptq-w4@vllm: tasks: the engine ended" in text
    assert "lm-eval" not in markdown(report_data()) and 'id="tasks"' not in html(report_data())


def test_the_model_card_tells_the_winners_tasks() -> None:
    winner = rows(scored())[0]
    assert "| arc_easy 1.0, acc |" in card.on_tasks(winner) and "2 lost, 0 won" in card.on_tasks(winner)
    assert card.on_tasks(replace(winner, evaluation=None)) == ""


def test_scripts_get_the_figures_by_task() -> None:
    row: Row = rows(scored())[0]
    (found,) = summary.candidate(row)["tasks"].values()
    assert found["value"] == 0.45 and found["n"] == 40 and found["change_points"] == pytest.approx(-5)
    assert found["lost"] == [0, 3] and found["won"] == [] and found["p_different"] == 0.5
    assert found["metric"] == "acc" and found["version"] == "1.0" and len(found["ci95_points"]) == 2
