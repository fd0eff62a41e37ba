"""What the executor runs: jobs, engine sessions, and what they leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optpipe.records.serialize import Json


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
class Tool:
    """A benchmark of an engine's own: what it is called, and the kind of job in `worker.BODIES` that runs it."""

    name: str
    job: str


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
    `config_text` is what the file `{config}` holds. A variable that is `{source}` gets the folder that workers
    import optpipe from. A log line that matches `fatal` means that the engine
    will never serve; one that matches `definite`, that it never will with this configuration; `workers`
    matches the titles of processes without which it cannot go on. `needs` is what the engine holds and works
    with; whether the machine must be still is what each job says.

    `compiles`: what the code depends on that the engine compiles when it starts, beside model, toolchain and
    machine; None: it compiles none. A variable that is `{compiled}` gets the folder where that code is kept.
    `tells`: what the log says of it, by patterns with one group; `spoiled`: a line of it after which an engine that
    did not start is started again without the code that was kept.
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
    needs: Needs = Needs()
    ready_s: float = 600.0
    fatal: tuple[str, ...] = ()
    definite: tuple[str, ...] = ()
    workers: str = ""
    compiles: Json | None = None
    tells: Mapping[str, str] = field(default_factory=dict)
    spoiled: tuple[str, ...] = ()
