"""A few streamed completions at once, and when their tokens came."""

from __future__ import annotations

import http.client
import json
import random
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from benchmarks.document import Json

INPUT, OUTPUT = 128, 32
IDS = range(1000, 40_000)
"""Of SmolLM2's vocabulary, ordinary tokens."""
TIMEOUT_S = 120.0


def asked(url: str, model: str, at_once: int, seed: int) -> Json:
    """Requests to an engine at the same moment, prompts of this seed: ttft_ms and tpot_ms of each, tokens_per_s."""
    source = random.Random(f"{seed} {at_once}")
    prompts = [source.choices(IDS, k=INPUT) for _ in range(at_once)]
    began = time.perf_counter()
    with ThreadPoolExecutor(at_once) as pool:
        times = list(pool.map(lambda prompt: streamed(url, model, prompt), prompts))
    seconds = max(one[-1] for one in times) - began
    return {
        "ttft_ms": [round(1000 * (one[1] - one[0]), 2) for one in times],
        "tpot_ms": [round(1000 * (one[-1] - one[1]) / (OUTPUT - 1), 2) for one in times],
        "tokens_per_s": round(at_once * OUTPUT / seconds, 3),
    }


def streamed(url: str, model: str, prompt: list[int]) -> list[float]:
    """When the request was sent, then when each piece of its answer came."""
    fixed = {"max_tokens": OUTPUT, "ignore_eos": True, "temperature": 0, "stream": True}
    body = json.dumps({"model": model, "prompt": prompt, **fixed})
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=TIMEOUT_S)
    times = [time.perf_counter()]
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.status == 200, f"HTTP {answer.status} from {url}"
    for line in answer:
        if line.startswith(b"data: {"):
            times.append(time.perf_counter())
    connection.close()
    assert len(times) > 2, f"{len(times) - 1} pieces for {OUTPUT} tokens"
    return times
