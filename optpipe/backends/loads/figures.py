"""From one row per request to serving figures. Runs in the core, pure; rows are those of loads/aiperf_export.py.

Rates come from the steady part of a load: the first and the last requests in flight are dropped, for
then the engine is filling up or running empty. What is left is split in the order of completion into
batches of equal count (a multiple of the concurrency, since equal requests come back in bursts of it),
and rate and interval are those of the ratio answers / seconds over batches. Latencies and the share
inside the SLO count every measured request; a failed request is outside the SLO and has no latency.

Five batches, not more: in a simulated closed loop (200 runs of 100 requests, 4 in flight, 25 s) the 95 %
interval held the truth in this share of runs, with this half-width:

    the machine's speed            5 batches          11 batches
    steady                         0.94 +-0.6 %       0.94 +-0.4 %
    answers of unequal length      0.97 +-8.6 %       0.98 +-7.4 %
    drifts by 10 % within 0.5 s    0.92 +-5.6 %       0.93 +-4.1 %
    drifts by 10 % within 2 s      0.89 +-8.4 %       0.76 +-5.3 %
    drifts by 10 % within 10 s     0.71 +-7.1 %       0.48 +-4.1 %

A drift as slow as the load itself is in no interval of one load: only loads repeated in turn show it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from optpipe import stats
from optpipe.backends.loads.load import Load, Slo
from optpipe.records import Check, Json, LoadFigures, Measured, Percentiles, Status

BATCHES = 5
LITTLE, LATE = 0.9, 0.1
"""Fewer requests in flight than this share of the asked ones, or sent later than this share of a request's
time: then the client was the bottleneck."""


@dataclass(frozen=True)
class Batch:
    """Requests that came back one after another and the time that took."""

    rows: tuple[Json, ...]
    seconds: float


def figures(run: Json, load: Load, slo: Slo) -> LoadFigures:
    """The figures of one load; rates without an interval where there are too few requests for batches."""
    rows: list[Json] = run["rows"]
    batches = batches_of(rows, load)
    passing = [inside(row, slo) for row in rows]

    def rate(count: Callable[[Json], float], unit: str) -> tuple[Measured, list[float]]:
        return rate_of(batches, count, unit)

    requests, request_rates = rate(lambda row: row["ok"], "requests/s")
    tokens, token_rates = rate(lambda row: row["output_tokens"] if row["ok"] else 0, "tokens/s")
    good, good_rates = rate(lambda row: inside(row, slo), "requests/s")
    share = stats.proportion(sum(passing), len(rows))
    return LoadFigures(
        requests=len(rows),
        failures=sum(not row["ok"] for row in rows),
        seconds=duration(rows),
        concurrency=load.concurrency,
        requested_rate=load.request_rate,
        achieved_rate=sent_rate(rows) if load.request_rate else rate(lambda row: 1, "requests/s")[0].value,
        output_tokens_per_s=tokens,
        requests_per_s=requests,
        goodput_per_s=with_share(good, requests, share),
        inside_slo=share,
        ttft_ms=percentiles(rows, "ttft_ms"),
        tpot_ms=percentiles(rows, "tpot_ms"),
        e2e_ms=percentiles(rows, "e2e_ms"),
        prefix_cache_hit_rate=run["hit_rate"],
        unique_prompts=run["unique_prompts"],
        client_limited=client_limited(rows, load),
        batches={
            "requests_per_s": request_rates,
            "output_tokens_per_s": token_rates,
            "goodput_per_s": good_rates,
        },
    )


# ---------------------------------------------------------------- rates


def batches_of(rows: Sequence[Json], load: Load) -> list[Batch]:
    """The steady part in five batches or some more; the whole load as one where it is too short for that."""
    done = sorted(rows, key=lambda row: row["end_s"])
    unit = load.concurrency or 1
    ramp = load.concurrency or min(math.ceil(in_flight(rows)), len(rows) // 4)
    steady = done[ramp : len(done) - ramp]
    size = unit * max(1, len(steady) // (BATCHES * unit))
    groups = [steady[at : at + size] for at in range(0, len(steady) - size + 1, size)]
    edges = [done[ramp - 1]["end_s"] if ramp else 0.0, *(group[-1]["end_s"] for group in groups)]
    if len(groups) < stats.MIN_BATCHES or edges[-1] <= edges[0]:
        return [Batch(tuple(done), duration(rows))]
    return [Batch(tuple(group), end - start) for group, start, end in zip(groups, edges, edges[1:])]


def rate_of(batches: Sequence[Batch], count: Callable[[Json], float], unit: str) -> tuple[Measured, list[float]]:
    """sum(count) / sum(seconds), and a rate per batch whose mean is that ratio.

    The rates are linearised, ratio + (count - ratio * seconds) / mean(seconds): a batch in which the engine
    stalled weighs by its time, which a plain mean of count / seconds would not give.
    """
    counts = [float(sum(count(row) for row in batch.rows)) for batch in batches]
    seconds = [batch.seconds for batch in batches]
    ratio, mean = sum(counts) / sum(seconds), sum(seconds) / len(seconds)
    rates = [ratio + (c - ratio * s) / mean for c, s in zip(counts, seconds)]
    return not_negative(stats.rate(rates, unit)), rates


def not_negative(figure: Measured) -> Measured:
    """A rate's interval does not reach below 0."""

    def clip(ends: tuple[float, float] | None) -> tuple[float, float] | None:
        return None if ends is None else (max(0.0, ends[0]), max(0.0, ends[1]))

    return replace(figure, value=max(0.0, figure.value), ci95=clip(figure.ci95), bounds95=clip(figure.bounds95))


def with_share(good: Measured, requests: Measured, share: Measured) -> Measured:
    """Goodput where no request or every request was inside: that it was so is chance as well."""
    if 0.0 < share.value < 1.0 or requests.ci95 is None or requests.bounds95 is None:
        return good
    return replace(good, ci95=times(requests.ci95, share.ci95), bounds95=times(requests.bounds95, share.bounds95))


def times(rate: tuple[float, float], share: tuple[float, float] | None) -> tuple[float, float]:
    low, high = share or (0.0, 1.0)
    return rate[0] * low, rate[1] * high


def duration(rows: Sequence[Json]) -> float:
    return float(max(row["end_s"] for row in rows) - min(row["start_s"] for row in rows))


# ---------------------------------------------------------------- the SLO


def inside(row: Json, slo: Slo) -> bool:
    """Whether a request met every per-request bound, each metric's loosest; a failed one never did."""
    return bool(row["ok"]) and all(meets(row, metric, max(b.values())) for metric, b in slo.bounds().items())


def meets(row: Json, metric: str, bound: float) -> bool:
    """An answer of a single token has no time per token, so it meets any bound on that."""
    return bool(row["ok"]) and (row[metric] is None or row[metric] <= bound)


def judge(run: Json, slo: Slo) -> tuple[Check, ...]:
    """Each percentile of the SLO, by counting requests."""
    return tuple(
        percentile(run["rows"], metric, name, bound)
        for metric, bounds in slo.bounds().items()
        for name, bound in bounds.items()
    )


def percentile(rows: Sequence[Json], metric: str, name: str, bound: float) -> Check:
    """p90 at most X: at least 90 % of all requests at most X, by the one-sided bounds of that share."""
    share = stats.proportion(sum(meets(row, metric, bound) for row in rows), len(rows))
    wanted = int(name[1:]) / 100
    low, high = share.bounds95 or (0.0, 1.0)
    status: Status = "passed" if low >= wanted else "rejected" if high < wanted else "inconclusive"
    reason = (
        f"{share.value:.1%} of {share.n} requests had {metric} of at most {bound:g}"
        f" (95 % bounds {low:.1%} to {high:.1%}); {name} asks for {wanted:.0%}"
    )
    return Check(f"slo {metric} {name}", status, reason, share.value, wanted)


# ---------------------------------------------------------------- the client


def client_limited(rows: Sequence[Json], load: Load) -> str | None:
    """Why the client was the bottleneck, or None.

    Steady: while the load lasted, fewer than 90 % of the asked requests were in flight (Little's law): the
    client took more than a tenth of each cycle. Rate: requests went out slower than asked by more than
    5 % and more than three standard errors of Poisson arrivals. Both: a tenth of the requests went
    out later than decided by over a tenth of a request's median time, at least 5 ms.
    """
    if load.concurrency is not None:
        flying = in_flight(rows)
        wanted = min(load.concurrency, len(rows))
        if flying < LITTLE * wanted:
            return f"{flying:.2f} requests were in flight on average, {wanted} were asked for"
    if load.request_rate is not None and len(rows) > 1:
        sent, slack = sent_rate(rows), max(0.05, 3 / math.sqrt(len(rows) - 1))
        if sent < load.request_rate * (1 - slack):
            return f"{sent:.3g} requests/s were sent, {load.request_rate:g} were asked for"
    late = quantile([row["lag_ms"] for row in rows], 0.9)
    typical = median([row["e2e_ms"] for row in rows if row["ok"]] or [math.inf])
    if late > max(5.0, LATE * typical):
        return f"a tenth of the requests went out {late:.0f} ms late or more; one takes {typical:.0f} ms"
    return None


def in_flight(rows: Sequence[Json]) -> float:
    """Mean number of requests in flight from the first start to the last start."""
    first, last = min(row["start_s"] for row in rows), max(row["start_s"] for row in rows)
    if last <= first:
        return float(len(rows))
    return float(sum(min(row["end_s"], last) - row["start_s"] for row in rows) / (last - first))


def sent_rate(rows: Sequence[Json]) -> float:
    """Requests sent per second, from the first start to the last."""
    span = max(row["start_s"] for row in rows) - min(row["start_s"] for row in rows)
    return float((len(rows) - 1) / span) if span > 0 else 0.0


# ---------------------------------------------------------------- latencies


def percentiles(rows: Sequence[Json], metric: str) -> Percentiles:
    """Percentiles over the successes; None where there are fewer than 10 / (1 - p) of them."""
    values = [float(row[metric]) for row in rows if row["ok"] and row[metric] is not None]

    def at(percent: int) -> float | None:
        return quantile(values, percent / 100) if len(values) * (100 - percent) >= 1000 else None

    return Percentiles(at(50), at(90), at(95), at(99), len(values))


def quantile(values: Sequence[float], q: float) -> float:
    """Linear interpolation between order statistics, as numpy's default."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)
