"""Verdicts follow the bounds, and their sentences say what a person needs."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from optpipe.errors import InputError
from optpipe.gates import bits_of, for_scheme
from optpipe.judge import (
    Gates,
    GateSettings,
    artifact_checks,
    canary_check,
    combine,
    coverage_check,
    gate,
    load_checks,
    parity_check,
    per_cent,
    resolve,
    text_checks,
    verdict,
)
from optpipe.records import Check, Checkpoint, LoadFigures, Measured, Percentiles, Status, TextQuality

GATES = resolve("default", 4)


def drift(value: float, lower: float, upper: float, n: int = 32) -> Measured:
    return Measured(value, (lower - 0.1, upper + 0.1), n, "%", "", (lower, upper))


@pytest.mark.parametrize(
    ("lower", "upper", "expected"),
    [(1.0, 4.9, "passed"), (5.1, 9.0, "rejected"), (4.0, 6.0, "inconclusive"), (4.0, 5.0, "inconclusive")],
)
def test_a_verdict_needs_the_bound_on_one_side_of_the_limit(
    lower: float, upper: float, expected: str
) -> None:
    figure = drift((lower + upper) / 2, lower, upper)
    assert verdict(figure, 5.0) == expected
    mirrored = replace(figure, value=-figure.value, bounds95=(-upper, -lower))
    assert verdict(mirrored, -5.0, at_most=False) == expected


def test_a_drift_inside_the_interval_for_reading_can_still_pass_its_one_sided_gate() -> None:
    assert verdict(Measured(4.0, (2.9, 5.1), 32, "%", "", (3.1, 4.9)), 5.0) == "passed"


def test_without_bounds_nothing_is_decided_and_not_finite_is_failed() -> None:
    few = Measured(1.0, None, 12, "%")
    assert verdict(few, 5.0) == "inconclusive"
    assert (
        "over 12 units: a verdict needs at least 30" in gate("perplexity on wiki", few, 5.0, per_cent).reason
    )
    for bad in (float("nan"), float("-inf")):
        check = gate("perplexity on wiki", Measured(bad, None, 32, "%"), 5.0, per_cent)
        assert (check.status, check.value) == ("failed", None)


def test_sentences_are_for_people() -> None:
    worse = gate("perplexity on wiki", drift(8.8, 7.9, 9.6), 5.0, per_cent)
    assert worse.reason == "perplexity on wiki +8.8 % (95 % bound +7.9 %) is above the gate of +5.0 %"
    fine = gate("perplexity on wiki", drift(1.2, 0.6, 1.9), 5.0, per_cent)
    assert fine.reason == "perplexity on wiki +1.2 % (95 % bound +1.9 %) is below the gate of +5.0 %"
    near = gate("perplexity on wiki", drift(4.5, 3.8, 5.2), 5.0, per_cent)
    assert "about 144 units would decide, 32 are measured" in near.reason


def quality(change: Measured) -> TextQuality:
    small = Measured(0.1, (0.09, 0.11), 32, "nats/token", "", (0.09, 0.11))
    agree = Measured(0.8, (0.78, 0.82), 32, "fraction", "", (0.78, 0.82))
    return TextQuality("wiki", 8160, 32, 13.0, 12.0, change, small, agree)


def test_each_text_has_its_own_three_gates() -> None:
    changes = (drift(8.8, 7.9, 9.6), drift(1.0, 0.5, 1.5))
    checks = [check for change in changes for check in text_checks(quality(change), GATES)]
    assert [check.status for check in checks] == [
        "rejected",
        "passed",
        "passed",
        "passed",
        "passed",
        "passed",
    ]
    assert combine(checks) == "rejected"


def test_divergence_and_agreement_are_stricter_for_more_bits() -> None:
    at_4, at_8 = (text_checks(quality(drift(1.0, 0.5, 1.5)), gates) for gates in (GATES, resolve("default", 8)))
    assert [check.status for check in at_4] == ["passed", "passed", "passed"]
    assert [check.status for check in at_8] == ["passed", "rejected", "rejected"]


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        (["passed", "passed"], "passed"),
        (["passed", "inconclusive"], "inconclusive"),
        (["inconclusive", "rejected"], "rejected"),
        (["rejected", "failed", "passed"], "failed"),
        ([], "skipped"),
    ],
)
def test_the_worst_check_counts(statuses: list[Status], expected: str) -> None:
    assert combine([Check("x", status, "") for status in statuses]) == expected


def test_a_recipe_replaces_single_numbers_of_a_preset() -> None:
    gates = resolve(GateSettings(preset="strict", kl_divergence=0.3), 4)
    assert gates.kl_divergence == 0.3
    assert gates.perplexity_increase_pct == 1.0
    assert set(asdict(gates)) == set(asdict(GateSettings())), "every number of a recipe is in the gates"
    assert all(value is not None for value in asdict(gates).values())


def test_unusual_bits_take_the_nearest_limits() -> None:
    assert resolve("default", 3).kl_divergence == resolve("default", 4).kl_divergence
    assert resolve("default", 4.6).kl_divergence == resolve("default", 4).kl_divergence


def test_limits_follow_the_schemes_bits_not_the_files_average() -> None:
    assert bits_of({"method": "gptq", "bits": 4, "group_size": 64}) == 4
    assert bits_of({"method": "smoothquant", "strength": 0.8}) == 8
    assert bits_of({"method": "nvfp4"}) == bits_of({"method": "mxfp4"}) == 4
    assert bits_of(None) == 16


def test_wrong_gates_are_named() -> None:
    with pytest.raises(InputError, match="did you mean 'default'"):
        resolve("defualt", 4)
    with pytest.raises(ValueError, match=r"gates\.kl_divergence: -0\.1"):
        GateSettings(kl_divergence=-0.1)


def checkpoint(size: int, bits: float, method: str | None = "gptq") -> Checkpoint:
    scheme = None if method is None else {"method": method}
    return Checkpoint("w4", Path("w4"), "sha256:0", size, bits, scheme, 1.0, 0)


def test_weights_that_were_copied_unquantized_are_rejected() -> None:
    checks = artifact_checks(checkpoint(269_000_000, 16.0), 269_000_000, 6.8, GATES)
    assert [check.status for check in checks] == ["passed", "rejected", "rejected"]
    assert "16.00 bits per weight are not what was asked for: 6.80" in checks[2].reason


def test_a_good_artifact_passes_and_the_base_need_not_be_smaller_than_itself() -> None:
    assert combine(artifact_checks(checkpoint(114_000_000, 6.9), 269_000_000, 6.8, GATES)) == "passed"
    assert combine(artifact_checks(checkpoint(269, 16.0, None), 269, 16.0, GATES)) == "passed"


def test_a_nan_in_a_weight_fails_and_is_named() -> None:
    checks = artifact_checks(checkpoint(114, 6.8), 269, 6.8, GATES, ["model.layers.3.mlp.up_proj.weight"])
    assert combine(checks) == "failed"
    assert "model.layers.3.mlp.up_proj.weight" in checks[0].reason


def test_layers_that_were_left_out_are_counted_and_named() -> None:
    asked = [f"layers.{i}.mlp" for i in range(10)]
    check = coverage_check(10, asked[-7:])
    assert check.status == "rejected"
    assert "7 of 10 layers" in check.reason
    assert "and 2 more" in check.reason
    assert coverage_check(10, []).status == "passed"


def test_a_canary_that_does_not_say_passed_is_rejected() -> None:
    assert canary_check({"passed": True, "reason": ""}).status == "passed"
    bad = canary_check({"passed": False, "reason": "answer 2 repeats one token 48 times"})
    assert (bad.status, bad.reason) == ("rejected", "answer 2 repeats one token 48 times")
    assert canary_check({}).status == "rejected"


def parity(mean: float, p99: float) -> dict[str, float]:
    return {"mean_abs": mean, "p99_abs": p99, "n_tokens": 510, "perplexity": 12.0}


@pytest.mark.parametrize(
    ("record", "base", "expected"),
    [
        (parity(0.02, 0.2), parity(0.0, 0.0), "passed"),  # a perfect base does not fail everybody
        (parity(0.05, 0.4), parity(0.02, 0.15), "passed"),
        (parity(0.08, 0.4), parity(0.02, 0.15), "rejected"),
        (parity(0.02, 0.6), parity(0.02, 0.15), "rejected"),  # a few tokens far off show in P99 only
        (parity(2.0, 9.0), parity(3.0, 12.0), "rejected"),  # a broken base does not excuse anybody
        (parity(0.02, 0.15), None, "passed"),
        (parity(2.0, 9.0), None, "rejected"),
        (parity(float("nan"), 0.1), parity(0.02, 0.15), "failed"),
    ],
)
def test_parity_is_measured_by_the_bases_own(
    record: dict[str, float], base: dict[str, float] | None, expected: str
) -> None:
    assert combine(parity_check(record, base, GATES)) == expected


def figures() -> LoadFigures:
    none, rate = Percentiles(None, None, None, None, 100), Measured(2.0, (1.9, 2.1), 8, "requests/s")
    return LoadFigures(
        requests=100,
        failures=0,
        seconds=60.0,
        concurrency=None,
        requested_rate=2.0,
        achieved_rate=2.0,
        output_tokens_per_s=rate,
        requests_per_s=rate,
        goodput_per_s=rate,
        inside_slo=Measured(0.95, (0.89, 0.98), 100, "fraction", "Wilson", (0.9, 0.975)),
        ttft_ms=none,
        tpot_ms=none,
        e2e_ms=none,
        prefix_cache_hit_rate=0.0,
        unique_prompts=True,
        client_limited=None,
    )


def test_thirty_per_cent_of_failures_break_the_budget() -> None:
    checks = load_checks(replace(figures(), failures=30), GATES)
    assert combine(checks) == "rejected"
    assert "30 of 100 requests failed (30 %), the budget is 1 %" in checks[0].reason
    assert combine(load_checks(replace(figures(), failures=1), GATES)) == "passed"
    assert combine(load_checks(replace(figures(), requests=0), GATES)) == "rejected"


def test_a_client_that_was_the_limit_or_prompts_that_repeat_are_no_result() -> None:
    reason = "1.2 requests were in flight on average, 4 were asked for"
    slow = load_checks(replace(figures(), client_limited=reason), GATES)
    assert combine(slow) == "inconclusive"
    assert slow[1].reason == f"the load generator was the limit: {reason}"
    assert combine(load_checks(replace(figures(), unique_prompts=False), GATES)) == "inconclusive"


def test_gates_are_frozen() -> None:
    assert isinstance(GATES, Gates)
    with pytest.raises(AttributeError):
        GATES.kl_divergence = 1.0  # type: ignore[misc]


def test_rounded_activations_widen_parity_but_not_a_number_of_ones_own() -> None:
    plain = for_scheme(GateSettings(), {"method": "gptq", "bits": 8})
    rounded = for_scheme(GateSettings(), {"method": "int8"})
    assert rounded.parity_factor == pytest.approx(10) and plain.parity_factor == 3
    assert rounded.parity_mean_ceiling > plain.parity_mean_ceiling
    own = for_scheme(GateSettings(parity_factor=2.0), {"method": "int8"})
    assert own.parity_factor == 2.0 and own.kl_divergence == rounded.kl_divergence
