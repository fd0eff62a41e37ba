"""What several platforms have in common: the engine's configuration, the balancer's, the container, the model."""

from __future__ import annotations

from typing import Any

import yaml

from optpipe.deploy.facts import Facts

PORT, BALANCER, METRICS = 8000, 8080, 8404
TRUST = {"OPTPIPE_TRUST": "/trust/trust.toml"}
"""Whose signatures count, where optpipe itself runs."""
DRAIN_S = 120
"""Seconds that answers under way get when an instance goes."""


def text(*documents: Any) -> str:
    """YAML documents, keys in the order they are given."""
    return yaml.safe_dump_all(documents, sort_keys=False, allow_unicode=True, width=110)


def engine_files(facts: Facts) -> dict[str, str]:
    """{name: text} of what the engine reads beside its model: the settings that were confirmed."""
    if facts.server.file is None:
        return {}
    settings = yaml.safe_dump(facts.settings, sort_keys=False)
    return {facts.server.file: f"# {facts.server.told}\n{settings}"}


def command(facts: Facts, model: str | None = None) -> list[str]:
    """The engine's command in its image."""
    values = {
        "{model}": model or facts.model,
        "{config}": f"/config/{facts.server.file}",
        "{name}": facts.name,
        "{port}": str(PORT),
    }
    return [values.get(word, word) for word in facts.server.command]


def pull(facts: Facts) -> list[str]:
    """Brings the version, by its digest, verified; its signer must be trusted by OPTPIPE_TRUST."""
    registry = ["--registry", facts.registry] if facts.registry else []
    return ["optpipe", "pull", facts.reference, facts.model, *registry]


def environment(facts: Facts) -> list[dict[str, str]]:
    known = {**facts.environment, **(TRUST if facts.server.own_image else {})}
    return [{"name": name, "value": value} for name, value in sorted(known.items())]


def haproxy(facts: Facts, server: str, resolvers: str = "") -> str:
    """The least busy instance takes a request; so many wait, and who comes then gets 429 at once."""
    capacity, queue, most = facts.whole("in_flight"), facts.whole("queue"), facts.whole("max_replicas")
    return f"""# One instance works on {capacity} requests at a time; {queue} per instance wait, then 429.
global
  log stdout format raw local0
  maxconn {64 + most * (capacity + queue) * 4}
defaults
  mode http
  log global
  option httplog
  timeout connect 5s
  timeout client 10m
  timeout server 10m
  timeout queue 60s
{resolvers}frontend requests
  bind :{BALANCER}
  acl full queue(engines) ge {queue * facts.whole("replicas")}
  http-request return status 429 content-type text/plain string "busy: try again" hdr Retry-After 5 if full
  default_backend engines
frontend metrics
  bind :{METRICS}
  http-request use-service prometheus-exporter if {{ path /metrics }}
backend engines
  balance leastconn
  option httpchk GET /health
  {server} check inter 5s fall 3 rise 1 maxconn {capacity} init-addr last,libc,none
"""


def container(facts: Facts) -> dict[str, Any]:
    """The engine in a pod: resources, probes, and time to finish what it answers."""
    memory = f"{facts.whole('memory_bytes') >> 20}Mi"
    resources: dict[str, Any] = {"cpu": str(facts.whole("cpus")), "memory": memory}
    if facts.gpus:
        resources["nvidia.com/gpu"] = str(facts.gpus)
    health = {"httpGet": {"path": "/health", "port": PORT}}
    mounts: list[dict[str, Any]] = [
        {"name": "model", "mountPath": "/model", "readOnly": True},
        {"name": "config", "mountPath": "/config", "readOnly": True},
        {"name": "shared-memory", "mountPath": "/dev/shm"},
        {"name": "trust", "mountPath": "/trust", "readOnly": True},
    ]
    used = {volume["name"] for volume in volumes(facts)} - (set() if facts.server.own_image else {"trust"})
    return {
        "name": "engine",
        "image": facts.image,
        "command": command(facts)[:1],
        "args": command(facts)[1:],
        "env": environment(facts),
        "ports": [{"name": "http", "containerPort": PORT}],
        "resources": {"requests": dict(resources), "limits": dict(resources)},
        "startupProbe": {**health, "periodSeconds": 5, "failureThreshold": facts.server.load_s // 5},
        "readinessProbe": {**health, "periodSeconds": 5, "failureThreshold": 2},
        "livenessProbe": {**health, "periodSeconds": 15, "failureThreshold": 4},
        "volumeMounts": [mount for mount in mounts if mount["name"] in used],
    }


def volumes(facts: Facts) -> list[dict[str, Any]]:
    """What the containers of a pod share or are given."""
    config: dict[str, Any] = {"name": "config", "configMap": {"name": f"{facts.name}-engine"}}
    return [
        {"name": "model", "emptyDir": {}},
        *([config] if facts.server.file else []),
        {"name": "trust", "configMap": {"name": "optpipe-trust"}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}},
    ]


def pod(facts: Facts) -> dict[str, Any]:
    """A pod that fetches the version, verified, and serves it."""
    selector = {"nodeSelector": dict(facts.labels)} if facts.labels else {}
    return {
        **selector,
        "terminationGracePeriodSeconds": DRAIN_S,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "initContainers": [
            {
                "name": "pull",
                "image": facts.optpipe_image,
                "command": pull(facts)[:1],
                "args": pull(facts)[1:],
                "env": [
                    *({"name": name, "value": value} for name, value in TRUST.items()),
                    {"name": "OPTPIPE_HOME", "value": "/model/.optpipe"},
                ],
                "volumeMounts": [
                    {"name": "model", "mountPath": "/model"},
                    {"name": "trust", "mountPath": "/trust", "readOnly": True},
                ],
            }
        ],
        "containers": [container(facts)],
        "volumes": volumes(facts),
    }
