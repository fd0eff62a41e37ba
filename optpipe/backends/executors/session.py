"""An engine session: one engine for the pending jobs of one configuration, started when one needs it.

On a CPU an engine is resident: starting and questioning it take cores like any job, side by side with the
others; only a job that measures (`needs.exclusive`) has the machine alone. On GPUs a session holds its own.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from optpipe.backends.executors.engine_run import Engine
from optpipe.backends.executors.resources import Grant
from optpipe.errors import BackendFailed
from optpipe.records import EngineSpec, Job, JobResult

if TYPE_CHECKING:
    from optpipe.backends.executors.local import Keyed, LocalExecutor


class EngineSession:
    """Runs jobs against one engine, one at a time; each is keyed and kept by itself."""

    def __init__(self, executor: LocalExecutor, spec: EngineSpec) -> None:
        self.spec = spec
        self._executor = executor
        self._turn = threading.Lock()
        self._open = contextlib.ExitStack()
        self._engine: Engine | None = None
        self._grant: Grant | None = None
        self._broken: BackendFailed | None = None
        self.peak_memory_bytes = 0
        """The most memory that the engine held; known once the session is closed."""

    @property
    def started(self) -> bool:
        return self._engine is not None

    @property
    def ready_s(self) -> float | None:
        """Seconds from start to ready; None for an engine that was not needed."""
        return self._engine.ready_s if self._engine else None

    def key(self, job: Job) -> str:
        return self._executor.keyed(job, self.spec).key

    def run(self, job: Job) -> JobResult:
        """The job's result, kept or made now against the engine. Raises BackendFailed, Interrupted.

        Once the engine is lost, every further job fails at once: this configuration is not feasible.
        """
        with self._turn:
            keyed = self._executor.keyed(job, self.spec)
            if kept := self._executor.look_up(keyed):
                return kept
            if self._broken:
                raise self._broken
            keyed = replace(keyed, job=self._executor.with_inputs(job))
            engine = self._started_for(keyed)
            assert self._grant is not None, "a started engine has a grant"
            return self._guarded(keyed, engine, self._grant)

    def _started_for(self, keyed: Keyed) -> Engine:
        if self._engine:
            return self._engine
        executor = self._executor
        executor.present(self.spec.model)
        toolchain = executor.toolchain(self.spec.toolchain)
        self._grant = self._open.enter_context(executor.residence(self.spec.needs))
        try:
            with executor.at_work(self.spec.needs, self._grant):
                engine = Engine(self.spec, toolchain, executor.runner, self._grant)
                self._engine = engine
                self._open.callback(self._close_engine)
                engine.wait_ready()
        except BackendFailed as error:
            self._broken = error
            if not error.transient:
                executor.keep_failure(keyed, error)
            raise
        return engine

    def _guarded(self, keyed: Keyed, engine: Engine, grant: Grant) -> JobResult:
        """Run the job; where the engine died under it, that is what is said."""
        place = {"url": engine.url, "model": self.spec.served_name}
        keyed = replace(keyed, job=replace(keyed.job, context={**keyed.job.context, **place}))
        try:
            with self._executor.at_work(self.spec.needs, grant, keyed.job.needs) as given:
                return self._executor.make(keyed, given, guard=engine)
        except BackendFailed as error:
            if error.transient and (reason := engine.trouble_soon()):
                self._broken = engine.failed(reason)
                raise self._broken from None
            raise

    def _close_engine(self) -> None:
        if self._engine:
            self.peak_memory_bytes = self._engine.close().peak_memory_bytes

    def close(self) -> None:
        """End the engine and let go of the machine; returns when nothing is left of it."""
        self._open.close()
