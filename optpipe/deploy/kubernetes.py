"""Plain Kubernetes: Deployment, Services, autoscaling on the engines' own load, a balancer with a queue."""

from __future__ import annotations

from typing import Any

from optpipe.deploy import monitoring, parts
from optpipe.deploy.facts import Facts

QUIET_S = 1800
"""Seconds of less load before anything is taken away."""
STEP_PCT, STEP_S = 25, 900
"""At most so much of what runs is taken away within so long."""
METRIC = "vllm_requests_in_flight"
"""What scaling reads: requests at work and waiting, per pod, as the adapter's rule makes it."""


def files(facts: Facts) -> dict[str, str]:
    return {
        "deployment.yaml": parts.text(engine_config(facts), deployment(facts), headless(facts)),
        "balancer.yaml": parts.text(balancer_config(facts), balancer(facts), service(facts)),
        "autoscaling.yaml": parts.text(autoscaler(facts), budget(facts)),
        "prometheus-rules.yaml": parts.text(prometheus_rule(facts)),
        "prometheus-adapter-values.yaml": parts.text(adapter(facts)),
        "rules.yml": monitoring.rules(facts),
        "dashboard.json": monitoring.dashboard(facts),
    }


def meta(facts: Facts, part: str, annotated: bool = False) -> dict[str, Any]:
    found: dict[str, Any] = {"name": f"{facts.name}-{part}", "labels": labels(facts, part)}
    return {**found, "annotations": facts.annotations} if annotated else found


def labels(facts: Facts, part: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": facts.name, "app.kubernetes.io/component": part}


def engine_config(facts: Facts) -> dict[str, Any]:
    data = {"vllm.yaml": parts.engine_yaml(facts)}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta(facts, "engine"), "data": data}


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
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": meta(facts, "engine"),
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": f"{facts.name}-engine"},
            "minReplicas": facts.whole("replicas"),
            "maxReplicas": facts.whole("max_replicas"),
            "metrics": [{"type": "Pods", "pods": {"metric": {"name": METRIC}, "target": target}}],
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


def adapter(facts: Facts) -> dict[str, Any]:
    """Values for the prometheus-adapter's chart: requests at work and waiting as a metric of each pod."""
    query = (
        "sum by (<<.GroupBy>>) (vllm:num_requests_running{<<.LabelMatchers>>})"
        " + sum by (<<.GroupBy>>) (vllm:num_requests_waiting{<<.LabelMatchers>>})"
    )
    rule = {
        "seriesQuery": f'vllm:num_requests_running{{model_name="{facts.name}",namespace!="",pod!=""}}',
        "resources": {"overrides": {"namespace": {"resource": "namespace"}, "pod": {"resource": "pod"}}},
        "name": {"as": METRIC},
        "metricsQuery": query,
    }
    return {"rules": {"custom": [rule]}}


def prometheus_rule(facts: Facts) -> dict[str, Any]:
    """The same rules for the Prometheus operator."""
    import yaml

    spec = yaml.safe_load(monitoring.rules(facts))
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": meta(facts, "rules"),
        "spec": spec,
    }
