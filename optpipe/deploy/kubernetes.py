"""Plain Kubernetes: Deployment, Services, autoscaling on the engines' own load, a balancer with a queue."""

from __future__ import annotations

import re
from typing import Any

import yaml

from optpipe.deploy import monitoring, parts
from optpipe.deploy.facts import Facts

QUIET_S = 1800
"""Seconds of less load before anything is taken away."""
STEP_PCT, STEP_S = 25, 900
"""At most so much of what runs is taken away within so long."""
ENGINE_METRIC = "requests_in_flight"
"""What scaling reads: requests at work and waiting, per pod, as the adapter's rule makes it."""
BALANCER_METRIC = "requests_at_balancer"
"""The same of all pods together, where the engine does not tell them: what the balancer has at work and waiting."""


def files(facts: Facts) -> dict[str, str]:
    seen = monitoring.Seen(facts, f'pod=~"{facts.name}-engine-.*"', balancer=True)
    watched = monitoring.files(seen)
    return {
        "deployment.yaml": parts.text(*engine_config(facts), deployment(facts), headless(facts)),
        "balancer.yaml": parts.text(balancer_config(facts), balancer(facts), service(facts)),
        "autoscaling.yaml": parts.text(autoscaler(facts), budget(facts)),
        "prometheus-rules.yaml": parts.text(prometheus_rule(facts, watched["rules.yml"]), *pod_monitors(facts)),
        "prometheus-adapter-values.yaml": parts.text(adapter(facts)),
        **watched,
    }


def meta(facts: Facts, part: str, annotated: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"name": f"{facts.name}-{part}", "labels": labels(facts, part)}
    return {**found, "annotations": facts.annotations} if annotated else found


def labels(facts: Facts, part: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": facts.name, "app.kubernetes.io/component": part}


def engine_config(facts: Facts) -> list[dict[str, Any]]:
    """The engine's configuration, where it has one beside its model."""
    data = parts.engine_files(facts)
    found = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(facts, "engine"), "data": data}
    return [found] if data else []


def deployment(facts: Facts) -> dict[str, Any]:
    """A new version comes up before an old one goes: loading a model takes minutes."""
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(facts, "engine", annotated=True),
        "spec": {
            "replicas": facts.whole("replicas"),
            "selector": {"matchLabels": labels(facts, "engine")},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": {"metadata": {"labels": labels(facts, "engine")}, "spec": parts.pod(facts)},
        },
    }


def headless(facts: Facts) -> dict[str, Any]:
    """Every ready engine by its own address, for the balancer."""
    spec = {
        "clusterIP": "None",
        "selector": labels(facts, "engine"),
        "ports": [{"name": "http", "port": parts.PORT, "targetPort": "http"}],
    }
    return {"apiVersion": "v1", "kind": "Service", "metadata": meta(facts, "engine"), "spec": spec}


# ---------------------------------------------------------------- the balancer


def balancer_config(facts: Facts) -> dict[str, Any]:
    most = facts.whole("max_replicas")
    resolvers = (
        "resolvers cluster\n  parse-resolv-conf\n  accepted_payload_size 8192\n  hold valid 5s\n"
    )
    server = f"server-template engine- {most} {facts.name}-engine:{parts.PORT} resolvers cluster"
    data = {"haproxy.cfg": parts.haproxy(facts, server, resolvers)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(facts, "balancer"), "data": data}


def balancer(facts: Facts) -> dict[str, Any]:
    """One balancer: two would each see half of the queue."""
    container = {
        "name": "haproxy",
        "image": "haproxy:2.8",
        "ports": [
            {"name": "http", "containerPort": parts.BALANCER},
            {"name": "metrics", "containerPort": parts.METRICS},
        ],
        "resources": {"requests": {"cpu": "250m", "memory": "128Mi"}, "limits": {"memory": "256Mi"}},
        "readinessProbe": {"tcpSocket": {"port": parts.BALANCER}, "periodSeconds": 5},
        "volumeMounts": [{"name": "config", "mountPath": "/usr/local/etc/haproxy", "readOnly": True}],
    }
    volume = {"name": "config", "configMap": {"name": f"{facts.name}-balancer"}}
    template = {
        "metadata": {"labels": labels(facts, "balancer")},
        "spec": {"containers": [container], "volumes": [volume]},
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": meta(facts, "balancer"),
        "spec": {"replicas": 1, "selector": {"matchLabels": labels(facts, "balancer")}, "template": template},
    }


def service(facts: Facts) -> dict[str, Any]:
    """What clients call."""
    spec = {
        "selector": labels(facts, "balancer"),
        "ports": [{"name": "http", "port": 80, "targetPort": "http"}],
    }
    found = meta(facts, "balancer") | {"name": facts.name}
    return {"apiVersion": "v1", "kind": "Service", "metadata": found, "spec": spec}


# ---------------------------------------------------------------- scaling


def autoscaler(facts: Facts) -> dict[str, Any]:
    """Out at once above 70 % of the measured capacity; in slowly, and never by much."""
    target = {"type": "AverageValue", "averageValue": f"{round(1000 * facts['scale_at'])}m"}
    if facts.server.metrics.running:
        metric: dict[str, Any] = {"type": "Pods", "pods": {"metric": {"name": metric_name(facts)}, "target": target}}
    else:
        metric = {"type": "External", "external": {"metric": {"name": metric_name(facts)}, "target": target}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta(facts, "engine"),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{facts.name}-engine"},
            "minReplicas": facts.whole("replicas"),
            "maxReplicas": facts.whole("max_replicas"),
            "metrics": [metric],
            "behavior": {
                "scaleUp": {
                    "stabilizationWindowSeconds": 0,
                    "policies": [{"type": "Percent", "value": 100, "periodSeconds": 60}],
                },
                "scaleDown": {
                    "stabilizationWindowSeconds": QUIET_S,
                    "policies": [{"type": "Percent", "value": STEP_PCT, "periodSeconds": STEP_S}],
                },
            },
        },
    }


def budget(facts: Facts) -> dict[str, Any]:
    """Maintenance takes one engine at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": labels(facts, "engine")}}
    return {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta(facts, "engine"), "spec": spec}


def metric_name(facts: Facts) -> str:
    """What scaling reads; the balancer's is of one model alone, so it has its name."""
    if facts.server.metrics.running:
        return ENGINE_METRIC
    return f"{re.sub(r'[^a-z0-9]', '_', facts.name)}_{BALANCER_METRIC}"


def adapter(facts: Facts) -> dict[str, Any]:
    """Values for the prometheus-adapter's chart: requests at work and waiting, of each pod, or of the balancer."""
    running, waiting = facts.server.metrics.running, facts.server.metrics.waiting
    if running is None:
        own = f'proxy="engines",pod=~"{facts.name}-balancer-.*"'
        names = ("haproxy_backend_current_sessions", "haproxy_backend_current_queue")
        rule = {
            "seriesQuery": f'{names[0]}{{{own},namespace!=""}}',
            "resources": {"overrides": {"namespace": {"resource": "namespace"}}},
            "name": {"as": metric_name(facts)},
            "metricsQuery": " + ".join(f"sum({name}{{<<.LabelMatchers>>,{own}}})" for name in names),
        }
        return {"rules": {"external": [rule]}}
    own = f'model_name="{facts.name}"' if facts.server.metrics.named else f'pod=~"{facts.name}-engine-.*"'
    query = " + ".join(f"sum by (<<.GroupBy>>) ({name}{{<<.LabelMatchers>>}})" for name in (running, waiting))
    rule = {
        "seriesQuery": f'{running}{{{own},namespace!="",pod!=""}}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
        "name": {"as": metric_name(facts)},
        "metricsQuery": query,
    }
    return {"rules": {"custom": [rule]}}


# ---------------------------------------------------------------- what is watched


def pod_monitors(facts: Facts) -> list[dict[str, Any]]:
    """What the Prometheus operator scrapes: every engine that tells anything, and the balancer."""
    path = facts.server.metrics.path
    engine = [("engine", {"port": "http", "path": path})] if path else []
    return [
        {
            "apiVersion": "monitoring.coreos.com/v1",
            "kind": "PodMonitor",
            "metadata": meta(facts, part),
            "spec": {"selector": {"matchLabels": labels(facts, part)}, "podMetricsEndpoints": [endpoint]},
        }
        for part, endpoint in [*engine, ("balancer", {"port": "metrics", "path": "/metrics"})]
    ]


def prometheus_rule(facts: Facts, rules: str) -> dict[str, Any]:
    """The same rules for the Prometheus operator."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": meta(facts, "rules"),
        "spec": yaml.safe_load(rules),
    }
