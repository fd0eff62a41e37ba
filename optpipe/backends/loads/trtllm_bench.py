"""`trtllm-bench throughput`: its command, its data set, and its reports in the same figures as any other load's.

Evidence of its own and ranked with nothing: it drives the library without a server, so its figures hold no HTTP and
no tokenizer. What ranks candidates is AIPerf against `trtllm-serve`. Shapes as in bench/dataclasses/reporting.py and
statistics.py of 1.3; not run on hardware here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from optpipe.backends.loads.figures import figures
from optpipe.backends.loads.load import Load, Slo
from optpipe.errors import InputError
from optpipe.records import Json, LoadFigures
from optpipe.toolchains.trtllm import builds

NEEDED = ("start_timestamp", "first_token_timestamp", "end_timestamp", "num_input_tokens", "output_tokens")
"""What each entry of `--request_json` has; times in nanoseconds."""
APART = 0.05
"""Of the throughput that the report says and that its requests come to."""


@dataclass(frozen=True)
class Bench:
    """One run: the model's folder with the name to report it by, what it reads, what it leaves."""

    name: str
    model: Path
    config: Path
    dataset: Path
    report: Path
    requests: Path
    engine: bool = False
    """The folder holds an engine of `trtllm-build`."""


def argv(bench: Bench, load: Load, release: str) -> tuple[str, ...]:
    """`trtllm-bench ... throughput ...`; without streaming it would tell no times of first tokens."""
    if load.concurrency is None:
        hint = "it sends requests as fast as they come back: `scenario: steady` with a concurrency"
        raise InputError("trtllm-bench has no arrivals at a rate", place="load.scenario", hint=hint)
    file = "--extra_llm_api_options" if builds(release) else "--config"
    place = ("--engine_dir", str(bench.model)) if bench.engine else ()
    return (
        *("trtllm-bench", "--model", bench.name, "--model_path", str(bench.model), "throughput"),
        *("--backend", "tensorrt" if bench.engine else "pytorch", *place, file, str(bench.config)),
        *("--dataset", str(bench.dataset), "--concurrency", str(load.concurrency), "--streaming"),
        *("--num_requests", str(load.requests), "--warmup", str(load.warmup_requests)),
        *("--report_json", str(bench.report), "--request_json", str(bench.requests)),
    )


def dataset(prompts: Sequence[Sequence[int]], output_tokens: int) -> str:
    """The text of `--dataset`: one line of JSON for each prompt of token ids."""
    lines = (
        {"task_id": number, "input_ids": [int(token) for token in ids], "output_tokens": output_tokens}
        for number, ids in enumerate(prompts)
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def read(report: Path, requests: Path, load: Load, slo: Slo) -> LoadFigures:
    """The figures of one run. InputError where the two files are not of one run, or are none of `trtllm-bench`.

    Percentiles, intervals and goodput come from the requests, as for every load: the report has only means and
    percentiles of its own counting. Prompts are taken for distinct: the data set is ours.
    """
    entries = json.loads(requests.read_text(encoding="utf-8"))
    told = json.loads(report.read_text(encoding="utf-8"))
    if not isinstance(entries, list) or not entries:
        raise InputError("no list of requests", place=str(requests), hint="run trtllm-bench with --request_json")
    for entry in entries:
        if missing := [name for name in NEEDED if name not in entry]:
            text = f"request {entry.get('id')} has no {', '.join(missing)}"
            raise InputError(text, place=str(requests), hint="run trtllm-bench 1.0 or later with --streaming")
    found = figures({"rows": rows(entries), "hit_rate": None, "unique_prompts": True}, load, slo)
    agree(told, found, sum(int(entry["output_tokens"]) for entry in entries), report)
    return found


def rows(entries: Sequence[Json]) -> list[Json]:
    """One row per request as AIPerf's are: seconds from the first start, latencies in ms."""
    ordered = sorted(entries, key=lambda entry: entry["start_timestamp"])
    origin = ordered[0]["start_timestamp"]
    return [row(entry, origin) for entry in ordered]


def row(entry: Json, origin: int) -> Json:
    start, first, end = (entry[name] for name in NEEDED[:3])
    tokens, failed = int(entry["output_tokens"]), bool(entry.get("error_tokens")) or first < start or end < first
    e2e, ttft = (end - start) / 1e6, (first - start) / 1e6
    return {
        "start_s": (start - origin) / 1e9,
        "end_s": (end - origin) / 1e9,
        "lag_ms": 0.0,
        "ok": not failed,
        "ttft_ms": None if failed else ttft,
        "tpot_ms": (e2e - ttft) / (tokens - 1) if not failed and tokens > 1 else None,
        "e2e_ms": None if failed else e2e,
        "input_tokens": entry["num_input_tokens"],
        "output_tokens": tokens,
        "error": "the engine returned an error" if failed else None,
    }


def agree(told: Json, found: LoadFigures, tokens: int, place: Path) -> None:
    """The report's own totals against those of the requests."""
    try:
        count, rate = told["request_info"]["num_requests"], told["performance"]["system_output_throughput_tok_s"]
    except (KeyError, TypeError):
        raise InputError("no report of trtllm-bench throughput", place=str(place), hint="--report_json") from None
    if count != found.requests:
        text = f"the report speaks of {count} requests, the other file of {found.requests}"
        raise InputError(text, place=str(place), hint="give both files of one run")
    ours = tokens / found.seconds
    if abs(ours - rate) > APART * rate:
        text = f"the report says {rate:.4g} tokens/s, its requests come to {ours:.4g}"
        raise InputError(text, place=str(place), hint="give both files of one run")
