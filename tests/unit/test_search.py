"""The tuner measures the default first, learns from what fails, and calls noise noise."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from optpipe.proposals import Search, cells_of, designed, scores, settings
from optpipe.records import Json, Measured, Trial, Tuning, from_json, to_json
from optpipe.search import summary, tune

SPACE: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (4, 8, 16, 32, 64),
    "max_num_batched_tokens": (256, 512, 1024, 2048),
    "enable_prefix_caching": (True, False),
}
DEFAULT: Json = {"enable_prefix_caching": True}


def rate(value: float, half: float = 0.02) -> Measured:
    return Measured(value, (value - half, value + half), 10, "requests/s")


def hill(config: Json) -> float:
    """A smooth surface whose best cell is 32 sequences and 1024 tokens; the default gives 1.0."""
    seqs, tokens = config.get("max_num_seqs", 4), config.get("max_num_batched_tokens", 256)
    far = abs(seqs.bit_length() - 6) + abs(tokens.bit_length() - 11)
    return 3.0 - 0.4 * far - 0.1 * (not config["enable_prefix_caching"])


class Bench:
    """Measures a surface and remembers what it was asked for."""

    def __init__(
        self, surface: Callable[[Json], float | None], tokens: Callable[[Json], float] | None = None
    ):
        self.surface, self.tokens, self.asked = surface, tokens, []  # type: ignore[var-annotated]

    def __call__(self, config: Json) -> Trial:
        self.asked.append(config)
        value = self.surface(config)
        if value is None:
            return Trial(0, config, "infeasible", "out of memory", None)
        tokens = rate(self.tokens(config), 0.5) if self.tokens else None
        return Trial(0, config, "measured", "", rate(value), None, tokens)


def search(trials: int = 12, **more: Any) -> Search:
    return Search("w4@vllm", SPACE, DEFAULT, trials, **more)


@pytest.mark.parametrize("method", ["gp", "tpe"])
def test_the_default_comes_first_and_a_better_one_is_found(method: Any) -> None:
    bench = Bench(hill)
    tuning = tune(search(method=method), bench)
    assert bench.asked[0] == DEFAULT
    assert tuning.trials[0].config == DEFAULT
    assert tuning.default_goodput is not None
    assert tuning.tuned_goodput is not None
    assert tuning.tuned_goodput.value >= 0.85 * 3.0
    assert tuning.config == tuning.trials[tuning.best].config
    assert [trial.number for trial in tuning.trials] == list(range(13))


@pytest.mark.parametrize("method", ["gp", "tpe"])
def test_no_configuration_is_measured_twice_even_when_the_space_runs_out(method: Any) -> None:
    small = Search("w4@vllm", {"max_num_seqs": (4, 8, 16)}, {}, 50, method=method)
    bench = Bench(lambda config: 1.0 + 0.1 * config.get("max_num_seqs", 2))
    tune(small, bench)
    assert len(bench.asked) == 4
    assert len({str(sorted(config.items())) for config in bench.asked}) == 4


def test_the_same_seed_searches_the_same_way() -> None:
    first, second = Bench(hill), Bench(hill)
    assert tune(search(), first) == tune(search(), second)
    assert first.asked == second.asked


def test_infeasible_configurations_are_recorded_avoided_and_never_kept() -> None:
    def surface(config: Json) -> float | None:
        return None if config.get("max_num_seqs", 4) >= 32 else hill(config)

    tuning = tune(search(), Bench(surface))
    infeasible = [trial for trial in tuning.trials if trial.status == "infeasible"]
    assert 1 <= len(infeasible) <= 5, "24 of 60 cells are infeasible; the search turns away"
    assert tuning.config.get("max_num_seqs", 4) < 32
    assert infeasible[0].reason == "out of memory"


def test_what_the_engine_would_refuse_is_never_measured() -> None:
    def refuse(config: Json) -> str | None:
        return "too few tokens" if config.get("max_num_batched_tokens", 2048) < 1024 else None

    bench = Bench(hill)
    tune(search(refuse=refuse), bench)
    assert all(config.get("max_num_batched_tokens", 2048) >= 1024 for config in bench.asked)
    assert len(bench.asked) == 13


def test_a_default_that_does_not_start_yields_to_one_that_works() -> None:
    tuning = tune(search(4), Bench(lambda config: None if config == DEFAULT else 2.0))
    assert tuning.best > 0
    assert tuning.default_goodput is None
    assert "works where the default does not" in summary(tuning)


def test_noise_is_not_an_improvement() -> None:
    kept = 0
    for seed in range(40):
        draw = random.Random(seed)

        def noisy(config: Json, draw: random.Random = draw) -> float:
            return 2.0 + draw.gauss(0.0, 0.02 / 2.26)

        tuning = tune(search(8, seed=seed), Bench(noisy))
        kept += tuning.best == 0
    assert kept >= 36, "the luckiest of 8 equal configurations must not be called better"
    assert "nothing is surely better" in summary(tune(search(4), Bench(lambda config: 2.0)))


def test_nothing_inside_the_slo_ends_the_search_early() -> None:
    bench = Bench(lambda config: 0.0)
    tuning = tune(search(20), bench)
    assert len(bench.asked) == 4
    assert tuning.best == 0
    assert "no configuration serves a request inside the SLO" in summary(tuning)


def test_reaching_the_requested_rate_ends_the_search() -> None:
    bench = Bench(lambda config: 5.0)
    tune(search(20, ceiling=5.0), bench)
    assert len(bench.asked) == 1


def test_equal_goodput_is_decided_by_tokens_per_second() -> None:
    bench = Bench(lambda config: 1.0, lambda config: 50.0 * hill(config))
    tuning = tune(search(12), bench)
    assert tuning.best > 0
    assert tuning.trials[tuning.best].output_tokens_per_s == max(
        (t.output_tokens_per_s for t in tuning.trials if t.output_tokens_per_s), key=lambda m: m.value
    )


def test_no_trials_measures_the_default_alone() -> None:
    bench = Bench(hill)
    assert tune(search(0), bench).config == DEFAULT
    assert len(bench.asked) == 1


def test_unset_settings_stay_out_of_the_configuration() -> None:
    cells = list(cells_of(search()))
    assert settings(cells[0]) == DEFAULT
    assert len(cells) == 6 * 5 * 2
    assert all(None not in settings(cell).values() for cell in cells)


def test_a_space_too_large_to_enumerate_is_sampled() -> None:
    wide = {f"knob_{i}": tuple(range(10)) for i in range(8)}
    cells = list(cells_of(Search("w4@vllm", wide, {}, 4)))
    assert 4096 <= len(cells) <= 4097
    assert len({tuple(cell.values()) for cell in cells}) == len(cells)
    assert len(tune(Search("w4@vllm", wide, {}, 4), Bench(lambda config: 1.0)).trials) == 5


def test_the_first_trials_spread_over_the_numbers() -> None:
    wanted = search()
    cells = list(cells_of(wanted))
    spread = [settings(cells[index]) for index in designed(wanted, cells)]
    assert len(spread) == 2
    assert all(config["enable_prefix_caching"] for config in spread)
    assert spread[0]["max_num_seqs"] > spread[1]["max_num_seqs"]


def test_what_the_engine_knows_to_be_promising_is_tried_first() -> None:
    bench = Bench(hill)
    known: Json = {"max_num_seqs": 8}
    tune(search(trials=1, first=({"max_num_seqs": 5}, known)), bench)
    assert bench.asked == [DEFAULT, DEFAULT | known], "what is not in the space is left out"


def test_the_spread_goes_on_from_a_promising_setting_that_was_better() -> None:
    for better in (True, False):
        known: Json = {"enable_prefix_caching": False}
        bench = Bench(lambda config: 2.0 if config["enable_prefix_caching"] is not better else 1.0)  # noqa: B023
        tune(search(trials=3, first=(known,)), bench)
        assert [config["enable_prefix_caching"] for config in bench.asked[2:]] == [not better] * 2


def test_an_infeasible_trial_scores_below_the_worst_measured_one() -> None:
    history = [(0, Bench(lambda c: 2.0)({})), (1, Bench(lambda c: 1.0)({})), (2, Bench(lambda c: None)({}))]
    good, poor, infeasible = scores(history)
    assert good > poor > infeasible


def test_a_tuning_survives_json() -> None:
    tuning = tune(search(4), Bench(hill))
    assert from_json(Tuning, to_json(tuning)) == tuning
