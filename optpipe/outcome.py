"""What is known of a build so far: candidate by candidate while it runs, one set of records at its end."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event

from optpipe.records import (
    Artifact,
    Bundle,
    Candidate,
    CandidatePlan,
    Challenge,
    Check,
    Checkpoint,
    Compiled,
    Confirmation,
    Evaluation,
    Json,
    ModelFacts,
    Plan,
    Published,
    Scored,
    Selection,
    Serving,
    Status,
    Tuning,
)


def reference_of(scored: Scored) -> str:
    """What scored a model, in words."""
    return "the compiled artifact's own scores" if isinstance(scored, Compiled) else "transformers"


@dataclass
class Entry:
    """One candidate on its way down the line; `failure` says why it went no further."""

    planned: CandidatePlan
    lenient: bool = False
    """An open verdict does not stop it."""
    absent: str | None = None
    """Why the engine of its target is not there, so that it is skipped."""
    checkpoint: Checkpoint | None = None
    compiled: Compiled | None = None
    evaluation: Evaluation | None = None
    serving: Serving | None = None
    tuning: Tuning | None = None
    failure: str | None = None
    judged: Event = field(default_factory=Event)
    """Set once its quality is known on its engine, or it will never be."""

    @contextmanager
    def until_judged(self) -> Iterator[None]:
        """Whoever waits for this candidate's judgement waits no longer than this block."""
        try:
            yield
        finally:
            self.judged.set()

    @property
    def candidate(self) -> Candidate:
        return self.planned.candidate

    @property
    def name(self) -> str:
        return self.planned.candidate.name

    @property
    def is_base(self) -> bool:
        return self.planned.candidate.scheme is None

    def goes_on(self, status: Status) -> bool:
        """Whether it goes on down the line with this verdict."""
        return status == "passed" or (self.lenient and status == "inconclusive")

    @property
    def passed(self) -> bool:
        """Nothing has spoken against it so far."""
        judged = self.evaluation is not None and self.goes_on(self.evaluation.status)
        return judged and self.failure is None and (self.serving is None or self.goes_on(self.serving.status))

    @property
    def weights(self) -> Artifact:
        """What is served and shipped; its files may have been dropped from the cache."""
        assert self.compiled is not None, "only what went through compile is served"
        return self.compiled.artifact

    @property
    def scored(self) -> Scored:
        """What its quality is measured on: the compiled artifact where its engine can score it."""
        assert self.checkpoint is not None, "only a candidate with a checkpoint is scored"
        return self.compiled if self.compiled and self.compiled.score else self.checkpoint

    @property
    def reference(self) -> str:
        """What the engine is compared with, in words."""
        return reference_of(self.scored)

    @property
    def bits(self) -> Json | None:
        """What the gates go by: the checkpoint's scheme, or the bits that the compiler itself quantized to."""
        if self.candidate.scheme is None and self.compiled and self.compiled.bits:
            return {"method": "compiled", "bits": self.compiled.bits}
        return self.candidate.scheme

    @property
    def bytes(self) -> int:
        """Of what is served and shipped; 0 where it did not get so far."""
        made = self.compiled or self.checkpoint
        return made.bytes if made else 0

    @property
    def settings(self) -> Json:
        """The engine settings to ship: the tuned ones where there are any."""
        return dict(self.tuning.config) if self.tuning else {}

    def unconfirmed(self, confirmation: Confirmation) -> Evaluation:
        """What the confirmation found against it belongs to its evaluation."""
        assert self.evaluation is not None, "only evaluated candidates are confirmed"
        checks = (*self.evaluation.checks, *confirmation.checks)
        self.evaluation = replace(self.evaluation, status=confirmation.status, checks=checks)
        return self.evaluation

    def verdict(self) -> Evaluation:
        """Its evaluation; one that a backend failed for, or whose engine is absent, has that as its evaluation."""
        if self.failure is None and self.evaluation is not None:
            return self.evaluation
        known = self.evaluation
        digest = self.checkpoint.model_digest if self.checkpoint else ""
        return Evaluation(
            self.name,
            digest,
            "skipped" if self.absent else "failed",
            known.checks if known else (),
            known.texts if known else (),
            failure=self.absent or self.failure or "it was not evaluated",
        )


@dataclass
class Outcome:
    """Everything a build leaves."""

    facts: ModelFacts
    plan: Plan
    base: Checkpoint
    entries: list[Entry] = field(default_factory=list)
    selection: Selection | None = None
    confirmation: Confirmation | None = None
    bundle: Bundle | None = None
    challenges: list[Challenge] = field(default_factory=list)
    """One for each registry that was reached, in the order of the recipe."""
    published: list[Published] = field(default_factory=list)

    def named(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)

    def base_of(self, entry: Entry) -> Evaluation | None:
        """The evaluation of the base on the same target, once it is known; None for the base itself."""
        target = entry.candidate.target
        bases = (e for e in self.entries if e.is_base and e.candidate.target == target and e is not entry)
        base = next(bases, None)
        if base is None:
            return None
        base.judged.wait()
        return base.evaluation

    @property
    def packaged(self) -> Bundle:
        assert self.bundle is not None, "only what was packaged is published"
        return self.bundle

    def leading(self, selection: Selection, count: int) -> list[Entry]:
        """The first `count` candidates of a selection that could win: the winner, and who is judged as it is."""
        first = next((rank for rank in selection.ranks if rank.candidate == selection.winner), None)
        alike = [rank for rank in selection.ranks if first and rank.status == first.status and rank.objective]
        return [self.named(rank.candidate) for rank in alike[:count]]

    def selected(self, selection: Selection) -> Entry | None:
        """Take note of a selection; its winner."""
        self.selection = selection
        return self.winner

    @property
    def open_checks(self) -> tuple[Check, ...]:
        """What is not decided of the winner; it wins all the same only where the recipe is lenient."""
        winner = self.winner
        if winner is None or winner.evaluation is None:
            return ()
        found = (*winner.evaluation.checks, *(self.confirmation.checks if self.confirmation else ()))
        if winner.serving and winner.serving.status == "inconclusive":
            found = (*found, Check("load", "inconclusive", winner.serving.reason))
        return tuple(check for check in found if check.status == "inconclusive")

    @property
    def winner(self) -> Entry | None:
        return self.named(self.selection.winner) if self.selection and self.selection.winner else None
