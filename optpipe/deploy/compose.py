"""Docker Compose: the version pulled and verified, its engine, a balancer with a queue, Prometheus and Grafana."""

from __future__ import annotations

from typing import Any

from optpipe.deploy import monitoring, parts
from optpipe.deploy.facts import Facts


def files(facts: Facts) -> dict[str, str]:
    seen = monitoring.Seen(facts, 'job="engine"', balancer=True)
    return {
        "compose.yaml": parts.text(project(facts)),
        **parts.engine_files(facts),
        "haproxy.cfg": parts.haproxy(facts, f"server engine engine:{parts.PORT}"),
        "prometheus.yml": monitoring.scrape(seen),
        **monitoring.files(seen),
    }


def project(facts: Facts) -> dict[str, Any]:
    """The services in the order that they start in."""
    return {
        "services": {
            "pull": {
                "image": facts.optpipe_image,
                "command": parts.pull(facts),
                "environment": {**parts.TRUST, "OPTPIPE_HOME": "/model/.optpipe"},
                "volumes": ["model:/model", "./trust.toml:/trust/trust.toml:ro"],
            },
            "engine": engine(facts),
            "balancer": {
                "image": "haproxy:2.8",
                "depends_on": {"engine": {"condition": "service_healthy"}},
                "volumes": ["./haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro"],
                "ports": [f"127.0.0.1:{parts.BALANCER}:{parts.BALANCER}"],
            },
            "prometheus": {
                "image": "prom/prometheus:v3.5.0",
                "volumes": [
                    "./prometheus.yml:/etc/prometheus/prometheus.yml:ro",
                    "./rules.yml:/etc/prometheus/rules.yml:ro",
                ],
                "ports": ["127.0.0.1:9090:9090"],
            },
        },
        "volumes": {"model": {}},
    }


def engine(facts: Facts) -> dict[str, Any]:
    """The engine with the confirmed settings; GPUs where it has any, else the cores that were measured."""
    config = [f"./{name}:/config/{name}:ro" for name in parts.engine_files(facts)]
    trust = ["./trust.toml:/trust/trust.toml:ro"] if facts.server.own_image else []
    found: dict[str, Any] = {
        "image": facts.image,
        "entrypoint": parts.command(facts),
        "environment": {one["name"]: one["value"] for one in parts.environment(facts)},
        "depends_on": {"pull": {"condition": "service_completed_successfully"}},
        "volumes": ["model:/model:ro", *config, *trust],
        "shm_size": "2gb",
        "stop_grace_period": f"{parts.DRAIN_S}s",
        "labels": facts.annotations,
        "healthcheck": {
            "test": ["CMD", "python3", "-c", health()],
            "interval": "10s",
            "timeout": "5s",
            "retries": 3,
            "start_period": f"{facts.server.load_s}s",
        },
    }
    if facts.gpus:
        device = {"driver": "nvidia", "count": facts.gpus, "capabilities": ["gpu"]}
        found["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    else:
        found["cpus"] = facts.whole("cpus")
    return found


def health() -> str:
    return f"import urllib.request; urllib.request.urlopen('http://127.0.0.1:{parts.PORT}/health', timeout=4)"
