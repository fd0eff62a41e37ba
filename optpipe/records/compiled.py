"""What an engine builds before it serves, and what the result is bound to."""

from __future__ import annotations

import platform
from dataclasses import dataclass, field, replace
from pathlib import Path

from optpipe.records.facts import Hardware
from optpipe.records.jobs import Artifact
from optpipe.records.results import Checkpoint
from optpipe.records.serialize import Json


@dataclass(frozen=True)
class Compiling:
    """What a target wants built: the kind of job in `worker.BODIES` (None: nothing is built ahead), all its
    options, the largest sizes that the result serves, and in words what happens.

    `score`: the kind of job that scores the built artifact itself; None where transformers' scores of its
    checkpoint stand for it, and the engine is compared with them. `changes`: why the numbers are not the
    checkpoint's, where the target asks for other ones; `bits` of the weights where it quantizes them itself.
    `at_start`: the engine compiles by itself at its first start, and what it made is kept for the next.
    """

    how: str
    kind: str | None = None
    options: Json = field(default_factory=dict)
    limits: Json = field(default_factory=dict)
    score: str | None = None
    changes: str | None = None
    bits: float | None = None
    at_start: bool = False


@dataclass(frozen=True)
class Start:
    """One start of an engine that compiles by itself: how long it took, what it found, what it left."""

    ident: str
    seconds: float
    """From its start to its first answer."""
    found_bytes: int
    """Of code that was kept when it began; 0: all was compiled."""
    bytes: int
    """Of code that is kept since."""
    added: int = 0
    """Files that were not there before."""
    told: Json = field(default_factory=dict)
    """What its log says of compiling."""


@dataclass(frozen=True)
class KeptCode:
    """Code that an engine compiles at its first start and loads at the next, and the starts that were seen."""

    key: str
    """SHA-256 of what it depends on: engine and toolchain, model, options, machine, driver."""
    starts: tuple[Start, ...] = ()

    def seen(self, start: Start) -> KeptCode:
        """With one more start, once."""
        known = {one.ident for one in self.starts}
        return self if start.ident in known else replace(self, starts=(*self.starts, start))

    @property
    def cold(self) -> Start | None:
        """The first start that had to compile everything."""
        return next((one for one in self.starts if one.found_bytes == 0), None)

    @property
    def warm(self) -> tuple[Start, ...]:
        """Starts that compiled nothing."""
        return tuple(one for one in self.starts if one.found_bytes and not one.added)


@dataclass(frozen=True)
class Compiled:
    """What serves one candidate: a folder that was built for it, or its checkpoint as it is (`built` false)."""

    candidate: str
    engine: str
    engine_version: str
    built: bool
    how: str
    path: Path
    digest: str
    bytes: int
    toolchain: str
    """What compiled it, serves it and scores it."""
    made_from: str
    """The digest of its checkpoint."""
    bound_to: Json
    """What it runs on and nowhere else: engine, version, processor or GPU and driver; {} where nothing is built."""
    limits: Json = field(default_factory=dict)
    """The largest sizes that it serves, e.g. max_model_len."""
    options: Json = field(default_factory=dict)
    seconds: float = 0.0
    peak_memory_bytes: int = 0
    job: str | None = None
    score: str | None = None
    """The kind of job that scores it, where that is not done on its checkpoint."""
    changes: str | None = None
    """Why its numbers are not its checkpoint's, where the target asks for that."""
    bits: float | None = None
    """Of its weights, where the compiler itself quantized them."""
    details: Json = field(default_factory=dict)
    """What the compiler says of its work, e.g. the kinds of nodes in a graph."""
    code: KeptCode | None = None
    """What the engine itself compiles when it starts, where nothing is built ahead."""

    @property
    def any(self) -> bool:
        """Whether anything is compiled: ahead, or by the engine when it starts."""
        return self.built or self.code is not None

    @property
    def name(self) -> str:
        return self.candidate

    @property
    def model_digest(self) -> str:
        """Of what is served."""
        return self.digest

    @property
    def artifact(self) -> Artifact:
        """What the engine is given."""
        return Artifact(self.path, self.digest)


Scored = Checkpoint | Compiled
"""What quality is measured on: a checkpoint by transformers, a compiled artifact by its own engine's library."""


def bound_to(engine: str, version: str, hardware: Hardware) -> Json:
    """What an artifact built here is bound to. On a CPU the kind of processor: kernels are chosen when it runs."""
    bound: Json = {"engine": engine, "version": version}
    if hardware.gpus:
        bound |= {"gpu": hardware.gpu, "compute_capability": hardware.compute_capability, "driver": hardware.driver}
    else:
        bound["processor"] = platform.machine()
    return bound


def foreign(bound: Json, here: Json) -> str | None:
    """Why an artifact that is bound so cannot be used where `here` is what one built now would be bound to."""
    apart = [f"{name} {bound[name]}, here {here.get(name)}" for name in sorted(bound) if bound[name] != here.get(name)]
    return f"it was compiled for {'; '.join(apart)}" if apart else None
