"""Prometheus rules on symptoms, a scrape configuration, a Grafana dashboard, all of metrics that an engine tells."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from optpipe.deploy.facts import Facts
from optpipe.deploy.parts import METRICS, PORT, text

CAUSES = {
    "ttft": ("TTFT", "queue or long prompts where TPOT is normal, else overload"),
    "tpot": ("TPOT", "compute or bandwidth where TTFT is normal, else overload"),
    "e2e": ("end-to-end latency", "overload, or longer answers than measured"),
}
FOR = "5m"
ERRORS = 0.001
"""Share of requests that may fail: 99.9 % succeed."""
BUSY = 'sum(haproxy_backend_current_sessions{proxy="engines"})'
QUEUED = 'sum(haproxy_backend_current_queue{proxy="engines"})'
"""Requests that the balancer has at work with engines, and that wait in it for one."""
KV_FULL = 0.85
"""Share of the KV cache that should not be exceeded: 15 to 20 % are kept spare."""


@dataclass(frozen=True)
class Seen:
    """What Prometheus sees of a deployment: the engine's metrics, and the balancer's where there is one of ours.

    `targets` are labels of the engines that are scraped, e.g. `job="engine"`.
    """

    facts: Facts
    targets: str
    balancer: bool

    def series(self, what: str, suffix: str = "") -> str | None:
        """The engine's series of this deployment by our word for it; None where it tells no such thing."""
        metrics = self.facts.server.metrics
        name = getattr(metrics, what)
        labels = f'model_name="{self.facts.name}"' if metrics.named else self.targets
        return metrics.series(name + suffix, labels) if name else None

    def quantile(self, what: str, share: float) -> str | None:
        series = self.series(what, "_bucket")
        return f"histogram_quantile({share:g}, sum by (le) (rate({series}[{FOR}])))" if series else None


def files(seen: Seen) -> dict[str, str]:
    """Rules and dashboard, where there is anything to look at."""
    found = {}
    if alerts := rules(seen):
        found["rules.yml"] = text({"groups": [{"name": f"optpipe-{seen.facts.name}", "rules": alerts}]})
    if panels := graphs(seen):
        found["dashboard.json"] = dashboard(seen, panels)
    return found


def rules(seen: Seen) -> list[dict[str, Any]]:
    """Alerts on what users feel; causes are told beside them, at a lower severity."""
    balanced = balancer_alerts(seen.facts) if seen.balancer else []
    return [*slo_alerts(seen), *balanced, *engine_alerts(seen)]


def alert(name: str, expr: str, severity: str, summary: str, source: str) -> dict[str, Any]:
    return {
        "alert": name,
        "expr": expr,
        "for": FOR,
        "labels": {"severity": severity},
        "annotations": {"summary": summary, "source": source},
    }


def slo_alerts(seen: Seen) -> list[dict[str, Any]]:
    """One alert per bound of the SLO."""
    found = []
    for name, number in seen.facts.numbers.items():
        kind, _, rest = name.partition("_")
        if kind not in CAUSES or not rest.startswith("p"):
            continue
        word, cause = CAUSES[kind]
        percentile = rest.removesuffix("_s")
        quantile = seen.quantile(kind, int(percentile[1:]) / 100)
        if quantile is None:
            continue
        title = f"{kind.capitalize()}{percentile.upper()}TooHigh"
        told = f"{word} {percentile.upper()} is above {number.shown} s: {cause}"
        found.append(alert(title, f"{quantile} > {number.shown}", "page", told, number.source))
    return found


def balancer_alerts(facts: Facts) -> list[dict[str, Any]]:
    """Failures and refusals page."""
    refused = 'sum(rate(haproxy_frontend_http_responses_total{proxy="requests",code="%s"}[5m]))'
    every = 'sum(rate(haproxy_frontend_http_responses_total{proxy="requests"}[5m]))'
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
            facts.numbers["queue"].source,
        ),
    ]


def engine_alerts(seen: Seen) -> list[dict[str, Any]]:
    """A full queue or cache explains; no instance pages."""
    queue, found = seen.facts.numbers["queue"], []
    source = f"0.8 x queue ({queue.source})"
    waiting, waiters = seen.series("waiting"), QUEUED if seen.balancer else None
    if waiting or waiters:
        expr = f"avg({waiting}) > {0.8 * queue.value:g}"
        where = "engine"
        if not waiting:
            expr, where = f"{waiters} > {0.8 * queue.value * seen.facts.whole('replicas'):g}", "balancer"
        found.append(alert("QueueIsLong", expr, "ticket", f"requests wait in the {where}", source))
    if kv := seen.series("kv"):
        told = "little KV cache is left: requests will wait or be preempted"
        spare = "15 to 20 % of the KV cache are kept spare"
        found.append(alert("KvCacheIsFull", f"max({kv}) > {KV_FULL:g}", "ticket", told, spare))
    if absent := nobody(seen):
        found.append(alert("NoInstance", absent, "page", "no instance answers", "up or not"))
    return found


def nobody(seen: Seen) -> str | None:
    """What is so when no engine answers: of its own metrics where they carry its name, else of who scrapes or asks."""
    if seen.facts.server.metrics.named:
        return f"absent({seen.series('running')})"
    if seen.facts.server.metrics.path:
        return f"absent(up{{{seen.targets}}} == 1)"
    return 'haproxy_backend_active_servers{proxy="engines"} == 0' if seen.balancer else None


def scrape(seen: Seen) -> str:
    """prometheus.yml for hosts by job."""
    path = seen.facts.server.metrics.path
    engine = [{"job_name": "engine", "metrics_path": path, "static_configs": [{"targets": [f"engine:{PORT}"]}]}]
    balancer = {"job_name": "balancer", "static_configs": [{"targets": [f"balancer:{METRICS}"]}]}
    jobs = [*(engine if path else []), balancer]
    return text({"global": {"scrape_interval": "5s"}, "rule_files": ["rules.yml"], "scrape_configs": jobs})


# ---------------------------------------------------------------- Grafana


def dashboard(seen: Seen, panels: list[dict[str, Any]]) -> str:
    """Symptoms in the first rows, causes below; the SLO's bounds and the measured capacity are drawn in."""
    facts = seen.facts
    for number, one in enumerate(panels):
        one |= {"id": number + 1, "gridPos": {"x": 8 * (number % 3), "y": 8 * (number // 3), "w": 8, "h": 8}}
    found = {
        "uid": f"optpipe-{facts.name}"[:40],
        "title": f"{facts.name} ({facts.digest[:19]})",
        "description": "; ".join(facts.server.unseen),
        "tags": ["optpipe"],
        "schemaVersion": 39,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "panels": panels,
    }
    return json.dumps(found, indent=2) + "\n"


def graphs(seen: Seen) -> list[dict[str, Any]]:
    """A panel for each thing that is told."""
    facts, found = seen.facts, []
    for kind, (word, _) in CAUSES.items():
        bound = next((n for name, n in facts.numbers.items() if name.startswith(f"{kind}_p")), None)
        lines = {f"P{percent}": seen.quantile(kind, percent / 100) for percent in (50, 90, 99)}
        found += panel(word, "s", lines, bound.value if bound else None)
    capacity = facts["goodput_per_s"] * facts.whole("replicas")
    found += panel("Requests finished", "reqps", {"finished": rate(seen.series("finished"), "1m")}, capacity)
    found += panel("Output tokens", "tps", {"tokens": rate(seen.series("tokens"), "1m")})
    at_work, waiting = summed(seen.series("running")), summed(seen.series("waiting"))
    if seen.balancer and not at_work:
        at_work, waiting = BUSY, QUEUED
    found += panel("At work and waiting", "short", {"at work": at_work, "waiting": waiting})
    kv = seen.series("kv")
    found += panel("KV cache in use", "percentunit", {"most": f"max({kv})" if kv else None}, KV_FULL)
    return found + panel("Preemptions", "ops", {"preempted": rate(seen.series("preempted"), FOR)})


def rate(series: str | None, window: str) -> str | None:
    return f"sum(rate({series}[{window}]))" if series else None


def summed(series: str | None) -> str | None:
    return f"sum({series})" if series else None


def panel(
    title: str, unit: str, lines: dict[str, str | None], bound: float | None = None
) -> list[dict[str, Any]]:
    """A graph of some lines, none where there is no line; `bound` is drawn as a threshold."""
    known = {name: expr for name, expr in lines.items() if expr is not None}
    if not known:
        return []
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if bound is not None:
        steps.append({"color": "red", "value": bound})
    style = {"thresholdsStyle": {"mode": "line" if bound is not None else "off"}}
    targets = [{"refId": name[:1].upper() + name[1:], "expr": known[name], "legendFormat": name} for name in known]
    found = {
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
    return [found]
