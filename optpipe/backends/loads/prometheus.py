"""Counters of a running engine from its `/metrics` page. Standard library only."""

from __future__ import annotations

import http.client
import re
from urllib.parse import urlsplit

QUERIES, HITS = "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"
SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{.*\})?\s+([-+0-9.eE]+)(?:\s+\d+)?$")


def prefix_cache(url: str) -> tuple[float, float] | None:
    """Tokens looked up in the prefix cache and found there so far; None where the engine does not tell."""
    totals = counters(page(url), (QUERIES, HITS))
    return (totals[QUERIES], totals[HITS]) if totals.keys() >= {QUERIES, HITS} else None


def hit_rate(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float | None:
    """The share found between two readings; None where nothing was looked up."""
    if before is None or after is None or after[0] <= before[0]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0])


def counters(text: str, names: tuple[str, ...]) -> dict[str, float]:
    """Sums over all label sets of the counters `names` that are on the page."""
    totals: dict[str, float] = {}
    for line in text.splitlines():
        match = SAMPLE.match(line.strip())
        if match and match[1] in names:
            totals[match[1]] = totals.get(match[1], 0.0) + float(match[2])
    return totals


def page(url: str, timeout_s: float = 60.0) -> str:
    """The text of `/metrics`; empty where the engine has no such page. Raises OSError where none listens."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path.rstrip("/") + "/metrics")
        response = connection.getresponse()
        data = response.read()
    finally:
        connection.close()
    return data.decode(errors="replace") if response.status == 200 else ""
