"""How often the gates err: simulated candidates of known drift go through the shipped statistics and gates.

A unit is a block of 255 scored tokens. Its drift per token is the candidate's mean drift times a log-normal
document effect (sigma 0.6) plus noise with heavy tails (Student's t, 3 degrees of freedom): a spread of 0.9 of the
mean. That is harder than what 60 blocks each of two texts gave on SmolLM2-135M (spread 0.2 to 0.6 of the
mean, skewness -0.1 to 0.5 for rounded 4-bit and 6-bit weights; 0.008 nats of noise for INT8 without drift).
Measuring goes on from 32 to 64 to 128 units while the verdict is open.

    false_alarm_rate   truth clearly under the limit (half of it, and no drift at all) and rejected
    wrong_pass_rate    truth exactly at the limit (the worst case for 5 % nominal) and passed
    found_rate         truth at twice the limit and rejected
"""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

from benchmarks import document
from optpipe import judge, stats
from optpipe.records import Json

LIMIT_PCT = 5.0
ROUNDS = (32, 64, 128)
CASES = {"none": 0.0, "half": 0.5, "at_limit": 1.0, "just_over": 1.2, "twice": 2.0}
REPEATS = 1000
TOKENS = 255


def draw_units(draw: Any, drift: float, count: int) -> tuple[list[Json], list[Json]]:
    """Base and candidate units whose expected drift is `drift` nats per token."""
    spread = max(drift, 0.01)
    effect = draw.lognormal(-0.18, 0.6, count) * drift
    noise = draw.standard_t(3, count) * spread * 0.35
    nll = draw.normal(3.3, 0.5, count)
    base = [{"tokens": TOKENS, "nll": float(x * TOKENS)} for x in nll]
    candidate = [{"tokens": TOKENS, "nll": float(x * TOKENS)} for x in nll + effect + noise]
    return base, candidate


def one(case: str, seed: int) -> Json:
    """One candidate, measured until decided or out of budget."""
    import numpy as np

    draw = np.random.default_rng([seed, list(CASES).index(case)])
    drift = math.log1p(CASES[case] * LIMIT_PCT / 100.0)
    base, candidate = draw_units(draw, drift, ROUNDS[-1])
    verdict, units = "inconclusive", 0
    for units in ROUNDS:
        change = stats.paired_change(base[:units], candidate[:units], looks=len(ROUNDS))
        verdict = judge.verdict(change, LIMIT_PCT)
        if verdict != "inconclusive":
            break
    return {"case": case, "seed": seed, "verdict": verdict, "units": units}


def measure() -> Json:
    return {"runs": [one(case, seed) for case in CASES for seed in range(REPEATS)]}


def figures(raw: Json) -> Json:
    """Rates with Wilson's interval, per case and the three that count."""

    def hits(cases: tuple[str, ...], verdict: str) -> tuple[int, int]:
        runs = [r for r in raw["runs"] if r["case"] in cases]
        return sum(r["verdict"] == verdict for r in runs), len(runs)

    wanted = {
        "false_alarm_rate": hits(("none", "half"), "rejected"),
        "wrong_pass_rate": hits(("at_limit",), "passed"),
        "found_rate": hits(("twice",), "rejected"),
        "found_just_over_rate": hits(("just_over",), "rejected"),
        "wrong_pass_just_over_rate": hits(("just_over",), "passed"),
        "passed_good_rate": hits(("none", "half"), "passed"),
        "open_at_limit_rate": hits(("at_limit",), "inconclusive"),
    }
    shares = {name: stats.proportion(*counted) for name, counted in wanted.items()}
    return {
        "figures": {
            **{name: round(figure.value, 4) for name, figure in shares.items()},
            "units_mean": round(fmean(r["units"] for r in raw["runs"]), 1),
        },
        "n": {name: figure.n for name, figure in shares.items()},
        "spread": {name: [round(x, 4) for x in figure.ci95 or ()] for name, figure in shares.items()},
        "kind": "simulated",
    }


if __name__ == "__main__":
    document.main("verdicts", measure, figures, ("numpy",))
