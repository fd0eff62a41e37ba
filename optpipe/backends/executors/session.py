"""An engine session: one engine for the pending jobs of one configuration, started when one needs it.

On a CPU an engine is resident: starting and questioning it take cores like any job, side by side with the
others; only a job that measures (`needs.exclusive`) has the machine alone. On GPUs a session holds its own.
A session that is told to park leaves its engine running for the next session of the same configuration.
"""

from __future__ import annotations

import contextlib
import re
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from optpipe.backends.executors.engine_run import Engine
from optpipe.backends.executors.parking import Running
from optpipe.errors import BackendFailed
from optpipe.records import EngineSpec, Job, JobResult, Start, from_json, to_json
from optpipe.rundir import JobStore, KeptFolder

if TYPE_CHECKING:
    from optpipe.backends.executors.local import Keyed, LocalExecutor


ENGINE, START = "engine", "start"
"""What is kept beside a job's record of the engine that it ran against, and of how that one compiled at its start."""


def end(store: JobStore, engine: Engine, served: list[str]) -> None:
    """End an engine; what it held at most goes beside the record of each job that ran against it."""
    ended = engine.close()
    figures = {"peak_memory_bytes": ended.peak_memory_bytes, "seconds": ended.seconds, "ready_s": engine.ready_s}
    for key in served:
        store.keep_beside(key, ENGINE, figures)


def spoiled(error: BackendFailed, spec: EngineSpec) -> bool:
    """Whether the log of an engine that did not start has a line that speaks of damaged code."""
    log = Path(error.log) if error.log else None
    text = log.read_text(encoding="utf-8", errors="replace") if log and log.exists() else ""
    return any(re.search(pattern, text) for pattern in spec.spoiled)


class EngineSession:
    """Runs jobs against one engine, one at a time; each is keyed and kept by itself."""

    def __init__(self, executor: LocalExecutor, spec: EngineSpec, *, park: bool = False) -> None:
        self.spec = spec
        self._executor = executor
        self._park = park
        self._turn = threading.Lock()
        self._running: Running | None = None
        self._broken: BackendFailed | None = None
        self._starts: dict[str, Start] = {}
        self._code: KeptFolder | None = None

    @property
    def started(self) -> bool:
        """Whether an engine is there, started here or found parked."""
        return self._running is not None

    @property
    def ready_s(self) -> float | None:
        """Seconds from start to ready; None for an engine that was not needed."""
        return self._running.engine.ready_s if self._running else None

    @property
    def url(self) -> str | None:
        """Where the engine answers; None for one that was not needed."""
        return self._running.engine.url if self._running else None

    @property
    def starts(self) -> tuple[Start, ...]:
        """How the engines started that its jobs ran against, kept ones too, where they compile then."""
        return tuple(self._starts.values())

    def key(self, job: Job) -> str:
        return self._executor.keyed(job, self.spec).key

    def run(self, job: Job) -> JobResult:
        """The job's result, kept or made now against the engine. Raises BackendFailed, Interrupted.

        Once the engine is lost, every further job fails at once: this configuration is not feasible.
        """
        with self._turn:
            keyed = self._executor.keyed(job, self.spec)
            if kept := self._executor.look_up(keyed):
                self._note(keyed.key)
                return kept
            if self._broken:
                raise self._broken
            keyed = replace(keyed, job=self._executor.with_inputs(job))
            if self._running is None:
                self._running = self._executor.parking.take(self._identity) or self._start(keyed)
            return self._guarded(keyed, self._running)

    @property
    def _identity(self) -> str:
        return self._executor.identity(self.spec)

    def _start(self, keyed: Keyed) -> Running:
        """A new engine, ready. One that does not get ready is ended, and every further job fails with its reason."""
        self._executor.present(self.spec.model)
        try:
            return self._started_or_spoiled()
        except BackendFailed as error:
            self._broken = error
            if not error.transient:
                self._executor.keep_failure(keyed, error)
            raise

    def _started_or_spoiled(self) -> Running:
        """Once more, where code that was kept may be why it did not start: the next start finds none of it."""
        try:
            return self._started()
        except BackendFailed as error:
            if not (error.transient and self._code and self._code.suspect and spoiled(error, self.spec)):
                raise
            self._executor.runner.talk.say(f"{self.spec.title}: starting again without the code that was kept")
            return self._started()

    def _started(self) -> Running:
        executor, spec = self._executor, self.spec
        with contextlib.ExitStack() as stack:
            grant = stack.enter_context(executor.residence(spec.needs))
            with executor.at_work(spec.needs, grant):
                code = executor.hold_code(spec)
                self._code = code
                if code:
                    stack.callback(code.close)
                engine = Engine(spec, executor.toolchain(spec.toolchain), executor.runner, grant, code)
                served: list[str] = []
                stack.callback(end, executor.store, engine, served)
                engine.wait_ready()
            memory, start = spec.needs.memory_bytes, engine.started()
            return Running(self._identity, engine, grant, stack.pop_all(), memory, served, start)

    def _guarded(self, keyed: Keyed, running: Running) -> JobResult:
        """Run the job; where the engine died under it, that is what is said."""
        engine = running.engine
        place = {"url": engine.url, "model": self.spec.served_name, "engine": self.spec.engine}
        keyed = replace(keyed, job=replace(keyed.job, context={**keyed.job.context, **place}))
        try:
            with self._executor.at_work(self.spec.needs, running.grant, keyed.job.needs) as given:
                done = self._executor.make(keyed, given, guard=engine)
            running.served.append(keyed.key)
            if running.start and not done.kept:
                self._executor.store.keep_beside(keyed.key, START, to_json(running.start))
            self._note(keyed.key)
            return done
        except BackendFailed as error:
            if error.transient and (reason := engine.trouble_soon()):
                self._broken = engine.failed(reason)
                raise self._broken from None
            raise

    def _note(self, key: str) -> None:
        """How the engine of a job that is done had started."""
        if self.spec.compiles is not None and (seen := self._executor.store.beside(key, START)):
            start = from_json(Start, seen)
            self._starts[start.ident] = start

    def close(self) -> None:
        """End the engine and let go of the machine, or leave it to the next session; a lost one is ended."""
        running, self._running = self._running, None
        if running is None:
            return
        if self._park and self._broken is None:
            self._executor.parking.leave(running)
        else:
            running.end()
