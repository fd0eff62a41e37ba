"""One worker process from `job.json` to its record: environment, log, progress, and failures in words."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from optpipe.backends.executors.resources import Grant, slug
from optpipe.errors import BackendFailed, Interrupted
from optpipe.records import Job, Json
from optpipe.rundir import read_json, write_json
from optpipe.supervised import Command, Ended, Supervised
from optpipe.toolchains import Toolchain

POLL_S = 0.1
QUOTED_LINES = 5
WHOSE = re.compile(r"^\([\w:. ]+ pid=\d+\) [A-Z]+ \S+ \S+ \[[^]]*\] ?")
"""What vLLM writes before each line of a process other than the first."""
ERROR = re.compile(r"\w*(?:Error|Exception): .")
"""What a traceback ends with. The first one is the cause; what follows tells of others that lost it."""
HUB_TOKENS = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
SECRET_WORDS = frozenset({"TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIALS", "APIKEY"})
SECRET_ENDS = ("_API_KEY", "_ACCESS_KEY", "_PRIVATE_KEY", "_KEY_ID", "_PAT")
DROPPED = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "PYTHONSTARTUP", "PYTHONINSPECT", "CONDA_PREFIX")


class Guard(Protocol):
    """What a job depends on while it runs: an engine."""

    def trouble(self) -> str | None:
        """Why to give up now, or None; asked often."""

    def verdict(self) -> str | None:
        """Why what the job measured is worth nothing, or None; asked once, at its end."""


class Talk(Protocol):
    """Who is told what happens."""

    def say(self, text: str) -> None: ...

    def start(self, title: str) -> None: ...

    def update(self, title: str, done: float, total: float, what: str) -> None: ...

    def done(self, title: str, well: bool) -> None: ...


@dataclass(frozen=True)
class Ran:
    """What a worker left beside its files."""

    record: Json
    seconds: float
    peak_memory_bytes: int


class Logs:
    """One log file for each process, numbered in the order of their start."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._lock = threading.Lock()

    def new(self, title: str, ending: str = "log") -> Path:
        with self._lock:
            self._count += 1
            count = self._count
        self._folder.mkdir(parents=True, exist_ok=True)
        return self._folder / f"{count:03d}-{slug(title)}.{ending}"


# ---------------------------------------------------------------- environment


def is_secret(name: str) -> bool:
    """HF_TOKEN and AWS_SECRET_ACCESS_KEY are, TOKENIZERS_PARALLELISM is not."""
    return bool(SECRET_WORDS & set(name.upper().split("_"))) or name.upper().endswith(SECRET_ENDS)


def clean_environment() -> dict[str, str]:
    """The caller's variables without secrets and without what bends another Python."""
    kept = {k: v for k, v in os.environ.items() if k not in DROPPED and not is_secret(k)}
    return {k: v for k, v in kept.items() if k != "CUDA_VISIBLE_DEVICES"}


def threads_environment(threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        **dict.fromkeys(names, str(threads)),
        "TOKENIZERS_PARALLELISM": "true" if threads > 1 else "false",
    }


def job_environment(job: Job, source: Path, grant: Grant) -> dict[str, str]:
    """What a job's process gets beside its toolchain's own variables."""
    own = {**threads_environment(job.threads), "PYTHONPATH": str(source), "PYTHONUNBUFFERED": "1"}
    return {**own, "CUDA_VISIBLE_DEVICES": ",".join(grant.gpus)}


def tokens_for(job: Job) -> dict[str, str]:
    asked = job.context.get("needs_token")
    return {name: os.environ[name] for name in HUB_TOKENS if asked and name in os.environ}


# ---------------------------------------------------------------- the run


class Runner:
    """Runs workers; `stop` calls all of them off."""

    def __init__(self, source: Callable[[], Path], memory_bytes: int, logs: Logs, talk: Talk) -> None:
        self.source = source
        self.memory_bytes = memory_bytes
        self.logs = logs
        self.talk = talk
        self.stop = threading.Event()

    def run(self, job: Job, toolchain: Toolchain, work: Path, grant: Grant, guard: Guard | None = None) -> Ran:
        """Run `job` in the folder `work`. Raises BackendFailed, Interrupted."""
        write_json(work / "job.json", job_file(job))
        log = self.logs.new(job.title)
        process = Supervised(self._command(job, toolchain, work, grant, log), grant.locks)
        self.talk.start(job.title)
        well = False
        try:
            ran = finished(job, work, self._watched(process, job, guard, log), log)
            if guard and (reason := guard.verdict()):
                raise BackendFailed(reason, place=job.title, log=str(log))
            well = True
        finally:
            self.talk.done(job.title, well)
        return ran

    def _watched(self, process: Supervised, job: Job, guard: Guard | None, log: Path) -> Ended:
        """How the process ended; it is ended here where the build stops or the engine is lost."""
        ended: Ended | None = None
        progress = Progress(process.command.cwd / "progress.jsonl")
        try:
            while (ended := process.wait(POLL_S)) is None:
                for done, total, what in progress.news():
                    self.talk.update(job.title, done, total, what)
                if self.stop.is_set():
                    raise Interrupted(f"{job.title}: stopped")
                if guard and (reason := guard.trouble()):
                    ended = self._last_word(process)
                    raise BackendFailed(reason, place=job.title, log=str(log))
            return ended
        finally:
            if ended is None:
                process.stop()

    def _last_word(self, process: Supervised) -> Ended:
        """The engine is gone: the job's client sees it as well, so it may end by itself."""
        return process.wait(2.0) or process.stop()

    def _command(self, job: Job, toolchain: Toolchain, work: Path, grant: Grant, log: Path) -> Command:
        own = job_environment(job, self.source(), grant)
        env = {**toolchain.environment(clean_environment()), **own, **tokens_for(job)}
        argv = toolchain.argv("-m", "optpipe.worker", str(work), env=own)
        limit = job.needs.memory_limit_bytes or self.memory_bytes
        return Command(job.title, argv, env, work, log, work / "status.json", job.needs.timeout_s, limit)


def job_file(job: Job) -> Json:
    inputs = {name: str(artifact.path) for name, artifact in job.inputs.items()}
    facts = {"kind": job.kind, "options": job.options, "inputs": inputs, "context": job.context}
    return {**facts, "threads": job.threads, "seed": job.seed}


class Progress:
    """What is new in a job's progress.jsonl; half a line waits for its rest."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def news(self) -> Iterator[tuple[float, float, str]]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        for line in whole.splitlines()[-1:]:
            said = json.loads(line)
            yield float(said["done"]), float(said["total"]), str(said["what"])


def finished(job: Job, work: Path, ended: Ended, log: Path) -> Ran:
    """The record, or the failure in words.

    A record is written whole and last, so it counts even where the process then died on its way out.
    """
    if (work / "record.json").exists() and ended.why in ("exited", "signalled"):
        return Ran(read_json(work / "record.json"), ended.seconds, ended.peak_memory_bytes)
    hint = f"its log is {log}"
    if (work / "failure.json").exists() and ended.why == "exited":
        said = read_json(work / "failure.json")
        transient = bool(said["transient"])
        hint = said["hint"] or hint
        raise BackendFailed(said["message"], place=job.title, hint=hint, transient=transient, log=str(log))
    if ended.why == "memory":
        hint = "give it more memory, or make it need less (fewer samples, shorter sequences); " + hint
    raise BackendFailed(quoted(ended.reason(), log), place=job.title, hint=hint, log=str(log))


def quoted(reason: str, log: Path) -> str:
    """A reason with the log's last lines under it."""
    lines = last_lines(log)
    return reason + "".join(f"\n  | {line}" for line in lines)


def last_lines(log: Path, count: int = QUOTED_LINES) -> list[str]:
    """The last lines of a log without the frames of Python tracebacks, behind the first error; long ones are cut."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65536))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines: list[str] = []
    inside = False
    for line in text.replace("\r", "\n").splitlines():
        bare = WHOSE.sub("", line)
        if "Traceback (most recent call last)" in bare:
            inside = True
        elif bare.strip() and not (inside and bare.startswith(" ")):
            inside = False
            lines.append(bare.rstrip()[:240])
    end = max(0, len(lines) - count)
    first = next((at for at, line in enumerate(lines[:end]) if ERROR.match(line)), end)
    return [lines[first], *lines[end + 1 :]] if lines else []
