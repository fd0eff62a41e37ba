"""The `offline-tensorrt-llm` job: the recipe's load by `trtllm-bench throughput`, in rows as any other load's.

Evidence of its own beside what was served, and ranked with nothing: it drives the library without a server, so its
figures hold no HTTP and no tokenizer. What ranks candidates is AIPerf against `trtllm-serve`. Runs in TensorRT-LLM's
toolchain; standard library only. Shapes as in bench/dataclasses/reporting.py and statistics.py of 1.3; not run on
hardware here.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.backends.loads.load import Load
from optpipe.records import Json, from_json
from optpipe.toolchains.trtllm import Wrong, builds, command, release
from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.worker import Work

REVISION = 1
NEEDED = ("start_timestamp", "first_token_timestamp", "end_timestamp", "num_input_tokens", "output_tokens")
"""What each entry of `--request_json` has; times in nanoseconds."""
APART = 0.05
"""Of the throughput that the report says and that its requests come to."""
LAST_LINES = 6


@dataclass(frozen=True)
class Bench:
    """One run: the model's folder with the name to report it by, what it reads, what it leaves."""

    name: str
    model: Path
    folder: Path
    engine: bool = False
    """The folder holds an engine of `trtllm-build`, which knows its parallelism."""
    width: int = 1
    """GPUs that share each layer of a checkpoint."""

    def file(self, name: str) -> Path:
        return self.folder / name


def run(options: Json, work: Work) -> Json:
    """Options are a Load, `seed`, `name`, `config` (the engine's YAML) and `width`; inputs `model` and `tokenizer`.

    The record is that of a load: {"rows", "hit_rate", "unique_prompts", "command"}, and `release` with the totals of
    the tool's own report.
    """
    own = ("seed", "name", "config", "width")
    load = from_json(Load, {name: value for name, value in options.items() if name not in own})
    try:
        version = release()
        program = command("trtllm-bench", version)
    except Wrong as wrong:
        raise Failure(str(wrong), hint="name the Python of a TensorRT-LLM environment or container") from None
    model = work.inputs["model"]
    engine = any(model.glob("rank*.engine"))
    bench = Bench(str(options["name"]), model, work.folder, engine, int(options["width"]))
    bench.file("config.yaml").write_text(str(options["config"]), encoding="utf-8")
    prompts = random_prompts(work.inputs["tokenizer"], load, int(options["seed"]))
    bench.file("dataset.jsonl").write_text(dataset(prompts, load.output_tokens), encoding="utf-8")
    words = argv(bench, load, version)
    drive([program, *words], work)
    entries = read_entries(bench.file("requests.json"))
    told = totals(bench.file("report.json"), entries)
    shown = [word.replace(str(model), "MODEL").replace(str(work.folder), ".") for word in words]
    return {
        "rows": rows(entries),
        "hit_rate": None,
        "unique_prompts": load.warmup_requests == 0,  # it warms up with prompts of the data set
        "release": version,
        "report": told,
        "command": " ".join(["trtllm-bench", *shown]),
    }


def argv(bench: Bench, load: Load, version: str) -> tuple[str, ...]:
    """The words of `trtllm-bench ... throughput ...`; without streaming it would tell no times of first tokens."""
    file = "--extra_llm_api_options" if builds(version) else "--config"
    place = ("--engine_dir", str(bench.model)) if bench.engine else ("--tp", str(bench.width))
    return (
        *("--model", bench.name, "--model_path", str(bench.model), "throughput"),
        *("--backend", "tensorrt" if bench.engine else "pytorch", *place, file, str(bench.file("config.yaml"))),
        *("--dataset", str(bench.file("dataset.jsonl")), "--concurrency", str(load.concurrency), "--streaming"),
        *("--num_requests", str(load.requests), "--warmup", str(load.warmup_requests)),
        *("--report_json", str(bench.file("report.json")), "--request_json", str(bench.file("requests.json"))),
    )


def random_prompts(tokenizer: Path, load: Load, seed: int) -> list[list[int]]:
    """One prompt of ordinary tokens for each request; the shared ones lead."""
    told = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    special = {int(one["id"]) for one in told.get("added_tokens") or ()}
    ordinary = [token for token in range(len(told["model"]["vocab"])) if token not in special]
    source = random.Random(seed)
    shared = source.choices(ordinary, k=load.shared_prefix_tokens)
    own = load.input_tokens - load.shared_prefix_tokens
    return [[*shared, *source.choices(ordinary, k=own)] for _ in range(load.requests)]


def dataset(prompts: Sequence[Sequence[int]], output_tokens: int) -> str:
    """The text of `--dataset`: one line of JSON for each prompt of token ids."""
    lines = (
        {"task_id": number, "input_ids": [int(token) for token in ids], "output_tokens": output_tokens}
        for number, ids in enumerate(prompts)
    )
    return "".join(json.dumps(line) + "\n" for line in lines)


def drive(words: list[str], work: Work) -> None:
    """Run it to its end; what it says goes to the job's log."""
    log = work.folder / "bench.log"
    with log.open("wb") as file:
        ended = subprocess.run(words, stdout=file, stderr=subprocess.STDOUT, cwd=work.folder, check=False)
    text = log.read_text(encoding="utf-8", errors="replace")
    sys.stderr.write(text)
    if ended.returncode:
        last = " | ".join(text.strip().splitlines()[-LAST_LINES:])
        raise Failure(f"trtllm-bench ended with {ended.returncode}: {last}", transient=ended.returncode < 0)


# ---------------------------------------------------------------- its reports


def read_entries(requests: Path) -> list[Json]:
    """What `--request_json` says of each request. Failure where it is none of `trtllm-bench`, or without streaming."""
    entries = loaded(requests)
    if not isinstance(entries, list) or not entries:
        raise Failure(f"{requests.name} holds no list of requests", hint="run trtllm-bench with --request_json")
    for entry in entries:
        if missing := [name for name in NEEDED if name not in entry]:
            text = f"{requests.name}: request {entry.get('id')} has no {', '.join(missing)}"
            raise Failure(text, hint="run trtllm-bench 1.0 or later with --streaming")
    return entries


def totals(report: Path, entries: Sequence[Json]) -> Json:
    """The totals of `--report_json`. Failure where they are not those of the requests."""
    told = loaded(report)
    try:
        count, rate = told["request_info"]["num_requests"], told["performance"]["system_output_throughput_tok_s"]
    except (KeyError, TypeError):
        raise Failure(f"{report.name} is no report of trtllm-bench throughput", hint="--report_json") from None
    if count != len(entries):
        raise Failure(f"{report.name} speaks of {count} requests, the other file of {len(entries)}")
    spent = max(entry["end_timestamp"] for entry in entries) - min(entry["start_timestamp"] for entry in entries)
    ours = sum(int(entry["output_tokens"]) for entry in entries) / (spent / 1e9)
    if abs(ours - rate) > APART * rate:
        raise Failure(f"{report.name} says {rate:.4g} tokens/s, its requests come to {ours:.4g}")
    return {"requests": count, "output_tokens_per_s": rate}


def loaded(path: Path) -> Any:
    """JSON that the tool left. Failure where it left none."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError) as error:
        raise Failure(f"trtllm-bench left no {path.name} that can be read: {error}") from None


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
