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
from pathlib import Path

from optpipe.backends.loads import prometheus
from optpipe.backends.loads.aiperf_export import complaint, exported, rows_of, split, unique_prompts
from optpipe.backends.loads.load import Load
from optpipe.records import Json, from_json
from optpipe.worker import Failure, Work

REVISION = 2

POLL_S = 0.5
TICKS_PER_S = 500
"""How often a steady load looks for a free slot: at most 2 ms late, at most so many requests a second."""
GRACE_S = 60.0
"""For AIPerf's own start, beyond the time that one request may take."""


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
        "unique_prompts": unique_prompts(folder, load.requests + load.warmup_requests),
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
