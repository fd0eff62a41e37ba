"""llm-d, through KServe's LLMInferenceService: routing by load and prefix, and prefill apart from decode if asked."""

from __future__ import annotations

from typing import Any

from optpipe.deploy import monitoring, parts
from optpipe.deploy.facts import Facts
from optpipe.deploy.kubernetes import engine_config
from optpipe.errors import InputError

SCORERS = ({"type": "queue-scorer"}, {"type": "kv-cache-utilization-scorer"}, {"type": "prefix-cache-scorer"})


def files(facts: Facts) -> dict[str, str]:
    if facts.server.title != "vLLM":
        raise InputError(
            f"llm-d serves with vLLM, whose metrics its scheduler reads, and not with {facts.server.title}",
            place="--for",
            hint="--for kubernetes or kserve, or publish a candidate of a vllm target",
        )
    seen = monitoring.Seen(facts, f'pod=~"{facts.name}-.*"', balancer=False)
    return {
        "llminferenceservice.yaml": parts.text(*engine_config(facts), service(facts)),
        **monitoring.files(seen),
    }


def service(facts: Facts) -> dict[str, Any]:
    """The engine's pods, the scheduler in front of them, and prefill as a pool of its own."""
    spec: dict[str, Any] = {
        "model": {"uri": uri(facts), "name": facts.name},
        "replicas": facts.whole("replicas"),
        "parallelism": {"tensor": int(facts.settings.get("tensor-parallel-size", 1))},
        "template": workload(facts),
        "router": {"gateway": {}, "route": {}, "scheduler": {"config": {"inline": scheduling()}}},
    }
    if facts.prefill:
        spec["prefill"] = {"replicas": facts.prefill, "template": workload(facts)}
    return {
        "apiVersion": "serving.kserve.io/v1alpha2",
        "kind": "LLMInferenceService",
        "metadata": {"name": facts.name, "annotations": facts.annotations},
        "spec": spec,
    }


def uri(facts: Facts) -> str:
    """Where KServe fetches the model: an OCI registry by digest, else a volume that a job of one's own fills."""
    if facts.registry and facts.registry.startswith("oci://"):
        return f"{facts.registry}/{facts.name}:{facts.digest.replace(':', '-')}"
    return f"pvc://{facts.name}"


def workload(facts: Facts) -> dict[str, Any]:
    """KServe mounts the model at /mnt/models and calls the container `main`."""
    found = parts.container(facts)
    words = parts.command(facts, "/mnt/models")
    mounts = [mount for mount in found["volumeMounts"] if mount["name"] != "model"]
    main = {**found, "name": "main", "command": words[:1], "args": words[1:], "volumeMounts": mounts}
    volumes = [volume for volume in parts.volumes(facts) if volume["name"] in ("config", "shared-memory")]
    selector = {"nodeSelector": dict(facts.labels)} if facts.labels else {}
    return {**selector, "containers": [main], "volumes": volumes}


def scheduling() -> dict[str, Any]:
    """The endpoint picker: the shorter queue, the emptier cache, the known prefix."""
    return {
        "apiVersion": "inference.networking.x-k8s.io/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [*SCORERS, {"type": "max-score-picker"}],
        "schedulingProfiles": [
            {
                "name": "default",
                "plugins": [*({"pluginRef": one["type"]} for one in SCORERS), {"pluginRef": "max-score-picker"}],
            }
        ],
    }
