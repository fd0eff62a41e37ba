"""The frozen records on the arrows of the line. Standard library only (3.10 on): workers import this.

A record goes to disk with `to_json` and comes back with `from_json`; unknown keys are an error.
`Measured` and `Estimated` are different types on purpose: a ranking never mixes them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar, Union

T = TypeVar("T")
Json = dict[str, Any]


# ---------------------------------------------------------------- figures


@dataclass(frozen=True)
class Measured:
    """A measured figure over `n` independent units: `ci95` is two-sided, for reading; `bounds95` are the
    two one-sided 95 % bounds, each for itself, for gates."""

    value: float
    ci95: tuple[float, float] | None
    n: int
    unit: str
    method: str = ""
    bounds95: tuple[float, float] | None = None


@dataclass(frozen=True)
class Estimated:
    """A computed figure, with how it was computed."""

    value: float
    unit: str
    how: str


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of one latency in milliseconds; None where `n` is under 10 / (1 - p)."""

    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    n: int
    unit: str = "ms"


# ---------------------------------------------------------------- jobs


@dataclass(frozen=True)
class Needs:
    """What a job asks of the machine; `exclusive` is for anything that measures speed.

    `memory_bytes` decides what runs side by side; above `memory_limit_bytes` (0: all of the machine's)
    the job is ended.
    """

    cpus: int = 1
    gpus: int = 0
    memory_bytes: int = 0
    exclusive: bool = False
    timeout_s: float = 7200.0
    memory_limit_bytes: int = 0


@dataclass(frozen=True)
class Artifact:
    """A file or folder and the SHA-256 of its content (`sha256:...`)."""

    path: Path
    digest: str


@dataclass(frozen=True)
class Job:
    """The unit of work: `kind` names a body in `worker.BODIES`; JSON in, files and a record out.

    `options` and the digests of `inputs` make the key; `context` (an endpoint, a port, a served
    name) is handed to the body but is not part of the key.
    """

    kind: str
    title: str
    toolchain: str
    options: Json
    inputs: Mapping[str, Artifact] = field(default_factory=dict)
    context: Json = field(default_factory=dict)
    needs: Needs = Needs()
    threads: int = 1
    seed: int = 1
    bound_to_hardware: bool = False


@dataclass(frozen=True)
class JobResult:
    """What a job left: its record, and `files` (a folder, perhaps emptied by `keep:`) with its digest."""

    key: str
    record: Json
    files: Artifact
    kept: bool
    seconds: float
    peak_memory_bytes: int = 0


@dataclass(frozen=True)
class EngineSpec:
    """One engine configuration that a session can start; all of it but `title` and `needs` is in the keys.

    `argv` follows the toolchain's python; `{config}`, `{host}` and `{port}` in it are filled in at start,
    `config_text` is what the file `{config}` holds. A log line that matches `fatal` means that the engine
    will never serve; one that matches `definite`, that it never will with this configuration; `workers`
    matches the titles of processes without which it cannot go on.
    """

    title: str
    engine: str
    toolchain: str
    model: Artifact
    served_name: str
    config: Json
    config_text: str
    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    needs: Needs = Needs(exclusive=True)
    ready_s: float = 600.0
    fatal: tuple[str, ...] = ()
    definite: tuple[str, ...] = ()
    workers: str = ""


# ---------------------------------------------------------------- the model


@dataclass(frozen=True)
class TensorFact:
    """One tensor as its safetensors or GGUF header describes it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str


@dataclass(frozen=True)
class ModelFacts:
    """What is known of a model from configuration and headers alone."""

    source: str
    kind: Literal["folder", "gguf", "wheel", "hub", "registry"]
    revision: str
    architecture: str
    model_type: str
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    max_positions: int
    dtype: str
    parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    tied_embeddings: bool
    quantized: str | None
    experts: int = 0
    linears: tuple[tuple[str, int, int], ...] = ()
    """Every quantizable linear weight: (module name, out features, in features)."""
    notes: tuple[str, ...] = ()
    """Things a reader must know wherever the model is used, e.g. that it was 4-bit once."""


@dataclass(frozen=True)
class Hardware:
    """A machine as far as feasibility and keys care."""

    name: str
    cpu: str
    cores: int
    memory_bytes: int
    instruction_set: str
    gpu: str | None = None
    gpus: int = 0
    gpu_memory_bytes: int = 0
    compute_capability: str | None = None
    driver: str | None = None


# ---------------------------------------------------------------- candidates

Status = Literal["passed", "rejected", "inconclusive", "failed", "skipped"]


@dataclass(frozen=True)
class Candidate:
    """checkpoint x target, named `checkpoint@target`; `method` is None for the base model."""

    name: str
    checkpoint: str
    target: str
    scheme: Json | None
    engine: Json


@dataclass(frozen=True)
class Refusal:
    """Why a candidate is not feasible, and the nearest thing that works."""

    candidate: str
    reason: str
    nearest: str | None = None


@dataclass(frozen=True)
class CandidatePlan:
    """One feasible candidate with its estimates."""

    candidate: Candidate
    bytes: Estimated
    bits_per_weight: Estimated
    memory_bytes: Estimated
    disk_bytes: Estimated
    seconds: Estimated
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Plan:
    """Every candidate, feasible with estimates or refused with a reason."""

    model: str
    hardware: Hardware
    feasible: tuple[CandidatePlan, ...]
    refused: tuple[Refusal, ...]
    seconds: Estimated
    disk_bytes: Estimated
    downloads_bytes: Estimated
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Checkpoint:
    """A model folder in the engine's own format. `model_digest` covers weights, tokenizer, configuration."""

    name: str
    path: Path
    model_digest: str
    bytes: int
    bits_per_weight: float
    scheme: Json | None
    seconds: float
    peak_memory_bytes: int
    job: str | None = None
    details: Json = field(default_factory=dict)

    @property
    def artifact(self) -> Artifact:
        """The checkpoint as a job's input."""
        return Artifact(self.path, self.model_digest)


@dataclass(frozen=True)
class TextQuality:
    """One candidate on one text, paired with the base on the same tokens."""

    text: str
    n_tokens: int
    n_units: int
    perplexity: float
    base_perplexity: float
    change_pct: Measured
    kl_divergence: Measured
    top1_agreement: Measured


@dataclass(frozen=True)
class Check:
    """One verdict: `status` with the value, the limit and a sentence that a person can act on."""

    name: str
    status: Status
    reason: str
    value: float | None = None
    limit: float | None = None


@dataclass(frozen=True)
class Evaluation:
    """Quality of one candidate: checks in the order they were made, figures per text."""

    candidate: str
    model_digest: str
    status: Status
    checks: tuple[Check, ...]
    texts: tuple[TextQuality, ...]
    jobs: tuple[str, ...] = ()
    failure: str | None = None
    details: Json = field(default_factory=dict)
    """Records of the canary and of the agreement with transformers."""


@dataclass(frozen=True)
class LoadFigures:
    """Serving figures under one declared load on one running engine; latencies in ms of successes only."""

    requests: int
    failures: int
    seconds: float
    concurrency: int | None
    requested_rate: float | None
    achieved_rate: float
    output_tokens_per_s: Measured
    requests_per_s: Measured
    goodput_per_s: Measured
    inside_slo: Measured
    ttft_ms: Percentiles
    tpot_ms: Percentiles
    e2e_ms: Percentiles
    prefix_cache_hit_rate: float | None
    unique_prompts: bool
    client_limited: str | None
    """Why the load generator was the bottleneck, so that these are no figures of the engine; None where it was not."""
    batches: Json = field(default_factory=dict)
    """Per-batch rates (batch means), from which differences between candidates get their interval."""


@dataclass(frozen=True)
class Serving:
    """One candidate with one engine configuration under the recipe's load."""

    candidate: str
    config: Json
    status: Status
    reason: str
    figures: LoadFigures | None
    command: str
    job: str | None = None


@dataclass(frozen=True)
class Trial:
    """One engine configuration that the tuner measured, or learnt to be infeasible."""

    number: int
    config: Json
    status: Literal["measured", "infeasible"]
    reason: str
    goodput_per_s: Measured | None
    job: str | None = None
    output_tokens_per_s: Measured | None = None


@dataclass(frozen=True)
class Tuning:
    """The search over engine settings that do not change the model's numbers; default first."""

    candidate: str
    objective: str
    trials: tuple[Trial, ...]
    best: int
    config: Json
    default_goodput: Measured | None
    tuned_goodput: Measured | None


@dataclass(frozen=True)
class Rank:
    """A candidate's place in the selection, or why it has none."""

    candidate: str
    status: Status
    reasons: tuple[str, ...]
    objective: Measured | None
    bytes: int
    pareto: bool


@dataclass(frozen=True)
class Selection:
    """Gates, then the objective; a reason for every rejection."""

    winner: str | None
    objective: str
    ranks: tuple[Rank, ...]
    reason: str


@dataclass(frozen=True)
class Confirmation:
    """The winner with exactly the configuration that ships, on what it was not tuned on."""

    candidate: str
    config: Json
    status: Status
    checks: tuple[Check, ...]
    figures: LoadFigures | None
    perplexity: float | None
    jobs: tuple[str, ...] = ()
    environment: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Engine:
    """What the bundle is served with: the configuration that was confirmed, and what ran it."""

    name: str
    version: str
    config: Json
    environment: Json = field(default_factory=dict)
    """Variables that change what the engine does; never secrets."""


@dataclass(frozen=True)
class Bundle:
    """A packaged version: `digest` is that of the manifest of everything but the signature."""

    name: str
    path: Path
    digest: str
    model_digest: str
    bytes: int


@dataclass(frozen=True)
class Challenge:
    """How a new version did against the one that the alias meant when they were compared."""

    champion: str | None
    """Digest of the version it was compared with; None: there was none."""
    passed: bool
    evidence: str
    """The run whose records say so."""
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True)
class Published:
    """Where a version went and which aliases moved."""

    registry: str
    name: str
    digest: str
    aliases: tuple[str, ...]
    location: str


# ---------------------------------------------------------------- JSON


def to_json(value: Any) -> Any:
    """Plain JSON for any record; a NaN or an infinity is refused here, not written."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} in a record: a figure that is not finite is a failure, not a value")
    return value


def from_json(cls: type[T], value: Any) -> T:
    """The record of type `cls` in plain JSON `value`; unknown or missing keys raise TypeError."""
    return typing.cast(T, _read(cls, value))


def _read(kind: Any, value: Any) -> Any:
    origin = typing.get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        return _read(next(a for a in typing.get_args(kind) if a is not type(None)), value)
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        unknown = set(value) - set(hints)
        if unknown:
            raise TypeError(f"{getattr(kind, '__name__', kind)}: unknown keys {sorted(unknown)}")
        return typing.cast(Any, kind)(**{k: _read(hints[k], v) for k, v in value.items()})
    if origin is tuple:
        args = typing.get_args(kind)
        if len(args) == 2 and args[1] is Ellipsis:
            return tuple(_read(args[0], item) for item in value)
        return tuple(_read(a, item) for a, item in zip(args, value))
    if kind is Path:
        return Path(value)
    return value


def canonical(value: Any) -> bytes:
    """The one byte string of a JSON value: sorted keys, no spaces, UTF-8."""
    text = json.dumps(to_json(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()
