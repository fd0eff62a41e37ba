"""How often the gates err: simulated candidates of known drift go through the shipped statistics and gates.

A unit is a block of 255 scored tokens. Its drift per token is the candidate's mean drift times a log-normal
document effect plus noise with heavy tails (Student's t, 4 degrees of freedom), together with a spread of 0.55
of the mean and a skewness of about 1. On SmolLM2-135M, 60 blocks each of two texts, the spread was 0.2 to 0.6
of the mean and the skewness -0.1 to 0.5 for rounded 4-bit and 6-bit weights, and INT8 had 0.008 nats of noise
without drift. The `_heavy` cases double the spread. Measuring goes on from 32 to 64 to 128 units while the
verdict is open.

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
from optpipe.drift import paired_change
from optpipe.records import Json

LIMIT_PCT = 5.0
ROUNDS = (32, 64, 128)
CASES = {"none": 0.0, "half": 0.5, "at_limit": 1.0, "just_over": 1.2, "twice": 2.0, "at_limit_heavy": 1.0}
REPEATS = 1000
TOKENS = 255


def draw_units(draw: Any, drift: float, heavy: bool, count: int) -> tuple[list[Json], list[Json]]:
    """Base and candidate units whose expected drift is `drift` nats per token."""
    sigma, noise_share, freedom = (0.7, 0.35, 3) if heavy else (0.4, 0.25, 4)
    effect = draw.lognormal(-0.5 * sigma**2, sigma, count) * drift
    noise = draw.standard_t(freedom, count) * max(drift, 0.02) * noise_share
    nll = draw.normal(3.3, 0.5, count)
    base = [{"tokens": TOKENS, "nll": float(x * TOKENS)} for x in nll]
    candidate = [{"tokens": TOKENS, "nll": float(x * TOKENS)} for x in nll + effect + noise]
    return base, candidate


def one(case: str, seed: int) -> Json:
    """One candidate, measured until decided or out of budget."""
    import numpy as np

    draw = np.random.default_rng([seed, list(CASES).index(case)])
    drift = math.log1p(CASES[case] * LIMIT_PCT / 100.0)
    base, candidate = draw_units(draw, drift, "heavy" in case, ROUNDS[-1])
    verdict, units = "inconclusive", 0
    for units in ROUNDS:
        change = paired_change(base[:units], candidate[:units], looks=len(ROUNDS))
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
        "wrong_pass_heavy_rate": hits(("at_limit_heavy",), "passed"),
        "wrong_reject_at_limit_rate": hits(("at_limit",), "rejected"),
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
