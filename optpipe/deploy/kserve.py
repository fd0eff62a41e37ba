"""KServe: an InferenceService whose predictor is the engine with the confirmed settings."""

from __future__ import annotations

from typing import Any

from optpipe.deploy import monitoring, parts
from optpipe.deploy.facts import Facts
from optpipe.deploy.kubernetes import engine_config


def files(facts: Facts) -> dict[str, str]:
    """There is no balancer of ours: KServe's ingress counts answers, in words of its own."""
    seen = monitoring.Seen(facts, f'pod=~"{facts.name}-predictor-.*"', balancer=False)
    return {
        "inferenceservice.yaml": parts.text(*engine_config(facts), inference_service(facts)),
        **monitoring.files(seen),
    }


def inference_service(facts: Facts) -> dict[str, Any]:
    """A predictor of one's own container: KServe's runtimes bring settings of their own, not what was measured.

    `containerConcurrency` is what one instance was measured with; Knative queues beyond it and scales on it.
    """
    pod = parts.pod(facts)
    ports = [{"name": "http1", "containerPort": parts.PORT}]  # Knative takes no other name for HTTP/1.1
    pod["containers"] = [{**pod["containers"][0], "name": "kserve-container", "ports": ports}]
    predictor = {
        "minReplicas": facts.whole("replicas"),
        "maxReplicas": facts.whole("max_replicas"),
        "scaleMetric": "concurrency",
        "scaleTarget": max(1, int(facts["scale_at"])),
        "containerConcurrency": facts.whole("in_flight"),
        "timeout": 600,
        **pod,
    }
    return {
        "apiVersion": "serving.kserve.io/v1beta1",
        "kind": "InferenceService",
        "metadata": {"name": facts.name, "annotations": facts.annotations},
        "spec": {"predictor": predictor},
    }
