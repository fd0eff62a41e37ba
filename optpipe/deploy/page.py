"""The page beside the manifests: what each file is, where each number comes from, how to check and apply."""

from __future__ import annotations

from collections.abc import Mapping

from optpipe.deploy.facts import Facts
from optpipe.deploy.parts import PORT

APPLY = {
    "compose": "docker compose up --detach",
    "kubernetes": "kubectl apply -f deployment.yaml -f balancer.yaml -f autoscaling.yaml",
    "kserve": "kubectl apply -f inferenceservice.yaml",
    "llm-d": "kubectl apply -f llminferenceservice.yaml",
}
NEEDS = {
    "compose": "`trust.toml` beside compose.yaml: whose signature counts.",
    "kubernetes": "a ConfigMap `optpipe-trust` with trust.toml; the Prometheus operator for prometheus-rules.yaml, "
    "which says what is scraped too; the prometheus-adapter with prometheus-adapter-values.yaml for autoscaling.",
    "kserve": "a ConfigMap `optpipe-trust` with trust.toml; KServe 0.15 or newer with Knative. Its ingress counts "
    "failures and refusals, so no rule here does.",
    "llm-d": "KServe 0.16 or newer with LLMInferenceService and a Gateway. KServe fetches the model itself, so verify "
    "it where it is published: `optpipe verify`. The gateway counts failures and refusals, so no rule here does.",
}


def page(platform: str, facts: Facts, files: Mapping[str, str]) -> str:
    rows = [f"| {number.name} | {number.shown} | {number.source} |" for number in facts.numbers.values()]
    blocks = [
        f"# {facts.name} on {platform}",
        f"Version `{facts.digest}`, {facts.server.title} {facts.version}. Written by `optpipe deploy`; write it anew "
        "for another version rather than editing numbers. Checked by schemas and tools; not run on a cluster here.",
        "Needs: " + NEEDS[platform],
        *scraped(facts),
        f"```sh\n{APPLY[platform]}\n```",
        "\n".join(f"- `{name}`" for name in files),
        "\n".join(["| number | value | from |", "|---|---|---|", *rows]),
        *(f"> {note}" for note in facts.notes),
    ]
    return "\n\n".join(blocks) + "\n"


def scraped(facts: Facts) -> list[str]:
    """Where the engine tells its metrics."""
    path = facts.server.metrics.path
    return [f"The engine tells its metrics at `{path}` of port {PORT}."] if path else []
