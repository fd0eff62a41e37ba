"""What AIPerf leaves in its folder, in optpipe's words: a row per request, its prompts, its times, its complaint."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from optpipe.records import Json


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


def unique_prompts(folder: Path, asked: int) -> bool:
    """Whether none of the `asked` requests, warm-up included, repeated a prompt: from those that AIPerf wrote down."""
    inputs = json.loads((folder / "inputs.json").read_text(encoding="utf-8"))
    prompts = {json.dumps(entry["payloads"]) for entry in inputs["data"]}
    return len(prompts) >= asked


def split(lines: list[Json], began: float, ended: float) -> Json:
    """Where the wall time went, in seconds: start-up, warm-up, load, end."""

    def times(phase: str, key: str) -> list[float]:
        chosen = (line["metadata"] for line in lines)
        return [meta[key] / 1e9 for meta in chosen if meta["benchmark_phase"] == phase]

    first = min(times("profiling", "request_start_ns"))
    last = max(times("profiling", "request_end_ns"))
    warm = min(times("warmup", "request_start_ns"), default=first)
    return {"start": warm - began, "warmup": first - warm, "load": last - first, "end": ended - last}


def complaint(log: Path) -> str:
    """The last line of AIPerf's output that names an error, else its last line; the whole goes to stderr."""
    text = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(text[-20_000:])
    lines = [line.strip(" │|") for line in text.splitlines() if line.strip(" │|╭╮╰╯─")]
    return next((line for line in reversed(lines) if "rror" in line or "ERROR" in line), (lines or ["nothing"])[-1])
