"""Figures of a load from its requests: rates with intervals, percentiles only where there is enough."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from optpipe.backends.loads import aiperf, aiperf_export, prometheus
from optpipe.backends.loads.figures import batches_of, client_limited, figures, judge, percentiles, quantile
from optpipe.backends.loads.load import Load, Slo
from optpipe.records import Json, LoadFigures, from_json, to_json
from optpipe.worker import Failure, Work

STEADY = Load(concurrency=4, requests=100)
SLO = Slo(ttft_ms={"p90": 2000}, tpot_ms={"p90": 100})


def row(start: float, e2e: float, **changes: Any) -> Json:
    """A request of 32 tokens that began at `start` and took `e2e` seconds, a tenth of that to the first."""
    figures = {
        "start_s": start,
        "end_s": start + e2e,
        "lag_ms": 0.2,
        "ok": True,
        "ttft_ms": 100 * e2e,
        "tpot_ms": 900 * e2e / 31,
        "e2e_ms": 1000 * e2e,
        "input_tokens": 128,
        "output_tokens": 32,
        "error": None,
    }
    return {**figures, **changes}


def failed(start: float, seconds: float) -> Json:
    nothing = dict.fromkeys(("ttft_ms", "tpot_ms", "e2e_ms", "output_tokens"))
    return row(start, seconds, ok=False, error="HTTP 500", **nothing)


def closed_loop(
    n: int = 100, concurrency: int = 4, seconds: float = 1.0, noise: float = 0.0, gap: float = 0.0
) -> list[Json]:
    """n requests, `concurrency` at a time; each slot asks again `gap` seconds after its answer."""
    draw = random.Random(n)
    slots = [0.0] * concurrency
    rows = []
    for _ in range(n):
        slot = min(range(concurrency), key=slots.__getitem__)
        took = seconds * (1 + noise * draw.gauss(0, 1))
        rows.append(row(slots[slot], took))
        slots[slot] += took + gap
    return rows


def loaded(rows: list[Json], load: Load = STEADY, slo: Slo = SLO) -> LoadFigures:
    return figures({"rows": rows, "hit_rate": 0.0, "unique_prompts": True}, load, slo)


# ---------------------------------------------------------------- rates


def test_rates_of_a_steady_load() -> None:
    got = loaded(closed_loop(noise=0.05))
    assert got.requests == 100 and got.failures == 0
    assert got.requests_per_s.value == pytest.approx(4, rel=0.03)
    assert got.output_tokens_per_s.value == pytest.approx(32 * got.requests_per_s.value)
    assert got.goodput_per_s.value == got.requests_per_s.value
    low, high = got.requests_per_s.ci95 or (0, 0)
    assert 0 < low < got.requests_per_s.value < high
    assert not got.client_limited


def test_filling_up_and_running_empty_do_not_count() -> None:
    rows = closed_loop()
    slow_ends = [{**r, "end_s": r["end_s"] + 50} for r in rows[-4:]]
    assert loaded([*rows[:-4], *slow_ends]).requests_per_s.value == pytest.approx(4, rel=0.01)


def test_batches_hold_whole_bursts_of_the_concurrency() -> None:
    batches = batches_of(closed_loop(n=203, concurrency=16), Load(concurrency=16))
    assert 5 <= len(batches) < 10
    assert {len(batch.rows) % 16 for batch in batches} == {0}


def test_batch_rates_average_to_the_rate_even_where_the_engine_stalled() -> None:
    rows = closed_loop()
    late = [{**r, "start_s": r["start_s"] + 30 * (r["start_s"] > 12), "end_s": r["end_s"] + 30} for r in rows[48:]]
    got = loaded([*rows[:48], *late])
    rates = got.batches["requests_per_s"]
    assert sum(rates) / len(rates) == pytest.approx(got.requests_per_s.value)
    assert got.requests_per_s.value == pytest.approx(80 / 50, rel=0.01), "the stall weighs by its time"


def test_less_than_one_request_a_second_is_a_float() -> None:
    rows = closed_loop(n=40, concurrency=1, seconds=5.0, noise=0.02)
    got = loaded(rows, Load(concurrency=1, requests=40), Slo(e2e_ms={"p90": 6000}))
    assert got.requests_per_s.value == pytest.approx(0.2, rel=0.03)
    assert got.goodput_per_s.ci95 is not None and 0 < got.goodput_per_s.ci95[0] < 0.2


def test_too_few_requests_for_batches_give_rates_without_interval() -> None:
    got = loaded(closed_loop(n=8), Load(concurrency=4, requests=8))
    assert got.requests_per_s.value == pytest.approx(4)
    assert got.requests_per_s.ci95 is None and got.goodput_per_s.ci95 is None


def test_one_request_gives_figures_too() -> None:
    got = loaded([row(0, 2.0)], Load(concurrency=1, requests=1))
    assert got.requests_per_s.value == pytest.approx(0.5)
    assert got.ttft_ms.p50 is None and got.ttft_ms.n == 1


def test_figures_survive_being_kept() -> None:
    got = loaded(closed_loop(noise=0.05))
    assert from_json(LoadFigures, to_json(got)) == got


# ---------------------------------------------------------------- the SLO


def test_nothing_inside_the_slo_is_zero_with_an_upper_bound() -> None:
    got = loaded(closed_loop(noise=0.05), slo=Slo(ttft_ms={"p90": 1}))
    assert got.goodput_per_s.value == 0 and got.inside_slo.value == 0
    low, high = got.goodput_per_s.ci95 or (1, 0)
    assert low == 0 and 0 < high < 0.3
    assert to_json(got)


def test_a_request_must_meet_every_bound_and_the_loosest_of_each() -> None:
    rows = [row(i, 1.0, ttft_ms=100.0 if i % 2 else 300.0, tpot_ms=10.0 if i % 3 else 50.0) for i in range(60)]
    slo = Slo(ttft_ms={"p50": 50, "p90": 200}, tpot_ms={"p90": 20})
    assert loaded(rows, Load(concurrency=1, requests=60), slo).inside_slo.value == pytest.approx(20 / 60)


@pytest.mark.parametrize(("late", "status"), [(0, "passed"), (9, "inconclusive"), (40, "rejected")])
def test_a_percentile_of_the_slo_counts_requests(late: int, status: str) -> None:
    rows = [row(i, 1.0, ttft_ms=3000.0 if i < late else 100.0) for i in range(100)]
    (check,) = judge({"rows": rows}, Slo(ttft_ms={"p90": 2000}))
    assert check.status == status
    assert check.value == pytest.approx(1 - late / 100) and check.limit == 0.9
    assert "at most 2000" in check.reason


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    got = loaded([row(i, 1.0, tpot_ms=None, output_tokens=1) for i in range(30)], Load(concurrency=1, requests=30))
    assert got.inside_slo.value == 1 and got.tpot_ms.n == 0


# ---------------------------------------------------------------- latencies, failures


def test_a_percentile_needs_ten_requests_beyond_it() -> None:
    shown = {n: percentiles([row(0, 1.0)] * n, "e2e_ms") for n in (19, 20, 99, 100, 199, 200, 999, 1000)}
    assert shown[19].p50 is None and shown[20].p50 == 1000
    assert shown[99].p90 is None and shown[100].p90 == 1000
    assert shown[199].p95 is None and shown[200].p95 == 1000
    assert shown[999].p99 is None and shown[1000].p99 == 1000


def test_quantiles_interpolate() -> None:
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2
    assert quantile([0.0, 10.0], 0.9) == pytest.approx(9)
    assert quantile([7.0], 0.99) == 7


def test_failures_count_apart_and_are_outside_the_slo() -> None:
    rows = [failed(r["start_s"], 0.01) if i % 10 < 3 else r for i, r in enumerate(closed_loop(n=200))]
    got = loaded(rows, Load(concurrency=4, requests=200))
    assert (got.requests, got.failures) == (200, 60)
    assert got.e2e_ms.n == 140 and got.e2e_ms.p50 == pytest.approx(1000), "latencies of successes only"
    assert got.inside_slo.value == pytest.approx(0.7)


# ---------------------------------------------------------------- the client


def test_a_client_that_leaves_the_engine_idle_is_the_limit() -> None:
    assert client_limited(closed_loop(), STEADY) is None
    assert client_limited(closed_loop(gap=0.05), STEADY) is None
    slow = client_limited(closed_loop(gap=0.3), STEADY)
    assert slow is not None and "of 4" not in slow and "4 were asked" in slow


def test_a_rate_that_was_not_sent_is_the_clients_limit() -> None:
    load = Load(scenario="rate", request_rate=10, requests=400)
    draw, at, rows = random.Random(1), 0.0, []
    for _ in range(400):
        at += draw.expovariate(10)
        rows.append(row(at, 0.5))
    got = loaded(rows, load)
    assert not got.client_limited and got.achieved_rate == pytest.approx(10, rel=0.15)
    assert got.concurrency is None and got.requested_rate == 10
    slower = [{**r, "start_s": 1.5 * r["start_s"]} for r in rows]
    assert "10 were asked for" in str(client_limited(slower, load))
    late = [{**r, "lag_ms": 400.0} for r in rows]
    assert "late" in str(client_limited(late, load))


# ---------------------------------------------------------------- the recipe's words


def test_the_recipe_reads_a_load_and_refuses_what_it_does_not_know() -> None:
    adapter = TypeAdapter(Load)
    asked = {
        "scenario": "steady",
        "concurrency": 4,
        "input_tokens": 128,
        "output_tokens": 32,
        "requests": 100,
    }
    load = adapter.validate_python(asked)
    assert load.warmup_requests == 4 and from_json(Load, asdict(load)) == load
    for wrong, said in (
        ({"scenario": "steady"}, "needs concurrency"),
        ({"concurrency": 4, "request_rate": 2.0}, "request_rate 2.0 has no meaning"),
        ({"scenario": "rate", "concurrency": 4}, "needs request_rate"),
        ({"concurrency": 0}, "concurrency 0 is not above 0"),
        ({"concurrency": 4, "shared_prefix_tokens": 128}, "not below"),
        ({"concurrency": 4, "conccurrency": 4}, "conccurrency"),
        ({"concurrency": 4, "warmup": -1}, "warmup -1"),
    ):
        with pytest.raises(ValidationError, match=said):
            adapter.validate_python(wrong)


def test_the_recipe_reads_an_slo() -> None:
    adapter = TypeAdapter(Slo)
    assert adapter.validate_python({"ttft_ms": {"p90": 2000}}).bounds() == {"ttft_ms": {"p90": 2000}}
    for wrong, said in (
        ({"ttft_ms": {"p98": 1}}, "'p98' is none of p50"),
        ({"tpot_ms": {"p90": 0}}, "0"),
        ({"latency": {"p90": 1}}, "latency"),
    ):
        with pytest.raises(ValidationError, match=said):
            adapter.validate_python(wrong)


# ---------------------------------------------------------------- what AIPerf leaves


def line(phase: str, start: int, **changes: Any) -> Json:
    meta = {
        "benchmark_phase": phase,
        "request_start_ns": start,
        "credit_issued_ns": start - 2_000_000,
        "request_end_ns": start + 1_000_000_000,
        "was_cancelled": False,
    }
    names = ("time_to_first_token", "request_latency", "usage_completion_tokens", "usage_prompt_tokens")
    metrics = {name: {"value": value} for name, value in zip(names, (100.0, 1030.0, 32, 128))}
    return {"metadata": meta, "metrics": metrics, **changes}


def test_rows_are_the_measured_requests_in_order_of_start() -> None:
    lines = [
        line("profiling", 9_000_000_000),
        line("warmup", 1_000_000_000),
        line("profiling", 5_000_000_000),
    ]
    rows = aiperf_export.rows_of(lines)
    assert [r["start_s"] for r in rows] == [0.0, 4.0]
    assert rows[0]["tpot_ms"] == pytest.approx(30) and rows[0]["lag_ms"] == pytest.approx(2)
    assert aiperf_export.split(lines, 0.0, 11.0) == {"start": 1.0, "warmup": 4.0, "load": 5.0, "end": 1.0}


def test_errors_cancellations_and_answers_without_counts_are_failures() -> None:
    short = line("profiling", 1)
    del short["metrics"]["usage_completion_tokens"]
    cancelled = line("profiling", 2)
    cancelled["metadata"]["was_cancelled"] = True
    lines = [short, cancelled, line("profiling", 3, metrics={}, error={"code": 500, "message": "no room"})]
    rows = aiperf_export.rows_of(lines)
    assert [r["ok"] for r in rows] == [False] * 3
    assert [r["error"] for r in rows] == ["the answer has no usage_completion_tokens", "cancelled", "no room"]
    assert all(r["e2e_ms"] is None for r in rows)


def test_a_load_that_nothing_answers_is_given_up(tmp_path: Path) -> None:
    work = Work({}, {}, tmp_path, 1, 1, tmp_path)
    export = tmp_path / "export.jsonl"
    export.write_text('{"request_latency": 1}\n')
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as process:
        with pytest.raises(Failure, match="1 of 8 were before") as failure:
            aiperf.watch(process, export, 8, 0.4, work)
        aiperf.stop(process)
    assert failure.value.transient
    assert '"done": 1' in (tmp_path / "progress.jsonl").read_text()


def test_the_command_names_no_path_and_no_address() -> None:
    folder, tokenizer = Path("/secret/work"), Path("/secret/model")
    load = Load(concurrency=4, requests=100, shared_prefix_tokens=64)
    words = aiperf.argv(load, url="http://10.0.0.1:8", model="m", tokenizer=tokenizer, seed=7, folder=folder)
    shown = aiperf.command(words, {tokenizer: "TOKENIZER", folder: "FOLDER", "http://10.0.0.1:8": "URL"})
    assert shown.startswith("aiperf profile ") and "secret" not in shown and "10.0.0.1" not in shown
    assert "--num-dataset-entries 104" in shown, "warm-up and load share no prompt"
    assert "--isl 64" in shown and "--prefix-prompt-length 64" in shown


def test_prefix_cache_hits_between_two_readings() -> None:
    page = '# TYPE x\nvllm:prefix_cache_queries_total{engine="0"} 5.0\n'
    page += 'vllm:prefix_cache_hits_total{engine="0"} 1e1\n'
    page += 'vllm:prefix_cache_queries_total{engine="1"} 2.0\nvllm:external_prefix_cache_hits_total 7\n'
    assert prometheus.counters(page, (prometheus.QUERIES, prometheus.HITS)) == {
        prometheus.QUERIES: 7.0,
        prometheus.HITS: 10.0,
    }
    assert prometheus.hit_rate((100, 50), (200, 75)) == 0.25
    assert prometheus.hit_rate((100, 50), (100, 50)) is None
    assert prometheus.hit_rate(None, (1, 1)) is None
