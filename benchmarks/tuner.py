"""How near the tuner comes to the best configuration, on invented response surfaces where the best is known.

A surface has a default that is rarely best, a knee in sequences and in batched tokens that interact, a
corner that runs out of memory, small effects of the switches, and 3 % noise. Figures are simulated: they
say what the search does with a surface, not what an engine gains.
"""

from __future__ import annotations

import math
import random
from statistics import fmean, quantiles
from typing import Any

from benchmarks import document
from optpipe.proposals import Search, cells_of, settings
from optpipe.records import Json, Measured, Trial
from optpipe.search import tune

SPACE: dict[str, tuple[Any, ...]] = {
    "max_num_seqs": (4, 8, 16, 32, 64),
    "max_num_batched_tokens": (256, 512, 1024, 2048, 4096),
    "enable_prefix_caching": (True, False),
    "enable_chunked_prefill": (True, False),
    "async_scheduling": (False, True),
    "scheduling_policy": ("fcfs", "priority"),
}
DEFAULT: Json = {
    "enable_prefix_caching": True,
    "enable_chunked_prefill": True,
    "async_scheduling": False,
    "scheduling_policy": "fcfs",
}
TRIALS = (4, 8, 12, 20)
SURFACES = 60
NOISE = 0.03


class Surface:
    """Goodput of a configuration; None where the engine would run out of memory."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(seed)
        self.knee_seqs, self.knee_tokens = draw.uniform(2.5, 6.5), draw.uniform(8.0, 11.5)
        self.fall_seqs, self.fall_tokens = draw.uniform(0.05, 0.25), draw.uniform(0.02, 0.12)
        self.default_seqs, self.default_tokens = draw.choice((3, 4, 5, 6, 7)), draw.choice((9, 11, 12))
        self.caching, self.chunked = draw.uniform(-0.03, 0.25), draw.uniform(-0.1, 0.1)
        self.overlap, self.order = draw.uniform(0.0, 0.08), draw.uniform(-0.01, 0.01)
        self.memory, self.scale = draw.uniform(15.0, 18.5), draw.uniform(1.0, 5.0)

    def __call__(self, config: Json) -> float | None:
        asked = config.get("max_num_seqs")
        seqs = math.log2(asked) if asked else float(self.default_seqs)
        tokens = math.log2(config.get("max_num_batched_tokens") or 2**self.default_tokens)
        if asked and seqs + tokens > self.memory:
            return None
        rise = 1.0 / (1.0 + math.exp(-(seqs - self.knee_seqs + 1.5) * 1.2))
        fall = self.fall_seqs * max(0.0, seqs - self.knee_seqs) ** 2
        fall += (
            self.fall_tokens * (tokens - self.knee_tokens) ** 2 + 0.03 * max(0.0, seqs - tokens + 5.0) ** 2
        )
        switches = (1.0 + self.caching * config["enable_prefix_caching"]) * (
            1.0 + self.chunked * config["enable_chunked_prefill"]
        )
        switches *= 1.0 + self.overlap * config["async_scheduling"]
        switches *= 1.0 + self.order * (config["scheduling_policy"] == "fcfs")
        return float(self.scale * rise * math.exp(-fall) * switches)


def trial(surface: Surface, config: Json, draw: random.Random) -> Trial:
    """One noisy measurement with an honest interval."""
    true = surface(config)
    if true is None:
        return Trial(0, config, "infeasible", "out of memory", None)
    value, half = true * (1.0 + NOISE * draw.gauss(0.0, 1.0)), 2.26 * NOISE * true
    return Trial(0, config, "measured", "", Measured(value, (value - half, value + half), 10, "requests/s"))


def run(seed: int, trials: int, method: str) -> Json:
    """True goodput of what one search keeps, the best cell's, and how rare near-best cells are."""
    surface, draw = Surface(seed), random.Random(seed + 999)
    search = Search("w4@vllm", SPACE, DEFAULT, trials, seed=seed, method="tpe" if method == "tpe" else "gp")
    cells = [settings(cell) for cell in cells_of(search)]
    values = [value for cell in cells if (value := surface(cell)) is not None]
    if method == "random":
        tried = [cells[0], *draw.sample(cells[1:], trials)]
        measured = [trial(surface, cell, draw) for cell in tried]
        found = max(measured, key=lambda t: t.goodput_per_s.value if t.goodput_per_s else -1.0).config
        count = len(tried)
    else:
        tuning = tune(search, lambda config: trial(surface, config, draw))
        found, count = tuning.config, len(tuning.trials)
    near = sum(value > 0.95 * max(values) for value in values) / len(cells)
    return {
        "method": method,
        "trials": trials,
        "seed": seed,
        "share": (surface(found) or 0.0) / max(values),
        "default": (surface(cells[0]) or 0.0) / max(values),
        "measured": count / len(cells),
        "near_best": near,
    }


def measure() -> Json:
    methods = ("gp", "tpe", "random")
    return {"runs": [run(s, n, m) for m in methods for n in TRIALS for s in range(SURFACES)]}


def figures(raw: Json) -> Json:
    """The shipped search at 12 trials, and every method at every budget beside it."""

    def of(method: str, trials: int, key: str = "share") -> list[float]:
        return [r[key] for r in raw["runs"] if r["method"] == method and r["trials"] == trials]

    table: dict[str, float] = {
        f"{method}_{trials}": round(fmean(of(method, trials)), 3)
        for method in ("gp", "tpe", "random")
        for trials in TRIALS
    }
    tenths = quantiles(of("gp", 12), n=10)
    return {
        "figures": {
            "goodput_share": table["gp_12"],
            "measurements_share": round(fmean(of("gp", 12, "measured")), 4),
            "cells_near_best_share": round(fmean(of("gp", 12, "near_best")), 4),
            "default_share": round(fmean(of("gp", 12, "default")), 3),
            **table,
        },
        "n": len(of("gp", 12)),
        "spread": {"goodput_share_p10": round(tenths[0], 3), "goodput_share_p90": round(tenths[8], 3)},
        "kind": "simulated on invented response surfaces",
    }


if __name__ == "__main__":
    document.main("tuner", measure, figures, ("numpy", "optuna"))
