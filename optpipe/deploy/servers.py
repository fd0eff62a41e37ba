"""The engines as containers: image, command, configuration file, and what each tells Prometheus.

What an engine does not tell stays None: no rule, panel or scaling is written on it, and a note says so. Names of
metrics: vLLM's documentation; TensorRT-LLM's metrics/collector.py and serve/openai_server.py, 1.1 to 1.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from optpipe.backends.engines.tensorrt_llm import NOTES, READY_S
from optpipe.backends.engines.tensorrt_llm_run import Order, words
from optpipe.errors import InputError
from optpipe.model.compat_table import numbers
from optpipe.records import Json
from optpipe.toolchains.trtllm import builds

NAMED = {
    "ttft": "the time to first token",
    "tpot": "the time per output token",
    "e2e": "end-to-end latency",
    "finished": "finished requests",
    "tokens": "output tokens",
    "running": "requests at work",
    "waiting": "requests that wait",
    "kv": "the KV cache's use",
    "preempted": "preemptions",
}


@dataclass(frozen=True)
class Metrics:
    """Series by what they say. `ttft`, `tpot`, `e2e` are histograms in seconds, `kv` a share from 0 to 1.

    `named`: they carry the served name as `model_name`; else only where they were scraped tells them apart.
    `prefix` is optional in front of every name: releases differ in it.
    """

    path: str | None = None
    ttft: str | None = None
    tpot: str | None = None
    e2e: str | None = None
    finished: str | None = None
    tokens: str | None = None
    running: str | None = None
    waiting: str | None = None
    kv: str | None = None
    preempted: str | None = None
    named: bool = False
    prefix: str = ""

    @property
    def lacking(self) -> tuple[str, ...]:
        """What is not told, in words."""
        return tuple(NAMED[one.name] for one in fields(self) if one.name in NAMED and getattr(self, one.name) is None)

    def series(self, name: str, labels: str) -> str:
        """A selector of a series, e.g. `vllm:num_requests_running{model_name="x"}`."""
        if not self.prefix:
            return f"{name}{{{labels}}}"
        return f'{{__name__=~"({self.prefix})?{name}",{labels}}}'


VLLM = Metrics(
    path="/metrics",
    ttft="vllm:time_to_first_token_seconds",
    tpot="vllm:inter_token_latency_seconds",
    e2e="vllm:e2e_request_latency_seconds",
    finished="vllm:request_success_total",
    tokens="vllm:generation_tokens_total",
    running="vllm:num_requests_running",
    waiting="vllm:num_requests_waiting",
    kv="vllm:kv_cache_usage_perc",
    preempted="vllm:num_preemptions_total",
    named=True,
)
TRT_OLD = Metrics(
    path="/prometheus/metrics",
    ttft="time_to_first_token_seconds",
    tpot="time_per_output_token_seconds",
    e2e="e2e_request_latency_seconds",
    finished="request_success_total",
    prefix="trtllm_",
)
"""Up to 1.2: per request alone, `model_name` is "undefined", and the prefix came in between."""
TRT = Metrics(
    path="/prometheus/metrics",
    ttft="trtllm_time_to_first_token_seconds",
    tpot="trtllm_time_per_output_token_seconds",
    e2e="trtllm_e2e_request_latency_seconds",
    finished="trtllm_request_success_total",
    tokens="trtllm_generation_tokens_total",
    running="trtllm_num_requests_running",
    waiting="trtllm_num_requests_waiting",
    kv="trtllm_kv_cache_utilization",
)
EARLY = "early release candidates of 1.3 tell less than 1.3: see which series {version} has before you rely on rules"
TRT_ENGINES = (1, 2)
"""Before it, `return_perf_metrics` ends a server of an engine (NVIDIA/TensorRT-LLM issue 9678)."""


@dataclass(frozen=True)
class Server:
    """How an engine is started in a container; `{model}`, `{config}`, `{name}` and `{port}` stand in its command."""

    title: str
    command: tuple[str, ...]
    metrics: Metrics
    file: str | None = None
    """Its configuration beside the manifests; None: the bundle's own is used."""
    told: str = ""
    """The comment in front of that file."""
    images: Mapping[str, str] = field(default_factory=dict)
    """Of the engine's own project, by platform, with {version}; it publishes none of these kinds for every CPU."""
    own_image: bool = False
    """It runs in the image that has optpipe, which verifies the version once more and needs to know whom to trust."""
    settings: Json = field(default_factory=dict)
    """Keys that make it tell its metrics."""
    limits_queue: bool = False
    """It has a limit of its own on what waits and runs."""
    load_s: int = 900
    """Seconds that it may take to load its model before it counts as broken."""
    unseen: tuple[str, ...] = ()
    """What has not been seen of it; every file says so."""


def server(engine: str, version: str, *, built: bool) -> Server:
    """How this release of an engine is deployed; `built`: an engine of `trtllm-build` is served. Raises InputError."""
    if engine == "vllm":
        return vllm()
    if engine == "tensorrt_llm":
        return tensorrt_llm(version, built=built)
    if engine == "onnxruntime":
        return onnxruntime()
    hint = "serve it with `optpipe serve`, behind a balancer of your own"
    raise InputError(f"nobody has written how {engine} runs in a container", place="deploy", hint=hint)


def vllm() -> Server:
    return Server(
        title="vLLM",
        command=(
            *("vllm", "serve", "{model}", "--config", "{config}", "--served-model-name", "{name}"),
            *("--host", "0.0.0.0", "--port", "{port}"),
        ),
        metrics=VLLM,
        file="vllm.yaml",
        told="The settings that were confirmed; max-num-queued-reqs is what waits and runs before vLLM says 503.",
        images={"cuda": "vllm/vllm-openai:v{version}"},
        limits_queue=True,
    )


def tensorrt_llm(version: str, *, built: bool) -> Server:
    """`trtllm-serve` as its release wants it; up to 1.2 a model is called as its folder is."""
    old = builds(version)
    metrics = Metrics() if built and numbers(version) < TRT_ENGINES else TRT_OLD if old else TRT
    asked = {"return_perf_metrics": True} if metrics.path else {}
    if metrics.running:
        asked |= {"enable_iter_perf_stats": True}
    order = Order("{model}", "{config}", "0.0.0.0", "{port}", "{name}")
    return Server(
        title="TensorRT-LLM",
        command=("trtllm-serve", *words(version, order, built=built)),
        metrics=metrics,
        file="trtllm.yaml",
        told="The settings that were confirmed" + ("; the last ones switch Prometheus' metrics on." if asked else "."),
        settings=asked,
        load_s=int(READY_S),
        unseen=(*NOTES, *([EARLY.format(version=version)] if "rc" in version and not old else [])),
    )


def onnxruntime() -> Server:
    """optpipe's own small server, started as anywhere: `optpipe serve`. It tells Prometheus nothing."""
    return Server(
        title="ONNX Runtime GenAI",
        command=("optpipe", "serve", "{model}", "--host", "0.0.0.0", "--port", "{port}"),
        metrics=Metrics(),
        own_image=True,
    )
