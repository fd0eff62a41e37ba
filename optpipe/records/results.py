"""What the stages from quantize to confirm leave for each candidate."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from optpipe.records.figures import LoadFigures, Measured
from optpipe.records.jobs import Artifact
from optpipe.records.serialize import Json

Status = Literal["passed", "rejected", "inconclusive", "failed", "skipped"]


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
    units: tuple[tuple[int, float], ...] = ()
    """Tokens and summed nll (nats) of each unit, so that another version can be paired with this one later."""
    sample: tuple[str, ...] = ()
    """Digests of the token ids of each look: figures of two versions are paired where these are the same."""


@dataclass(frozen=True)
class TaskQuality:
    """One candidate on the items of one task, paired with the base on the same items."""

    task: str
    version: str
    metric: str
    """What says right or wrong, e.g. acc_norm."""
    accuracy: Measured
    items: tuple[int | str, ...]
    """Numbers of the documents that were asked; of a command's, the ids that it gave them."""
    correct: tuple[float, ...]
    """1 or 0 for each of them; a command may score in between."""
    base_accuracy: float | None = None
    change_points: Measured | None = None
    """Accuracy less the base's, in per cent points, from the paired items; None where there is nothing to pair."""
    lost: tuple[int | str, ...] = ()
    """Items that only the base has right, or that it scores higher in."""
    won: tuple[int | str, ...] = ()
    """Items that only this candidate has right, or that it scores higher in."""
    p_different: float | None = None
    """Exact McNemar over lost and won: small where the two differ; it does not say by how much."""
    figures: Json = field(default_factory=dict)
    """lm-eval's own figures by metric, or a command's."""
    content: str = ""
    """SHA-256 of what was asked: the task's keys, its documents and code. Items of another content are not paired."""


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
    """Records of the canary and of the agreement with transformers; which harness scored the tasks, or why not."""
    tasks: tuple[TaskQuality, ...] = ()
    """Tasks on the engine that serves; only of the base and of finalists, where the recipe names any."""


@dataclass(frozen=True)
class Offline:
    """The recipe's load by an engine's own benchmark, without a server: beside what was served, ranked with nothing.
    `reason`: why there are no figures."""

    tool: str
    reason: str
    figures: LoadFigures | None
    command: str
    job: str | None = None


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
    offline: Offline | None = None


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
