"""One engine process: started, ready, watched while jobs use it, closed with nothing left."""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from optpipe.backends.executors.resources import Grant
from optpipe.backends.executors.worker_run import WHOSE, Runner, clean_environment, quoted
from optpipe.errors import BackendFailed, EnvironmentMissing, Interrupted
from optpipe.processes import Ident, descendants
from optpipe.records import EngineSpec, Json, Start
from optpipe.rundir import PLACE, KeptFolder
from optpipe.supervised import Command, Ended, Supervised
from optpipe.toolchains import Toolchain

HOST = "127.0.0.1"
POLL_S = 0.25
CHECK_S = 1.0
LAST_WORDS_S = 3.0
GRACE_S = 15.0
LONGEST_S = 30 * 86400.0
PORT_BACK_S = 15.0
MEMORY_BACK_S = 30.0
MEMORY_SLACK = 512 << 20
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


@dataclass
class Watched:
    """What is seen of a running engine: new lines of its log, and the processes that it cannot do without."""

    spec: EngineSpec
    log: Path
    at: int = 0
    workers: dict[Ident, str] = field(default_factory=dict)

    def fatal_line(self) -> str | None:
        """The first new line of the log that says that the engine is lost."""
        if not self.log.exists():
            return None
        with self.log.open("rb") as file:
            file.seek(self.at)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self.at += len(whole)
        lines = whole.decode(errors="replace").splitlines()
        return next((line for line in lines if any(re.search(p, line) for p in self.spec.fatal)), None)

    def lost_worker(self, supervisor: int) -> str | None:
        """The title of a worker process that was there and is gone."""
        if not self.spec.workers:
            return None
        alive = descendants(supervisor)
        for ident in alive:
            if ident not in self.workers and re.search(self.spec.workers, title := title_of(ident)):
                self.workers[ident] = title
        gone = (ident for ident in self.workers if ident not in alive and not ident.alive())  # lists race with forks
        return next((self.workers[ident] for ident in gone), None)


def title_of(ident: Ident) -> str:
    """What a process calls itself; of a program's path only its name, for people."""
    try:
        program, *rest = psutil.Process(ident.pid).cmdline() or [""]
        return " ".join([program.rpartition("/")[2], *rest])
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return ""


class Engine:
    """One engine under its supervisor: started, ready, watched, closed."""

    def __init__(
        self, spec: EngineSpec, toolchain: Toolchain, runner: Runner, grant: Grant, code: KeptFolder | None = None
    ) -> None:
        self.spec = spec
        self.log = runner.logs.new(f"{spec.title}-engine")
        self.port = free_port()
        self.ready_s = 0.0
        self._runner = runner
        self._grant = grant
        self._code = code
        self._memory = free_memory(grant.gpus)
        self._checked = 0.0
        self._trouble: str | None = None
        self._watched = Watched(spec, self.log)
        locks = (*grant.locks, code.lock) if code else grant.locks
        self._process = Supervised(self._command(toolchain), locks)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def _command(self, toolchain: Toolchain) -> Command:
        file = self.log.with_suffix(".yaml")
        file.write_text(self.spec.config_text, encoding="utf-8")
        places = {"{config}": str(file), "{host}": HOST, "{port}": str(self.port)}
        devices = {"CUDA_VISIBLE_DEVICES": ",".join(self._grant.gpus)}
        places["{source}"] = str(self._runner.source())
        if self._code:
            places[PLACE] = str(self._code.path)
        given = {name: places.get(value, value) for name, value in self.spec.environment.items()}
        own = {**given, **devices, "PYTHONUNBUFFERED": "1"}
        argv = toolchain.argv(*(places.get(word, word) for word in self.spec.argv), env=own)
        env = {**toolchain.environment(clean_environment()), **own}
        limit = self.spec.needs.memory_limit_bytes or self._runner.memory_bytes
        folder, status = self.log.parent, self.log.with_suffix(".json")
        return Command(self.spec.title, argv, env, folder, self.log, status, LONGEST_S, limit, GRACE_S)

    def wait_ready(self) -> None:
        """Return once the engine answers. Raises BackendFailed, Interrupted; the caller closes."""
        began = time.monotonic()
        title = f"{self.spec.title}: starting {self.spec.engine}"
        self._runner.talk.start(title)
        try:
            while not (self._answers("/health") and self._serves()):
                if reason := self.trouble():
                    raise self._failed(f"{self.spec.engine} did not start: {reason}")
                if self._runner.stop.is_set():
                    raise Interrupted(f"{self.spec.title}: stopped while starting")
                if time.monotonic() - began > self.spec.ready_s:
                    raise self._failed(f"{self.spec.engine} was not ready after {self.spec.ready_s:g} s")
                time.sleep(POLL_S)
        finally:
            self._runner.talk.done(title, False)
        self.ready_s = time.monotonic() - began
        self._runner.talk.say(f"{self.spec.title}: ready after {self.ready_s:.0f} s")

    def started(self) -> Start | None:
        """How it started, where it compiles then; called once it is ready."""
        if self._code is None:
            return None
        log = self.log.read_text(encoding="utf-8", errors="replace")
        return self._code.started(self.ready_s, told(log, self.spec.tells))

    def trouble(self) -> str | None:
        """Why the engine is lost, or None; looks at most once a second, and remembers."""
        if self._trouble is None and time.monotonic() - self._checked >= CHECK_S:
            self._checked = time.monotonic()
            self._trouble = self._look()
        return self._trouble

    def _look(self) -> str | None:
        if ended := self._process.wait(0):
            return ended.reason()
        if line := self._watched.fatal_line():
            return f"its log says {line.strip()[:200]!r}"
        if title := self._watched.lost_worker(self._process.pid):
            return f"its worker process ended ({title[:80]})"
        return None

    def trouble_soon(self) -> str | None:
        """Like `trouble`, after a job that failed: the engine gets a moment to fall over."""
        end = time.monotonic() + LAST_WORDS_S
        while not (reason := self.trouble()) and time.monotonic() < end:
            time.sleep(POLL_S)
        return reason

    def verdict(self) -> str | None:
        """At a job's end: why its figures are those of a dying engine, or None."""
        if self._answers("/health", 10.0):
            return self._trouble
        return self.trouble_soon() or "it no longer answers /health"

    def failed(self, reason: str) -> BackendFailed:
        return self._failed(f"{self.spec.engine} died: {reason}")

    def _failed(self, message: str) -> BackendFailed:
        """The failure with the log's tail; definite only where the log says that it always will."""
        self._let_it_speak()
        text = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        definite = next((m for p in self.spec.definite if (m := re.search(f".*(?:{p}).*", text))), None)
        line = f"{message}\n  | {WHOSE.sub('', definite[0]).strip()[:240]}" if definite else quoted(message, self.log)
        hint, log = f"its log is {self.log}", str(self.log)
        return BackendFailed(line, place=self.spec.title, hint=hint, transient=not definite, log=log)

    def _let_it_speak(self) -> None:
        """A log line that says that all is lost comes before those that say why."""
        self._process.wait(LAST_WORDS_S)

    def _answers(self, path: str, timeout_s: float = 2.0) -> bool:
        return ask(self.port, path, timeout_s)[0] == 200

    def _serves(self) -> bool:
        """Whether it is ours: another program may have taken the port."""
        status, body = ask(self.port, "/v1/models")
        if status != 200:
            return False
        try:
            return self.spec.served_name in [model["id"] for model in json.loads(body)["data"]]
        except (ValueError, KeyError, TypeError):
            return False

    def close(self) -> Ended:
        """SIGTERM, grace, SIGKILL to all of it; returns when port and memory are back."""
        ended = self._process.stop()
        patience = time.monotonic() + PORT_BACK_S
        while not can_bind(self.port):
            if time.monotonic() > patience:
                self._runner.talk.say(f"{self.spec.title}: port {self.port} is still taken")
                break
            time.sleep(POLL_S)
        patience = time.monotonic() + MEMORY_BACK_S
        while self._grant.gpus and free_memory(self._grant.gpus) < self._memory - MEMORY_SLACK:
            if time.monotonic() > patience:
                self._runner.talk.say(f"{self.spec.title}: the GPU's memory has not come back")
                break
            time.sleep(POLL_S)
        return ended


def told(log: str, patterns: Mapping[str, str]) -> Json:
    """What a log says: the last match of each pattern, what it says nothing of left out."""
    found = {name: re.findall(pattern, log) for name, pattern in patterns.items()}
    return {name: matches[-1] for name, matches in found.items() if matches}


# ---------------------------------------------------------------- ports, memory, HTTP


def free_port() -> int:
    """A port that nothing listens on, outside of what the kernel gives to outgoing connections."""
    try:
        low = int(EPHEMERAL.read_text().split()[0])
    except FileNotFoundError:
        low = 32768
    for port in random.sample(range(max(1024, low // 2), low), 200):
        if can_bind(port):
            return port
    raise EnvironmentMissing(f"no port can be bound on {HOST}", hint="see `ss -ltn` for who listens")


def can_bind(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def free_memory(gpus: tuple[str, ...]) -> int:
    """Free bytes of these GPUs together; 0 where there are none or none can be asked."""
    if not gpus:
        return 0
    query = ["nvidia-smi", f"--id={','.join(gpus)}", "--query-gpu=memory.free", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
        return sum(int(line.split()[0]) << 20 for line in text.splitlines())
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        return 0


def ask(port: int, path: str, timeout_s: float = 2.0) -> tuple[int, bytes]:
    """Status and body of one GET; (0, b"") without an answer. No proxy is asked."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()
