"""`load`: a few real requests, then rows as a closed loop would give them at the engine's own speed."""

from __future__ import annotations

import json
import random
import urllib.request
from typing import Any

from optpipe.records import Json
from optpipe.worker import Failure, Work
from tests.fakes import orders

REVISION = 1
REAL = 4


def run(options: Json, work: Work) -> Json:
    engine, name = str(work.context["url"]), str(work.context["model"])
    speed = ask(engine, "/fake/speed")
    who = f"{name} {'tuned' if speed['tuned'] else 'default'} seed {options['seed']}"
    orders.obey("load", who, work.folder.name.split(".")[0])
    for number in range(REAL):
        ask(engine, "/v1/completions", {"model": name, "prompt": f"request {number}", "max_tokens": 4})
        work.progress(number + 1, REAL, "requests")
    rows = closed_loop(options, speed["token_s"], random.Random(options["seed"]))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (work.out / "requests.jsonl").write_text(text, encoding="utf-8")
    seconds = {"start": 0.0, "warmup": 0.0, "load": rows[-1]["end_s"], "end": 0.0}
    return {"rows": rows, "hit_rate": 0.0, "unique_prompts": True, "seconds": seconds, "command": "fake-load URL"}


def closed_loop(options: Json, token_s: float, noise: random.Random) -> list[Json]:
    """`concurrency` requests in flight at any time, each with a little noise."""
    free, rows = [0.0] * options["concurrency"], []
    for _ in range(options["requests"]):
        lane = free.index(min(free))
        ttft = 5 * token_s * noise.uniform(0.98, 1.02)
        tpot = token_s * noise.uniform(0.98, 1.02)
        took = ttft + tpot * (options["output_tokens"] - 1)
        times = {"start_s": free[lane], "end_s": free[lane] + took, "lag_ms": 0.0}
        latencies = {"ttft_ms": 1e3 * ttft, "tpot_ms": 1e3 * tpot, "e2e_ms": 1e3 * took}
        tokens = {"input_tokens": options["input_tokens"], "output_tokens": options["output_tokens"]}
        rows.append({**times, **latencies, **tokens, "ok": True, "error": None})
        free[lane] += took
    return sorted(rows, key=lambda row: row["end_s"])


def ask(engine: str, path: str, body: Json | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(engine + path, data, {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return json.load(answer)
    except OSError as error:
        raise Failure(f"the engine gave no answer: {error}", transient=True) from None
