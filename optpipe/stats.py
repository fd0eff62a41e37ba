"""Intervals and bounds for everything that optpipe judges; units in, `Measured` out. Pure and seeded.

Which interval: over units (blocks of text) the studentised bootstrap, over batches Welch's t, over counts
Wilson's. On skewed units (log-normal sigma 0.6 and 1, log-normal document effects on heavy-tailed noise,
units of unequal length; 1200 samples each, 5 % nominal) a one-sided 95 % bound was on the wrong side of
the truth in this share of samples, "pass" where the upper bound lay below it, "reject" where the lower
bound lay above it:

    n    Student's t            BCa bootstrap          studentised bootstrap
    30   pass 7.9-14.2 %        pass 7.3-10.3 %        pass 6.3-9.1 %
         reject 1.3-4.5 %       reject 4.7-8.8 %       reject 3.3-5.7 %
    60   pass 7.2-12.1 %        pass 5.5-9.2 %         pass 5.3-7.8 %
         reject 1.7-3.1 %       reject 5.3-6.0 %       reject 4.3-4.9 %

No interval sees what a sample misses: where 3 % of units collapse, 30 units lack one 40 % of the time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from optpipe.errors import InputError
from optpipe.records import LoadFigures, Measured

MIN_UNITS = 30
"""Fewer independent units never decide."""
MIN_BATCHES = 3
"""Fewer batches of a load carry no interval."""
RESAMPLES = 4999
UNITS_CAP = 1_000_000
POWER_Z = 0.8416
"""Quantile of the normal distribution for the 80 % chance with which a verdict shall fall."""
ALPHA_PER_LOOK = {1: 0.035, 2: 0.0209, 3: 0.0148, 4: 0.0115, 5: 0.0093}
"""One-sided level of each look: together they err 3.5 % of the time on normal units that double from look
to look (Pocock 1977; from 2 million simulated walks), which leaves 1.5 % for what skewed units add."""


@dataclass(frozen=True)
class Interval:
    """A ratio of sums with its two-sided 95 % interval and its one-sided bounds (None: too few units)."""

    value: float
    ci95: tuple[float, float] | None
    bounds95: tuple[float, float] | None
    n: int

    def measured(self, unit: str, scale: Any = lambda x: x) -> Measured:
        """The figure in another scale; `scale` is increasing, so bounds stay bounds."""

        def pair(ends: tuple[float, float] | None) -> tuple[float, float] | None:
            return None if ends is None else (scale(ends[0]), scale(ends[1]))

        method = "studentised bootstrap over units" if self.bounds95 else f"fewer than {MIN_UNITS} units"
        return Measured(scale(self.value), pair(self.ci95), self.n, unit, method, pair(self.bounds95))


# ---------------------------------------------------------------- units


def ratio(sums: Sequence[float], weights: Sequence[float], looks: int = 1) -> Interval:
    """sum(sums) / sum(weights) over independent units, with the studentised bootstrap's interval."""
    value = sum(sums) / sum(weights)
    n = len(sums)
    if n < MIN_UNITS:
        return Interval(value, None, None, n)
    alpha = ALPHA_PER_LOOK[min(max(looks, 1), max(ALPHA_PER_LOOK))]
    low, high, lower, upper = studentised(sums, weights, (0.025, 0.975, alpha, 1.0 - alpha))
    return Interval(value, (low, high), (lower, upper), n)


def studentised(
    sums: Sequence[float], weights: Sequence[float], levels: tuple[float, ...], seed: int = 20261130
) -> list[float]:
    """Ends of a ratio's interval at `levels`: quantiles of t over resampled units, turned round.

    The error of the ratio is that of its residuals sums - ratio * weights (linearised), so that units
    of unequal length count by their tokens. Units that hardly differ keep a floor under the resampled
    error: a sample whose drift sits in one unit gets a wide bound, not a division by zero.
    """
    import numpy as np

    x, w = np.asarray(sums, dtype=float), np.asarray(weights, dtype=float)
    n = len(x)

    def centre_and_error(xs: Any, ws: Any) -> tuple[Any, Any]:
        total = ws.sum(axis=-1)
        centre = xs.sum(axis=-1) / total
        residuals = xs - centre[..., None] * ws
        return centre, np.sqrt((residuals**2).sum(axis=-1) * n / (n - 1)) / total

    centre, error = centre_and_error(x, w)
    if error <= 1e-12 * max(1.0, abs(float(centre))):
        return [float(centre)] * len(levels)
    rows = np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))
    centres, errors = centre_and_error(x[rows], w[rows])
    t = (centres - centre) / np.maximum(errors, 0.01 * error)
    return [float(centre - error * np.quantile(t, 1.0 - level)) for level in levels]


# ---------------------------------------------------------------- how much more


def half_width(figure: Measured, limit: float) -> float | None:
    """Distance from the value to the one-sided bound that faces `limit`."""
    if figure.bounds95 is None:
        return None
    return figure.bounds95[1] - figure.value if limit >= figure.value else figure.value - figure.bounds95[0]


def units_needed(figure: Measured, limit: float) -> int:
    """Units in all after which the bound clears `limit` 4 times out of 5, if the value stays where it is."""
    width, gap = half_width(figure, limit), abs(limit - figure.value)
    if width is None:
        return MIN_UNITS
    if gap == 0.0 or width > gap * math.sqrt(UNITS_CAP / figure.n):
        return UNITS_CAP
    needed = figure.n * (width * (1.0 + POWER_Z / 1.6449) / gap) ** 2
    return min(UNITS_CAP, max(MIN_UNITS, math.ceil(needed)))


# ---------------------------------------------------------------- rates and shares


def rate(batches: Sequence[float], unit: str) -> Measured:
    """The mean of per-batch rates of one load with Student's interval (batch means absorb correlation)."""
    n = len(batches)
    mean = math.fsum(batches) / n
    if n < MIN_BATCHES:
        return Measured(mean, None, n, unit, f"fewer than {MIN_BATCHES} batches")
    from scipy.stats import t

    error = math.sqrt(math.fsum((x - mean) ** 2 for x in batches) / (n - 1) / n)
    wide, one = (float(t.ppf(p, n - 1)) * error for p in (0.975, 0.95))
    return Measured(mean, (mean - wide, mean + wide), n, unit, "batch means", (mean - one, mean + one))


def proportion(hits: float, n: int, unit: str = "fraction") -> Measured:
    """A share of counted cases with Wilson's interval; too wide, never too narrow, for scores between 0 and 1."""
    if not 0 <= hits <= n or n < 1:
        raise InputError(f"{hits} of {n} is not a share", place="proportion")

    def wilson(z: float) -> tuple[float, float]:
        centre, spread = (hits + z * z / 2) / (n + z * z), hits * (n - hits) / n + z * z / 4
        half = z * math.sqrt(spread) / (n + z * z)
        return max(0.0, centre - half), min(1.0, centre + half)

    return Measured(hits / n, wilson(1.95996), n, unit, "Wilson", wilson(1.64485))


def difference(a: LoadFigures, b: LoadFigures, figure: str = "goodput_per_s") -> Measured | None:
    """a - b of one rate; from both loads' batches if they are there, else from the figures' intervals."""
    whole: tuple[Measured, Measured] = (getattr(a, figure), getattr(b, figure))
    parts = (a.batches.get(figure) or (), b.batches.get(figure) or ())
    if min(len(part) for part in parts) < MIN_BATCHES:
        return difference_of(*whole)
    return difference_of(rate(parts[0], whole[0].unit), rate(parts[1], whole[1].unit))


def difference_of(a: Measured, b: Measured, level: float = 0.95) -> Measured | None:
    """a - b of two independent figures with Welch's interval at `level`; None where one has no interval."""
    if a.ci95 is None or b.ci95 is None or min(a.n, b.n) < 2:
        return None
    from scipy.stats import t

    errors = [(x.ci95[1] - x.ci95[0]) / 2 / float(t.ppf(0.975, x.n - 1)) for x in (a, b) if x.ci95]
    variance = sum(error**2 for error in errors)
    value = a.value - b.value
    if variance == 0.0:
        return Measured(value, (value, value), min(a.n, b.n), a.unit, "Welch", (value, value))
    freedom = variance**2 / sum(error**4 / (x.n - 1) for error, x in zip(errors, (a, b)))
    wide = float(t.ppf(0.5 + level / 2, freedom)) * math.sqrt(variance)
    one = float(t.ppf(level, freedom)) * math.sqrt(variance)
    n = min(a.n, b.n)
    return Measured(value, (value - wide, value + wide), n, a.unit, "Welch", (value - one, value + one))


def paired_accuracy(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> Measured:
    """Accuracy of one model less that of its base in per cent points, over the same items (1 right, 0 wrong, or a
    score in between).

    `pairs`: (base, candidate) per task; several give the mean of their differences. Wald's interval with half an
    item added to each of the four cells of (right, wrong) x (right, wrong) (Agresti and Min 2005): unlike a
    bootstrap it does not close up where no item differs. The lower bound lies above the truth in 0.2 to 7 % of
    samples of 30 items (5 % nominal; exact, for 4 to 20 % of items that differ). n counts items.
    """
    n = sum(len(base) for base, _ in pairs)
    value = centre = variance = 0.0
    for base, mine in pairs:
        flips(base, mine)  # of one length
        items, share = len(base), 1.0 / len(pairs)
        changed = math.fsum(own - theirs for theirs, own in zip(base, mine))
        adjusted = changed / (items + 2)
        spread = (math.fsum((own - theirs) ** 2 for theirs, own in zip(base, mine)) + 1) - changed**2 / (items + 2)
        value += share * changed / items
        centre += share * adjusted
        variance += share**2 * spread / (items + 2) ** 2

    def ends(z: float) -> tuple[float, float]:
        half = z * math.sqrt(variance)
        return 100.0 * max(-1.0, centre - half), 100.0 * min(1.0, centre + half)

    bounds = ends(1.64485) if n >= MIN_UNITS else None
    return Measured(100.0 * value, ends(1.95996), n, "points", "paired items, adjusted Wald", bounds)


def flips(base: Sequence[float], mine: Sequence[float]) -> tuple[list[int], list[int]]:
    """Positions that only the base has right, and that only the other has right (or where it scores higher)."""
    if len(base) != len(mine) or not base:
        raise InputError(f"{len(base)} items of the base, {len(mine)} of the candidate", place="tasks")
    changed = [(at, theirs, own) for at, (theirs, own) in enumerate(zip(base, mine)) if theirs != own]
    return [at for at, a, b in changed if a > b], [at for at, a, b in changed if a < b]


def mcnemar(only_a: int, only_b: int) -> float:
    """Exact two-sided p that two models answer the same items equally well, from the items that differ."""
    n = only_a + only_b
    tail = sum(math.comb(n, k) for k in range(min(only_a, only_b) + 1))
    return min(1.0, 2 * tail / (1 << n))
