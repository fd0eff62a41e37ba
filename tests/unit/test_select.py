"""Selection: gates first, then the objective, ties to who holds the place."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from optpipe.records import (
    Check,
    Evaluation,
    LoadFigures,
    Measured,
    Percentiles,
    Selection,
    Serving,
    Status,
    TextQuality,
    Trial,
    Tuning,
)
from optpipe.stages.select import decide, select

SIZES = {"base@vllm": 270_000_000, "int8@vllm": 163_000_000, "w4@vllm": 114_000_000, "w4b@vllm": 114_000_000}


def figure(value: float, half: float, n: int = 10, unit: str = "requests/s") -> Measured:
    return Measured(value, (value - half, value + half), n, unit)


def evaluation(name: str, status: Status = "passed", drift: float = 1.0) -> Evaluation:
    change = Measured(drift, (drift - 0.3, drift + 0.3), 32, "%", "", (drift - 0.2, drift + 0.2))
    small = Measured(0.01, (0.009, 0.011), 32, "nats/token")
    text = TextQuality("wiki", 8192, 32, 12.0, 11.9, change, small, replace(small, value=0.95))
    check = Check("perplexity on wiki", status, f"{name} is {status}")
    return Evaluation(name, "sha256:0", status, (check,), (text,))


def serving(
    name: str, goodput: float, half: float, status: Status = "passed", tokens: float = 100.0
) -> Serving:
    none = Percentiles(None, None, None, None, 100)
    figures = LoadFigures(
        requests=100,
        failures=0,
        seconds=60.0,
        concurrency=4,
        requested_rate=None,
        achieved_rate=goodput,
        output_tokens_per_s=figure(tokens, 5.0),
        requests_per_s=figure(goodput, half),
        goodput_per_s=figure(goodput, half),
        inside_slo=Measured(0.95, (0.9, 0.98), 100, "fraction"),
        ttft_ms=none,
        tpot_ms=none,
        e2e_ms=none,
        prefix_cache_hit_rate=0.0,
        unique_prompts=True,
        client_limited=None,
    )
    return Serving(name, {}, status, f"{name} under load: {status}", figures, "aiperf profile")


def run(
    names: dict[str, tuple[float, float]], objective: str = "goodput", incumbent: str | None = None
) -> Selection:
    evaluations = [evaluation(name) for name in names]
    servings = [serving(name, *value) for name, value in names.items()]
    return select(objective, evaluations, servings, [], SIZES, incumbent)


def reason_of(selection: Selection, name: str) -> str:
    return next(" ".join(r.reasons) for r in selection.ranks if r.candidate == name)


def test_the_most_goodput_wins_and_the_loser_is_told_by_how_much() -> None:
    chosen = run({"base@vllm": (2.0, 0.05), "int8@vllm": (3.0, 0.05)})
    assert chosen.winner == "int8@vllm"
    assert chosen.ranks[0].candidate == "int8@vllm"
    assert reason_of(chosen, "base@vllm") == "slower than int8@vllm by 33 % [31, 36]"


def test_who_serves_nobody_inside_the_slo_is_told_so() -> None:
    chosen = run({"base@vllm": (3.0, 0.9), "int8@vllm": (0.0, 0.06)})
    assert chosen.winner == "base@vllm"
    told = "no request was inside the SLO, where base@vllm carries 3 requests/s"
    assert reason_of(chosen, "int8@vllm") == told


def test_a_tie_goes_to_the_base_without_an_incumbent() -> None:
    chosen = run({"base@vllm": (2.9, 0.3), "int8@vllm": (3.0, 0.3)})
    assert chosen.winner == "base@vllm"
    assert "the base wins" in chosen.reason
    assert "tied with base@vllm" in reason_of(chosen, "int8@vllm")


def test_a_tie_goes_to_the_incumbent() -> None:
    field = {"base@vllm": (2.9, 0.3), "int8@vllm": (3.0, 0.3), "w4@vllm": (3.1, 0.3)}
    assert run(field, incumbent="int8@vllm").winner == "int8@vllm"


def test_an_incumbent_that_is_surely_worse_goes() -> None:
    field = {"base@vllm": (1.0, 0.05), "int8@vllm": (3.0, 0.3), "w4@vllm": (3.1, 0.3)}
    assert run(field).winner == "w4@vllm", "among the tied, fewer bytes"


def test_equal_bytes_are_ordered_by_name() -> None:
    assert run({"w4b@vllm": (3.1, 0.3), "w4@vllm": (3.0, 0.3)}).winner == "w4@vllm"


def test_no_interval_means_nobody_can_be_told_apart() -> None:
    servings = [serving("base@vllm", 2.0, 0.1), serving("int8@vllm", 9.0, 0.1)]
    bare = replace(servings[1].figures, goodput_per_s=Measured(9.0, None, 1, "requests/s"))  # type: ignore[type-var]
    servings[1] = replace(servings[1], figures=bare)
    chosen = select("goodput", [evaluation(s.candidate) for s in servings], servings, [], SIZES)
    assert chosen.winner == "base@vllm"
    assert "no interval" in reason_of(chosen, "int8@vllm")


@pytest.mark.parametrize("status", ["rejected", "inconclusive", "failed"])
def test_a_candidate_that_did_not_pass_quality_never_wins(status: Status) -> None:
    evaluations = [evaluation("base@vllm"), evaluation("w4@vllm", status)]
    servings = [serving("base@vllm", 1.0, 0.1), serving("w4@vllm", 99.0, 0.1)]
    chosen = select("goodput", evaluations, servings, [], SIZES)
    assert chosen.winner == "base@vllm"
    assert chosen.ranks[1].status == status
    assert reason_of(chosen, "w4@vllm") == f"w4@vllm is {status}"
    assert not chosen.ranks[1].pareto


def test_a_candidate_that_failed_under_load_never_wins() -> None:
    names = ["base@vllm", "w4@vllm"]
    servings = [serving("base@vllm", 1.0, 0.1), serving("w4@vllm", 99.0, 0.1, "failed")]
    chosen = select("goodput", [evaluation(n) for n in names], servings, [], SIZES)
    assert chosen.winner == "base@vllm"
    assert reason_of(chosen, "w4@vllm") == "w4@vllm under load: failed"


def test_an_estimate_cannot_win_because_unmeasured_candidates_are_skipped() -> None:
    chosen = select(
        "bytes", [evaluation("base@vllm"), evaluation("w4@vllm")], [serving("base@vllm", 1.0, 0.1)], [], SIZES
    )
    assert chosen.winner == "base@vllm"
    assert chosen.ranks[1].status == "skipped"


def test_nothing_passed_has_no_winner_and_counts_why() -> None:
    chosen = select(
        "goodput", [evaluation("w4@vllm", "rejected"), evaluation("int8@vllm", "failed")], [], [], SIZES
    )
    assert chosen.winner is None
    assert chosen.reason == "nothing passed: 1 rejected, 1 failed"
    assert select("goodput", [], [], [], {}).reason == "there was no candidate"


def test_bytes_ranks_by_size_alone() -> None:
    chosen = run({"base@vllm": (9.0, 0.1), "w4@vllm": (1.0, 0.1)}, objective="bytes")
    assert chosen.winner == "w4@vllm"
    assert reason_of(chosen, "base@vllm") == "larger than w4@vllm by 137 %"


def test_cost_counts_the_devices_of_a_configuration() -> None:
    servings = [serving("base@vllm", 1.0, 0.1, tokens=150.0), serving("w4@vllm", 1.0, 0.1, tokens=100.0)]
    servings[0] = replace(servings[0], config={"tensor-parallel-size": 2})
    chosen = select("cost", [evaluation(s.candidate) for s in servings], servings, [], SIZES)
    assert chosen.winner == "w4@vllm"
    assert chosen.ranks[0].objective is not None
    assert chosen.ranks[0].objective.value == pytest.approx(10_000.0)


def test_tuned_figures_count_where_a_candidate_was_tuned() -> None:
    best = Trial(1, {"max-num-seqs": 8}, "measured", "", figure(5.0, 0.1))
    tuning = Tuning("w4@vllm", "goodput", (best,), 1, best.config, figure(1.0, 0.1), best.goodput_per_s)
    servings = [serving("base@vllm", 2.0, 0.1), serving("w4@vllm", 1.0, 0.1)]
    chosen = select("goodput", [evaluation(s.candidate) for s in servings], servings, [tuning], SIZES)
    assert chosen.winner == "w4@vllm"
    assert "the winner's figure is tuned, this one is not" in reason_of(chosen, "base@vllm")
    both = [tuning, replace(tuning, candidate="base@vllm", config={}, tuned_goodput=figure(2.0, 0.1))]
    alike = select("goodput", [evaluation(s.candidate) for s in servings], servings, both, SIZES)
    assert reason_of(alike, "base@vllm").startswith("slower than") and "tuned" not in reason_of(alike, "base@vllm")


def test_nobody_inside_the_slo_is_said() -> None:
    chosen = run({"base@vllm": (0.0, 0.0), "int8@vllm": (0.0, 0.0)})
    assert chosen.winner == "base@vllm"
    assert "nobody served a request inside the SLO" in chosen.reason


def test_pareto_needs_a_sure_advantage_on_one_axis() -> None:
    evaluations = [evaluation("base@vllm", drift=0.0), evaluation("w4@vllm", drift=4.0)]
    evaluations += [evaluation("w4b@vllm", drift=4.1)]
    servings = [
        serving("base@vllm", 2.0, 0.05),
        serving("w4@vllm", 3.0, 0.05),
        serving("w4b@vllm", 2.99, 0.05),
    ]
    front = {r.candidate for r in select("goodput", evaluations, servings, [], SIZES).ranks if r.pareto}
    assert front == {"base@vllm", "w4@vllm", "w4b@vllm"}, "0.1 % of drift and 0.3 % of speed are noise"
    servings[2] = serving("w4b@vllm", 2.0, 0.05)
    front = {r.candidate for r in select("goodput", evaluations, servings, [], SIZES).ranks if r.pareto}
    assert front == {"base@vllm", "w4@vllm"}


def test_the_order_of_the_records_does_not_matter() -> None:
    draw = random.Random(7)
    for _ in range(50):
        names = {n: (draw.uniform(1.0, 1.5), draw.uniform(0.01, 0.3)) for n in SIZES}
        first = run(names)
        items = list(names.items())
        draw.shuffle(items)
        assert run(dict(items)) == first
        assert first.winner is not None
        assert all(rank.reasons for rank in first.ranks)


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="'speed'"):
        run({"base@vllm": (1.0, 0.1)}, objective="speed")


# ---------------------------------------------------------------- open verdicts


def field(*statuses: Status) -> tuple[list[Evaluation], list[Serving]]:
    """base, int8, w4 with these verdicts; the smaller, the faster."""
    names = [*SIZES][: len(statuses)]
    evaluations = [evaluation(name, status) for name, status in zip(names, statuses, strict=True)]
    return evaluations, [serving(name, 10.0 + 5 * number, 0.1) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("policy", "winner"), [("extend", "int8@vllm"), ("warn", "int8@vllm"), ("fail", None)]
)
def test_what_passed_comes_before_what_is_open(policy: str, winner: str | None) -> None:
    found = decide(policy, "goodput", *field("passed", "passed", "inconclusive"), [], SIZES)
    assert found.winner == winner
    ranks = {rank.candidate: rank for rank in found.ranks}
    assert (ranks["int8@vllm"].status, ranks["w4@vllm"].status) == ("passed", "inconclusive")
    if policy == "fail":
        assert ranks["int8@vllm"].reasons == (found.reason,) and "w4@vllm may still pass" in found.reason


@pytest.mark.parametrize(("policy", "winner"), [("extend", None), ("warn", "w4@vllm"), ("fail", None)])
def test_where_nobody_passed_only_warn_lets_an_open_one_win(policy: str, winner: str | None) -> None:
    found = decide(policy, "goodput", *field("rejected", "inconclusive", "inconclusive"), [], SIZES)
    assert found.winner == winner
    ranks = {rank.candidate: rank for rank in found.ranks}
    assert {name: rank.status for name, rank in ranks.items()} == {
        "base@vllm": "rejected",
        "int8@vllm": "inconclusive",
        "w4@vllm": "inconclusive",
    }
    if policy == "warn":
        assert ranks["w4@vllm"].reasons == ("selected", "w4@vllm is inconclusive")
        assert found.reason.endswith("its verdict is open: w4@vllm is inconclusive")


def test_an_open_one_without_figures_cannot_win() -> None:
    evaluations, _ = field("rejected", "inconclusive")
    assert decide("warn", "goodput", evaluations, [], [], SIZES).winner is None
