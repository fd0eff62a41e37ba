"""Intervals cover what they promise, and refuse what they cannot know."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from optpipe import drift, stats
from optpipe.errors import BackendFailed, InputError
from optpipe.records import Json, LoadFigures, Measured, Percentiles, from_json, to_json


def units(n: int, seed: int, drift: float = 0.05, tokens: int = 255) -> tuple[list[Json], list[Json]]:
    """A base and a candidate whose units drift by `drift` nats per token on average, skewed."""
    draw = random.Random(seed)
    base, candidate = [], []
    for _ in range(n):
        nll = tokens * draw.uniform(2.0, 4.0)
        shift = tokens * drift * draw.lognormvariate(-0.18, 0.6)
        base.append({"tokens": tokens, "nll": nll, "kl": None, "agree": None})
        candidate.append({"tokens": tokens, "nll": nll + shift, "kl": shift / 2, "agree": tokens - 20})
    return base, candidate


def test_the_change_of_perplexity_is_that_of_the_two_perplexities() -> None:
    base, candidate = units(40, 1)
    quality = drift.text_quality("wiki", base, candidate)
    expected = 100.0 * (quality.perplexity / quality.base_perplexity - 1.0)
    assert quality.change_pct.value == pytest.approx(expected)
    assert quality.n_tokens == 40 * 255
    assert quality.n_units == 40


def test_pairing_removes_what_texts_have_in_common() -> None:
    base, candidate = units(40, 2)
    paired = drift.text_quality("wiki", base, candidate).change_pct.ci95
    assert paired is not None
    alone = stats.ratio([u["nll"] for u in candidate], [u["tokens"] for u in candidate]).ci95
    assert alone is not None
    assert math.log1p(paired[1] / 100) - math.log1p(paired[0] / 100) < 0.2 * (alone[1] - alone[0])


def test_one_sided_bounds_lie_inside_the_displayed_interval() -> None:
    quality = drift.text_quality("wiki", *units(40, 3))
    for figure in (quality.change_pct, quality.kl_divergence, quality.top1_agreement):
        assert figure.ci95 is not None
        assert figure.bounds95 is not None
        assert figure.ci95[0] <= figure.bounds95[0] <= figure.value <= figure.bounds95[1] <= figure.ci95[1]


def test_the_upper_bound_covers_a_skewed_mean_as_often_as_it_says() -> None:
    draw = random.Random(5)
    truth, samples = math.exp(0.18), 400
    missed = 0
    for _ in range(samples):
        sample = [draw.lognormvariate(0.0, 0.6) for _ in range(40)]
        bounds = stats.ratio(sample, [1.0] * 40).bounds95
        assert bounds is not None
        missed += bounds[1] < truth
    assert 0.02 <= missed / samples <= 0.085, "5 % nominal; Student's t misses 8 % here"


def test_longer_units_count_by_their_tokens() -> None:
    weights = [100.0 if i % 2 else 300.0 for i in range(40)]
    sums = [w * (0.1 if w == 100.0 else 0.2) for w in weights]
    interval = stats.ratio(sums, weights)
    assert interval.value == pytest.approx(0.175)
    assert interval.bounds95 is not None
    assert interval.bounds95[0] < 0.175 < interval.bounds95[1]


def test_more_looks_ask_for_more_certainty() -> None:
    base, candidate = units(40, 4)
    once = drift.text_quality("wiki", base, candidate, looks=1).change_pct.bounds95
    thrice = drift.text_quality("wiki", base, candidate, looks=3).change_pct.bounds95
    assert once is not None
    assert thrice is not None
    assert thrice[0] < once[0] < once[1] < thrice[1]


def test_fewer_than_thirty_units_have_no_bounds() -> None:
    quality = drift.text_quality("wiki", *units(29, 6))
    assert quality.change_pct.bounds95 is None
    assert quality.change_pct.ci95 is None
    assert "fewer than 30" in quality.change_pct.method
    assert stats.units_needed(quality.change_pct, 5.0) == 30


def test_the_base_against_itself_has_no_drift_at_all() -> None:
    base, _ = units(30, 7)
    quality = drift.text_quality("wiki", base, base)
    assert (quality.change_pct.value, quality.change_pct.bounds95) == (0.0, (0.0, 0.0))
    assert quality.kl_divergence.value == 0.0
    assert quality.top1_agreement.value == 1.0


def test_a_drift_that_sits_in_one_unit_gets_a_wide_bound() -> None:
    interval = stats.ratio([0.0] * 39 + [10.0], [255.0] * 40)
    assert interval.bounds95 is not None
    assert math.isfinite(interval.bounds95[1])
    assert interval.bounds95[1] > 10 * interval.value


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_figure_that_is_not_finite_is_a_failure(bad: float) -> None:
    base, candidate = units(30, 8)
    candidate[3]["nll"] = bad
    with pytest.raises(BackendFailed, match="nll of unit 3") as caught:
        drift.text_quality("wiki", base, candidate)
    assert not caught.value.transient


def test_a_perplexity_beyond_a_double_is_a_failure() -> None:
    base, candidate = units(30, 9)
    for unit in candidate:
        unit["nll"] = 255 * 1000.0
    with pytest.raises(BackendFailed, match="perplexity"):
        drift.text_quality("wiki", base, candidate)


def test_units_that_are_not_the_same_are_refused() -> None:
    base, candidate = units(30, 10)
    with pytest.raises(InputError, match="base has 30 units, candidate 29"):
        drift.text_quality("wiki", base, candidate[:-1])
    candidate[4]["tokens"] = 254
    with pytest.raises(InputError, match="unit 4 has 255 tokens for the base, 254"):
        drift.text_quality("wiki", base, candidate)


def test_a_candidate_without_divergence_is_refused() -> None:
    base, candidate = units(30, 11)
    candidate[0]["kl"] = None
    with pytest.raises(InputError, match="without its base's logits"):
        drift.text_quality("wiki", base, candidate)


def test_units_needed_grow_as_the_drift_comes_near_the_limit() -> None:
    figure = Measured(4.0, None, 40, "%", "", (3.5, 4.5))
    far, near = stats.units_needed(figure, 8.0), stats.units_needed(figure, 4.2)
    assert far == stats.MIN_UNITS
    assert near == math.ceil(40 * (0.5 * (1 + stats.POWER_Z / 1.6449) / 0.2) ** 2)
    assert stats.units_needed(figure, 4.0) == stats.UNITS_CAP


def test_the_units_that_are_asked_for_do_decide() -> None:
    base, candidate = units(40, 12)
    quality = drift.text_quality("wiki", base, candidate).change_pct
    assert quality.bounds95 is not None
    limit = quality.value + 0.5 * (quality.bounds95[1] - quality.value)
    needed = stats.units_needed(quality, limit)
    assert needed > 40
    decided, tries = 0, 40
    scale = math.log1p(quality.value / 100) / 0.05
    for seed in range(tries):
        more = drift.paired_change(*units(needed, 100 + seed, 0.05 * scale))
        assert more.bounds95 is not None
        decided += more.bounds95[1] < limit
    assert decided / tries > 0.5


def test_wilson_covers_and_stays_inside_zero_and_one() -> None:
    none, some = stats.proportion(0, 20), stats.proportion(90, 100)
    assert none.ci95 == pytest.approx((0.0, 0.1611), abs=1e-3)
    assert some.ci95 == pytest.approx((0.8256, 0.9448), abs=1e-3)
    with pytest.raises(InputError, match="21 of 20"):
        stats.proportion(21, 20)


def loaded(batches: list[float]) -> LoadFigures:
    none = Percentiles(None, None, None, None, 100)
    rate = stats.rate(batches, "requests/s")
    share = stats.proportion(9, 10)
    return LoadFigures(
        requests=100,
        failures=0,
        seconds=60.0,
        concurrency=4,
        requested_rate=None,
        achieved_rate=rate.value,
        output_tokens_per_s=rate,
        requests_per_s=rate,
        goodput_per_s=rate,
        inside_slo=share,
        ttft_ms=none,
        tpot_ms=none,
        e2e_ms=none,
        prefix_cache_hit_rate=None,
        unique_prompts=True,
        client_limited=None,
        batches={"goodput_per_s": batches},
    )


def test_ten_per_cent_of_noise_is_not_a_difference() -> None:
    draw = random.Random(13)
    called = 0
    for _ in range(200):
        a, b = (loaded([draw.gauss(2.0, 0.2) for _ in range(8)]) for _ in range(2))
        gap = stats.difference(a, b)
        assert gap is not None
        assert gap.ci95 is not None
        called += not gap.ci95[0] <= 0.0 <= gap.ci95[1]
    assert called / 200 < 0.1


def test_a_real_difference_of_rates_is_seen() -> None:
    gap = stats.difference(loaded([3.0, 3.1, 2.9, 3.05]), loaded([2.0, 2.1, 1.9, 2.05]))
    assert gap is not None
    assert gap.value == pytest.approx(1.0)
    assert gap.bounds95 is not None
    assert gap.bounds95[0] > 0.8


def test_too_few_batches_have_no_interval_and_no_difference() -> None:
    assert stats.rate([2.0, 2.1], "requests/s").ci95 is None
    assert stats.difference(loaded([2.0, 2.1]), loaded([2.0, 2.1, 2.2])) is None


def test_without_batches_the_figures_own_intervals_count() -> None:
    a, b = loaded([3.0, 3.1, 2.9]), loaded([2.0, 2.1, 1.9])
    from_figures = stats.difference(replace(a, batches={}), replace(b, batches={}))
    from_batches = stats.difference(a, b)
    assert from_figures is not None
    assert from_batches is not None
    assert from_figures.ci95 == pytest.approx(from_batches.ci95)


def test_mcnemar_is_the_exact_binomial() -> None:
    assert stats.mcnemar(5, 5) == 1.0
    assert stats.mcnemar(0, 8) == pytest.approx(2 / 256)
    assert stats.mcnemar(900, 1100) < 1e-4


def test_the_same_units_give_the_same_record_and_it_survives_json() -> None:
    first, second = (drift.text_quality("wiki", *units(35, 14)) for _ in range(2))
    assert first == second
    assert from_json(type(first), to_json(first)) == first
