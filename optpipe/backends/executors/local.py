"""Runs jobs on this machine: keys, kept results, cores and GPUs, engine sessions.

executor = LocalExecutor(store, toolchains, Site.here(hardware), logs, talk)
result = executor.run(job)
with executor.session(spec) as session:
    session.run(job)
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from optpipe.backends.executors.keys import Keys
from optpipe.backends.executors.parking import Parking
from optpipe.backends.executors.resources import Grant, Machine, Patience, Resources, held
from optpipe.backends.executors.session import EngineSession
from optpipe.backends.executors.site import Site
from optpipe.backends.executors.worker_run import Guard, Logs, Runner, Talk, last_lines
from optpipe.errors import BackendFailed, InputError, Interrupted
from optpipe.processes import end_leftovers
from optpipe.records import Artifact, EngineSpec, Job, JobResult, Json, Needs
from optpipe.rundir import JobStore, KeptFolder, digest_json, remove_tree
from optpipe.toolchains import Toolchain

MEMORY_SHARE = 0.95
"""A job that holds more of the machine's memory than this is ended before the kernel does it."""


@dataclass(frozen=True)
class Keyed:
    """A job with its toolchain and key."""

    job: Job
    toolchain: Toolchain
    parts: Json
    key: str


class LocalExecutor:
    """Runs each job once: the result is kept under the SHA-256 of what it depends on. Thread-safe."""

    def __init__(
        self, store: JobStore, toolchains: Callable[[str], Toolchain], site: Site, logs: Path, talk: Talk
    ) -> None:
        self.store = store
        self.toolchain = toolchains
        self.runner = Runner(site.source, int(MEMORY_SHARE * site.memory_bytes), Logs(logs), talk)
        self._keys = Keys(site.hardware, site.revision)
        total = Machine(site.cpus, site.memory_bytes, site.gpus)
        self.parking = Parking(site.memory_bytes)
        self._resources = Resources(total, site.lock, self.runner.stop, talk.say, self.parking.make_room)
        self._talk = talk
        self._flights = Flights(self.runner.stop)
        self._makers: dict[str, Job] = {}
        self._inside: dict[int, Grant] = {}
        self._ran: set[str] = set()
        self._kept: set[str] = set()
        end_leftovers(talk.say)

    @property
    def ran(self) -> int:
        """Jobs that ran in this build."""
        return len(self._ran)

    @property
    def kept(self) -> int:
        """Jobs whose result was there already."""
        return len(self._kept - self._ran)

    @property
    def used(self) -> frozenset[str]:
        """Keys of the jobs of this build, kept or run."""
        return frozenset(self._kept | self._ran)

    def stop(self) -> None:
        """End every running job and engine; who waits gets Interrupted."""
        self.runner.stop.set()

    def close(self) -> None:
        """End the engines that sessions have left; nothing runs after this."""
        self.parking.clear()

    # ------------------------------------------------------------ keys and kept results

    def keyed(self, job: Job, spec: EngineSpec | None = None) -> Keyed:
        """The job with all that its result depends on; with `spec`, in a session of that engine."""
        toolchain = self.toolchain(job.toolchain)
        engine = self._keys.engine(spec, self.toolchain(spec.toolchain)) if spec else None
        parts = self._keys.parts(job, toolchain, engine)
        return Keyed(job, toolchain, parts, digest_json(parts))

    def key(self, job: Job) -> str:
        """The key of a job outside of a session."""
        return self.keyed(job).key

    def identity(self, spec: EngineSpec) -> str:
        """Equal for sessions that can share a running engine: what serves, and where it finds the model."""
        served = self._keys.engine(spec, self.toolchain(spec.toolchain))
        return digest_json({**served, "argv": list(spec.argv), "served_name": spec.served_name})

    def code_key(self, spec: EngineSpec) -> str | None:
        """Of the code that an engine compiles when it starts; None where it compiles none."""
        return self._keys.code(spec, self.toolchain(spec.toolchain)) if spec.compiles is not None else None

    def hold_code(self, spec: EngineSpec) -> KeptFolder | None:
        """The folder of that code, for an engine that starts now. Raises EnvironmentMissing where others can write."""
        key = self.code_key(spec)
        return self.store.code.hold(key) if key else None

    def look_up(self, keyed: Keyed) -> JobResult | None:
        """The kept result. Raises BackendFailed for a definite failure that was kept."""
        key = keyed.key
        if kept := self.store.get(key):
            self._kept.add(key)
            return kept
        if failure := self.store.failure(key):
            self._kept.add(key)
            log, hint = failure["log"], failure["hint"]
            place = keyed.job.title
            raise BackendFailed(failure["message"], place=place, hint=hint, transient=False, log=log)
        return None

    def keep_failure(self, keyed: Keyed, error: BackendFailed) -> None:
        lines = last_lines(Path(error.log)) if error.log else []
        failure = {"message": error.message, "hint": error.hint, "log": error.log, "lines": lines}
        self.store.keep_failure(keyed.key, failure)

    # ------------------------------------------------------------ running

    def run(self, job: Job) -> JobResult:
        """The job's result, kept or made now. Raises BackendFailed, EnvironmentMissing, Interrupted."""
        keyed = self.keyed(job)
        self._makers[keyed.key] = job
        return self.look_up(keyed) or self._run(keyed)

    def _run(self, keyed: Keyed, *, again: bool = False) -> JobResult:
        grant = self._inside.get(threading.get_ident())
        keyed = replace(keyed, job=self.with_inputs(keyed.job))
        with self._flights.alone(keyed.key) if grant is None else nullcontext():
            if not again and (kept := self.look_up(keyed)):
                return kept
            with self._granted(keyed.job.needs, keyed.job.threads, grant) as given:
                return self.make(keyed, given, again=again)

    @contextmanager
    def _granted(self, needs: Needs, threads: int, grant: Grant | None) -> Iterator[Grant]:
        """What is needed; inside a session the session's own grant, or it would wait for itself."""
        if grant is not None:
            yield grant
            return
        with self._resources.take(needs, threads) as taken:
            yield taken

    @contextmanager
    def inside(self, needs: Needs) -> Iterator[Grant]:
        """Hold what a session needs; jobs that this thread runs meanwhile run inside of it."""
        me = threading.get_ident()
        outer = self._inside.get(me)
        with self._granted(needs, needs.cpus, outer) as grant:
            self._inside[me] = grant
            try:
                yield grant
            finally:
                del self._inside[me]
                if outer is not None:
                    self._inside[me] = outer

    @contextmanager
    def residence(self, needs: Needs) -> Iterator[Grant]:
        """What an engine holds as long as it lives: its GPUs, or on a CPU its memory."""
        if needs.gpus:
            with self.inside(needs) as grant:
                yield grant
        else:
            with self._resources.resident(needs.memory_bytes) as grant:
                yield grant

    @contextmanager
    def at_work(self, engine: Needs, resident: Grant, job: Needs | None = None) -> Iterator[Grant]:
        """What an engine takes while it starts or answers: on a CPU cores, or the machine for a measurement."""
        if engine.gpus:
            yield resident
            return
        alone = job is not None and job.exclusive
        with self._granted(Needs(cpus=engine.cpus, exclusive=alone), engine.cpus, None) as grant:
            yield grant

    def make(
        self, keyed: Keyed, grant: Grant, *, guard: Guard | None = None, again: bool = False
    ) -> JobResult:
        """Run the job unless another build just did, and keep its result or its definite failure.

        The lock on the key comes last, after cores and machine: whoever holds it is at work. `again`
        makes the files of a kept result that has lost them.
        """
        key, job = keyed.key, keyed.job
        patience = Patience(self.runner.stop, self._talk.say, f"{job.title}: waiting, another build runs it")
        with held(self.store.lock_file(key), patience) as lock:
            kept = self.look_up(keyed)
            if kept and (not again or self.store.has_files(key)):
                return kept
            end_leftovers(self._talk.say)
            work = self.store.work_folder(key)
            self._ran.add(key)
            given = replace(grant, locks=(*grant.locks, lock))
            try:
                ran = self.runner.run(job, keyed.toolchain, work, given, guard)
            except BackendFailed as error:
                if not error.transient:
                    self.keep_failure(keyed, error)
                remove_tree(work)
                raise
            figures: Json = {"seconds": ran.seconds, "peak": ran.peak_memory_bytes}
            return self.store.put(key, work, ran.record, parts=keyed.parts, **figures)

    @contextmanager
    def session(self, spec: EngineSpec, *, park: bool = False) -> Iterator[EngineSession]:
        """A session with the engine of `spec`, which starts when a job needs it and ends with the block.

        `park`: it stays, idle, for the next session of the same configuration, until `close` or until its
        memory is wanted.
        """
        session = EngineSession(self, spec, park=park)
        try:
            yield session
        finally:
            session.close()

    # ------------------------------------------------------------ inputs whose files were dropped

    def with_inputs(self, job: Job) -> Job:
        """The job with every input's files there, made again where `keep:` had dropped them."""
        for artifact in job.inputs.values():
            self.present(artifact)
        return job

    def present(self, artifact: Artifact) -> Artifact:
        """The artifact, its files made again if they were dropped. Raises InputError where nobody can."""
        if artifact.path.exists():
            return artifact
        maker = self._maker(artifact.path)
        if maker is None:
            raise InputError(
                f"{artifact.path} ({artifact.digest}) is not there, and no job of this build makes it",
                hint="its files were dropped from the cache: build the recipe that made it again",
            )
        self._talk.say(f"{maker.job.title}: its files were dropped from the cache, making them again")
        before = self.store.get(maker.key)
        made = self._run(maker, again=True)
        if not artifact.path.exists() or (before and before.files.digest != made.files.digest):
            raise BackendFailed(
                f"made again, its files are {made.files.digest}, not what they were",
                place=maker.job.title,
                hint="jobs that used the old files must run again: build once more",
            )
        return artifact

    def _maker(self, path: Path) -> Keyed | None:
        """The job of this build whose files hold the path; its key is in the path."""
        jobs = self.store.root / "jobs"
        if not path.is_relative_to(jobs):
            return None
        job = self._makers.get("sha256:" + path.relative_to(jobs).parts[0])
        return self.keyed(job) if job else None


class Flights:
    """One thread of this build at a time for each key; the others wait for its result with empty hands."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._locks: dict[str, threading.Lock] = {}
        self._table = threading.Lock()

    @contextmanager
    def alone(self, key: str) -> Iterator[None]:
        with self._table:
            lock = self._locks.setdefault(key, threading.Lock())
        while not lock.acquire(timeout=0.2):
            if self._stop.is_set():
                raise Interrupted("stopped while waiting for the same job")
        try:
            yield
        finally:
            lock.release()


__all__ = ["EngineSession", "Keyed", "LocalExecutor", "Site"]
