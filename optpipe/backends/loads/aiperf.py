"""Drives a running engine with AIPerf and keeps one row per request; figures.py makes the figures of them.

The rows do not depend on the SLO, so another SLO needs no new measurement. What was learnt of AIPerf 0.13:
- warm-up takes its prompts from the head of the same data set and the load goes on behind them, so with the
  default number of entries the last requests are repeats of the warm-up: one entry per request is asked for;
- token counts are the server's own (`--use-server-token-count`): AIPerf's are those of the re-encoded text,
  and counting costs the core that the engine needs;
- its time to first token is that of the first chunk with text, so an empty first delta does not count, but
  neither would a special token: `skip_special_tokens: false` gives those a text. An answer without any text
  (a random model that writes half characters) is an error to it, so it is a failed request here;
- at a concurrency alone its timing process polls for a free slot without a pause and takes a whole core, the
  engine's on a small machine; with a constant rate on top it looks that often and sleeps in between;
- it refuses a tokenizer folder under HF_HUB_OFFLINE.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Literal

from optpipe.backends.loads import prometheus
from optpipe.records import Json, from_json
from optpipe.worker import Failure, Work

REVISION = 2

POLL_S = 0.5
TICKS_PER_S = 500
"""How often a steady load looks for a free slot: at most 2 ms late, at most so many requests a second."""
GRACE_S = 60.0
"""For AIPerf's own start, beyond the time that one request may take."""
PERCENTILES = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class Load:
    """The load that the engine is measured under."""

    __pydantic_config__: ClassVar[Json] = {"extra": "forbid", "use_attribute_docstrings": True}

    scenario: Literal["steady", "rate"] = "steady"
    """`steady` keeps `concurrency` requests in flight; `rate` sends at random (Poisson) times."""
    concurrency: int | None = None
    """Requests in flight; for `steady` only."""
    request_rate: float | None = None
    """Mean arrivals per second; for `rate` only."""
    input_tokens: int = 128
    """Tokens of each prompt, the shared ones included."""
    output_tokens: int = 32
    """Tokens of each answer; the end token is ignored, so that every answer is as long."""
    requests: int = 100
    """Measured requests; a percentile p needs 10 / (1 - p) of them."""
    warmup: int | None = None
    """Requests before the measured ones, under the same load; by default one per request in flight."""
    shared_prefix_tokens: int = 0
    """Leading tokens that are the same in every prompt, as a system prompt is."""
    request_timeout_s: float = 300.0
    """A request that takes longer has failed; nothing answered for so long, and the engine hangs."""

    def __post_init__(self) -> None:
        mine, other = ("concurrency", "request_rate")[:: 1 if self.scenario == "steady" else -1]
        if getattr(self, mine) is None:
            raise ValueError(f"scenario {self.scenario!r} needs {mine}")
        if getattr(self, other) is not None:
            raise ValueError(f"{other} {getattr(self, other)} has no meaning in scenario {self.scenario!r}")
        for name in ("concurrency", "request_rate", "input_tokens", "output_tokens", "requests"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} {value} is not above 0")
        if not 0 <= self.shared_prefix_tokens < self.input_tokens:
            raise ValueError(
                f"shared_prefix_tokens {self.shared_prefix_tokens} is not below input_tokens {self.input_tokens}"
            )
        if (self.warmup or 0) < 0 or self.request_timeout_s <= 0:
            raise ValueError(f"warmup {self.warmup} or request_timeout_s {self.request_timeout_s} is too small")

    @property
    def warmup_requests(self) -> int:
        return (self.concurrency or 4) if self.warmup is None else self.warmup


@dataclass(frozen=True)
class Slo:
    """Bounds in milliseconds by percentile: `ttft_ms: {p90: 2000}` asks 90 % of requests for at most 2 s."""

    __pydantic_config__: ClassVar[Json] = {"extra": "forbid", "use_attribute_docstrings": True}

    ttft_ms: dict[str, float] | None = None
    """Time to first token."""
    tpot_ms: dict[str, float] | None = None
    """Time per output token after the first."""
    e2e_ms: dict[str, float] | None = None
    """The whole request."""

    def __post_init__(self) -> None:
        for metric in fields(self):
            for percentile, bound in (getattr(self, metric.name) or {}).items():
                if percentile not in PERCENTILES:
                    known = ", ".join(PERCENTILES)
                    raise ValueError(f"{metric.name}: {percentile!r} is none of {known}")
                if bound <= 0:
                    raise ValueError(f"{metric.name}.{percentile} {bound} is not above 0")

    def bounds(self) -> dict[str, dict[str, float]]:
        """The metrics that are bounded, each with its bounds."""
        return {field.name: bounds for field in fields(self) if (bounds := getattr(self, field.name))}


# ---------------------------------------------------------------- the body


def run(options: Json, work: Work) -> Json:
    """Options are a Load and `seed`; input `tokenizer`; context `url`, `model`. Times in seconds and ms.

    The record: {"rows", "hit_rate", "unique_prompts", "seconds": {"start", "warmup", "load", "end"},
    "command"}; `requests.jsonl` holds the rows too. A row is {"start_s", "end_s", "lag_ms", "ok",
    "ttft_ms", "tpot_ms", "e2e_ms", "input_tokens", "output_tokens", "error"}.
    """
    load = from_json(Load, {name: value for name, value in options.items() if name != "seed"})
    url, model = str(work.context["url"]), str(work.context["model"])
    folder = work.folder / "aiperf"
    seed = int(options.get("seed", work.seed))
    arguments = argv(load, url=url, model=model, tokenizer=work.inputs["tokenizer"], seed=seed, folder=folder)
    before, began = prometheus.prefix_cache(url), time.time()
    code = drive(arguments, load, folder, work)
    ended = time.time()
    lines = exported(folder)
    rows = rows_of(lines)
    check(rows, load, f"AIPerf ended with exit code {code}: {complaint(folder / 'output.log')}")
    hit_rate = prometheus.hit_rate(before, prometheus.prefix_cache(url))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (work.out / "requests.jsonl").write_text(text, encoding="utf-8")
    return {
        "rows": rows,
        "hit_rate": hit_rate,
        "unique_prompts": unique_prompts(folder, load),
        "seconds": split(lines, began, ended),
        "command": command(arguments, {work.inputs["tokenizer"]: "TOKENIZER", folder: "FOLDER", url: "URL"}),
    }


def argv(load: Load, *, url: str, model: str, tokenizer: Path, seed: int, folder: Path) -> list[str]:
    """The command line of `aiperf profile`, run by this toolchain's own interpreter."""
    entries = load.requests + load.warmup_requests
    flags: dict[str, object] = {
        "--model-names": model,
        "--url": url,
        "--endpoint-type": "completions",
        "--tokenizer": tokenizer,
        "--request-count": load.requests,
        "--num-dataset-entries": entries,
        "--isl": load.input_tokens - load.shared_prefix_tokens,
        "--osl": load.output_tokens,
        "--random-seed": seed,
        "--request-timeout-seconds": load.request_timeout_s,
        "--output-artifact-dir": folder,
        "--ui": "none",
        "--workers-max": 1,
        "--record-processor-service-count": 1,
        "--stats-interval": 0,
    }
    if load.concurrency is not None:
        flags |= {"--concurrency": load.concurrency, "--request-rate": TICKS_PER_S, "--arrival-pattern": "constant"}
    else:
        flags |= {"--request-rate": load.request_rate, "--arrival-pattern": "poisson"}
    if load.warmup_requests:
        flags["--warmup-request-count"] = load.warmup_requests
    if load.shared_prefix_tokens:
        flags |= {"--num-prefix-prompts": 1, "--prefix-prompt-length": load.shared_prefix_tokens}
    extra = ("ignore_eos:true", "temperature:0", "skip_special_tokens:false")
    bare = ["--streaming", "--use-server-token-count", "--no-gpu-telemetry", "--no-server-metrics"]
    return [
        *(sys.executable, "-m", "aiperf", "profile"),
        *(text for name, value in flags.items() for text in (name, str(value))),
        *bare,
        *(text for value in extra for text in ("--extra-inputs", value)),
    ]


def command(arguments: list[str], names: dict[Path | str, str]) -> str:
    """The command for the record, with names in place of this machine's paths and address."""
    known = {str(path): name for path, name in names.items()}
    return " ".join(["aiperf", *(known.get(word, word) for word in arguments[3:])])


def environment(folder: Path) -> dict[str, str]:
    """AIPerf's environment: one thread, each row written at once, its files in the job's folder."""
    dropped = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "AIPERF_RECORD_EXPORT_BATCH_SIZE": "1",
        "AIPERF_DATASET_MMAP_BASE_PATH": str(folder),
        "AIPERF_TOKENIZER_SKIP_PRELOAD": "true",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def drive(arguments: list[str], load: Load, folder: Path, work: Work) -> int:
    """Run AIPerf to its end; its exit code, which is 1 where every request failed. A hang raises."""
    folder.mkdir(parents=True)
    log = folder / "output.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            arguments, stdout=output, stderr=subprocess.STDOUT, cwd=folder, env=environment(folder)
        )
        try:
            patience = load.request_timeout_s + GRACE_S + 5 / (load.request_rate or math.inf)
            total = load.requests + load.warmup_requests
            watch(process, folder / "profile_export.jsonl", total, patience, work)
        finally:
            stop(process)
    return process.returncode


def watch(process: subprocess.Popen[bytes], export: Path, total: int, patience_s: float, work: Work) -> None:
    """Wait for AIPerf and tell how many requests are done; raises where none succeeds for too long."""
    done, last = 0, time.monotonic()
    while process.poll() is None:
        time.sleep(POLL_S)
        answered = export.read_bytes().count(b'"request_latency"') if export.exists() else 0
        if answered > done:
            done, last = answered, time.monotonic()
            work.progress(min(done, total), total, "requests")
        elif time.monotonic() - last > patience_s:
            message = f"no request was answered for {patience_s:.0f} s; {done} of {total} were before"
            raise Failure(message, hint="the engine hangs under this load", transient=True)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End AIPerf if it still runs; its own processes are killed with it by the kernel (PDEATHSIG)."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGINT)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def complaint(log: Path) -> str:
    """The last line of AIPerf's output that names an error, else its last line; the whole goes to stderr."""
    text = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(text[-20_000:])
    lines = [line.strip(" │|") for line in text.splitlines() if line.strip(" │|╭╮╰╯─")]
    return next((line for line in reversed(lines) if "rror" in line or "ERROR" in line), (lines or ["nothing"])[-1])


# ---------------------------------------------------------------- what it leaves


def exported(folder: Path) -> list[Json]:
    """AIPerf's export: a line per request, warm-up included; none where it did not come so far."""
    export = folder / "profile_export.jsonl"
    return [json.loads(line) for line in export.read_text("utf-8").splitlines()] if export.exists() else []


def rows_of(lines: list[Json]) -> list[Json]:
    """One row per measured request, in the order of their start; `start_s` counts from the first."""
    measured = [line for line in lines if line["metadata"]["benchmark_phase"] == "profiling"]
    measured.sort(key=lambda line: line["metadata"]["request_start_ns"])
    return [row(line, measured[0]["metadata"]["request_start_ns"]) for line in measured]


def row(line: Json, origin_ns: int) -> Json:
    """A request of AIPerf's export in optpipe's words."""
    meta = line["metadata"]
    value = {name: entry["value"] for name, entry in (line.get("metrics") or {}).items()}
    error = error_of(line, value)
    ttft, e2e, tokens = None, None, value.get("usage_completion_tokens")
    if error is None:
        ttft, e2e = float(value["time_to_first_token"]), float(value["request_latency"])
    return {
        "start_s": (meta["request_start_ns"] - origin_ns) / 1e9,
        "end_s": (meta["request_end_ns"] - origin_ns) / 1e9,
        "lag_ms": (meta["request_start_ns"] - meta["credit_issued_ns"]) / 1e6,
        "ok": error is None,
        "ttft_ms": ttft,
        "tpot_ms": (e2e - ttft) / (tokens - 1) if e2e and ttft and tokens and tokens > 1 else None,
        "e2e_ms": e2e,
        "input_tokens": value.get("usage_prompt_tokens"),
        "output_tokens": tokens,
        "error": error,
    }


def error_of(line: Json, value: dict[str, Any]) -> str | None:
    """Why a request counts as failed, or None."""
    if error := line.get("error"):
        return str(error.get("message") or error)[:200]
    if line["metadata"].get("was_cancelled"):
        return "cancelled"
    missing = {"time_to_first_token", "request_latency", "usage_completion_tokens"} - value.keys()
    return f"the answer has no {', '.join(sorted(missing))}" if missing else None


def check(rows: list[Json], load: Load, ending: str) -> None:
    """A load that was not sent as asked, or not answered at all, is a failure, not a figure."""
    if len(rows) != load.requests:
        message = f"AIPerf recorded {len(rows)} of {load.requests} requests. {ending}"
        raise Failure(message, transient=True)
    errors = Counter(row["error"] for row in rows if not row["ok"])
    if errors.total() == len(rows):
        error, count = errors.most_common(1)[0]
        message = f"all {len(rows)} requests failed, {count} of them with: {error}"
        raise Failure(message, hint="the engine may have ended under this load", transient=True)


def unique_prompts(folder: Path, load: Load) -> bool:
    """Whether no prompt was sent twice, warm-up included: from the prompts that AIPerf wrote down."""
    inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    prompts = {json.dumps(entry["payloads"]) for entry in inputs["data"]}
    return len(prompts) >= load.requests + load.warmup_requests


def split(lines: list[Json], began: float, ended: float) -> Json:
    """Where the wall time went, in seconds: start-up, warm-up, load, end."""

    def times(phase: str, key: str) -> list[float]:
        chosen = (line["metadata"] for line in lines)
        return [meta[key] / 1e9 for meta in chosen if meta["benchmark_phase"] == phase]

    first = min(times("profiling", "request_start_ns"))
    last = max(times("profiling", "request_end_ns"))
    warm = min(times("warmup", "request_start_ns"), default=first)
    return {"start": warm - began, "warmup": first - warm, "load": last - first, "end": ended - last}
