"""Prometheus rules on symptoms, a scrape configuration, and a Grafana dashboard, for vLLM's own metrics."""

from __future__ import annotations

import json
from typing import Any

from optpipe.deploy.facts import Facts
from optpipe.deploy.parts import METRICS, PORT, text

HISTOGRAMS = {
    "ttft": ("vllm:time_to_first_token_seconds", "TTFT", "queue or long prompts where TPOT is normal, else overload"),
    "tpot": ("vllm:inter_token_latency_seconds", "TPOT", "compute or bandwidth where TTFT is normal, else overload"),
    "e2e": ("vllm:e2e_request_latency_seconds", "end-to-end latency", "overload, or longer answers than measured"),
}
FOR = "5m"
ERRORS = 0.001
"""Share of requests that may fail: 99.9 % succeed."""
KV_FULL = 0.85
"""Share of the KV cache that should not be exceeded: 15 to 20 % are kept spare."""


def quantile(metric: str, share: float, model: str) -> str:
    return f'histogram_quantile({share:g}, sum by (le) (rate({metric}_bucket{{model_name="{model}"}}[{FOR}])))'


def rules(facts: Facts) -> str:
    """Alerts on what users feel; causes are told beside them, at a lower severity."""
    found = [*slo_alerts(facts), *state_alerts(facts)]
    return text({"groups": [{"name": f"optpipe-{facts.name}", "rules": found}]})


def alert(name: str, expr: str, severity: str, summary: str, source: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expr,
        "for": FOR,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "source": source},
    }


def slo_alerts(facts: Facts) -> list[dict[str, Any]]:
    """One alert per bound of the SLO."""
    found = []
    for name, number in facts.numbers.items():
        kind, _, rest = name.partition("_")
        if kind not in HISTOGRAMS or not rest.startswith("p"):
            continue
        metric, word, cause = HISTOGRAMS[kind]
        percentile = rest.removesuffix("_s")
        expr = f"{quantile(metric, int(percentile[1:]) / 100, facts.name)} > {number.shown}"
        title = f"{kind.capitalize()}{percentile.upper()}TooHigh"
        told = f"{word} {percentile.upper()} is above {number.shown} s: {cause}"
        found.append(alert(title, expr, "page", told, number.source))
    return found


def state_alerts(facts: Facts) -> list[dict[str, Any]]:
    """Failures and refusals page; a full queue or cache explains."""
    model = f'{{model_name="{facts.name}"}}'
    refused = 'sum(rate(haproxy_frontend_http_responses_total{proxy="requests",code="%s"}[5m]))'
    every = 'sum(rate(haproxy_frontend_http_responses_total{proxy="requests"}[5m]))'
    queue = facts.numbers["queue"]
    return [
        alert(
            "TooManyErrors",
            f"{refused % '5xx'} / {every} > {ERRORS:g}",
            "page",
            f"more than {100 * ERRORS:g} % of requests fail",
            "99.9 % of requests succeed",
        ),
        alert(
            "RequestsAreTurnedAway",
            f"{refused % '4xx'} / {every} > 0.05",
            "page",
            "one request in twenty is refused or wrong: more instances are needed if it is 429",
            queue.source,
        ),
        alert(
            "QueueIsLong",
            f"avg(vllm:num_requests_waiting{model}) > {0.8 * queue.value:g}",
            "ticket",
            "requests wait in the engine",
            f"0.8 x queue ({queue.source})",
        ),
        alert(
            "KvCacheIsFull",
            f"max(vllm:kv_cache_usage_perc{model}) > {KV_FULL:g}",
            "ticket",
            "little KV cache is left: requests will wait or be preempted",
            "15 to 20 % of the KV cache are kept spare",
        ),
        alert("NoInstance", f"absent(vllm:num_requests_running{model})", "page", "no instance answers", "up or not"),
    ]


def scrape(targets: dict[str, str]) -> str:
    """prometheus.yml for hosts by job."""
    jobs = [
        {"job_name": job, "static_configs": [{"targets": [f"{host}:{METRICS if job == 'balancer' else PORT}"]}]}
        for job, host in targets.items()
    ]
    return text({"global": {"scrape_interval": "5s"}, "rule_files": ["rules.yml"], "scrape_configs": jobs})


# ---------------------------------------------------------------- Grafana


def dashboard(facts: Facts) -> str:
    """Symptoms in the first rows, causes below; the SLO's bounds and the measured capacity are drawn in."""
    model = f'{{model_name="{facts.name}"}}'
    panels = []
    for kind, (metric, word, _) in HISTOGRAMS.items():
        bound = next((n for name, n in facts.numbers.items() if name.startswith(f"{kind}_p")), None)
        lines = {f"P{percent}": quantile(metric, percent / 100, facts.name) for percent in (50, 90, 99)}
        panels.append(panel(word, "s", lines, bound.value if bound else None))
    tokens = f"sum(rate(vllm:generation_tokens_total{model}[1m]))"
    finished = f"sum(rate(vllm:request_success_total{model}[1m]))"
    capacity = facts["goodput_per_s"] * facts.whole("replicas")
    panels += [
        panel("Requests finished", "reqps", {"finished": finished}, capacity),
        panel("Output tokens", "tps", {"tokens": tokens}),
        panel(
            "At work and waiting",
            "short",
            {"at work": f"sum(vllm:num_requests_running{model})", "waiting": f"sum(vllm:num_requests_waiting{model})"},
        ),
        panel("KV cache in use", "percentunit", {"most": f"max(vllm:kv_cache_usage_perc{model})"}, KV_FULL),
        panel("Preemptions", "ops", {"preempted": f"sum(rate(vllm:num_preemptions_total{model}[5m]))"}),
    ]
    for number, one in enumerate(panels):
        one |= {"id": number + 1, "gridPos": {"x": 8 * (number % 3), "y": 8 * (number // 3), "w": 8, "h": 8}}
    found = {
        "uid": f"optpipe-{facts.name}"[:40],
        "title": f"{facts.name} ({facts.digest[:19]})",
        "tags": ["optpipe"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }
    return json.dumps(found, indent=2) + "\n"


def panel(title: str, unit: str, lines: dict[str, str], bound: float | None = None) -> dict[str, Any]:
    """A graph of some lines; `bound` is drawn as a threshold."""
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if bound is not None:
        steps.append({"color": "red", "value": bound})
    style = {"thresholdsStyle": {"mode": "line" if bound is not None else "off"}}
    targets = [{"refId": name[:1].upper() + name[1:], "expr": lines[name], "legendFormat": name} for name in lines]
    return {
        "type": "timeseries",
        "title": title,
        "datasource": {"type": "prometheus", "uid": "${DS_PROMETHEUS}"},
        "fieldConfig": {
            "defaults": {"unit": unit, "min": 0, "custom": style, "thresholds": {"mode": "absolute", "steps": steps}},
            "overrides": [],
        },
        "options": {},
        "targets": targets,
    }
