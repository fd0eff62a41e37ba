"""What the stages share: the run's folder, the executor, this machine, and a way to talk."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from optpipe.backends.executors.local import LocalExecutor
from optpipe.console import Talk
from optpipe.errors import BackendFailed
from optpipe.records import Hardware
from optpipe.rundir import RunFolder

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Run:
    """One build: where it writes, what runs its jobs, what it runs on."""

    folder: RunFolder
    executor: LocalExecutor
    hardware: Hardware
    talk: Talk
    recipe_folder: Path
    failures: dict[str, str] = field(default_factory=dict)
    """Candidates that a backend failed for, with the reason."""

    def side_by_side(self, items: Iterable[Item], work: Callable[[Item], Result]) -> list[Result]:
        """`work` on each item at once, results in order; the executor limits what really runs.

        The first error stops what has not begun and is raised when what runs has ended.
        """
        todo = list(items)
        with ThreadPoolExecutor(max_workers=max(1, len(todo))) as pool:
            futures = [pool.submit(work, item) for item in todo]
            try:
                return [future.result() for future in futures]
            except BaseException:
                for future in futures:
                    future.cancel()
                self.executor.stop()
                raise

    def attempt(self, candidate: str, work: Callable[[], Result]) -> Result | None:
        """`work()`, or None where a backend failed for this candidate: the others go on."""
        try:
            return work()
        except BackendFailed as error:
            self.failures[candidate] = str(error)
            self.folder.event("candidate-failed", candidate=candidate, reason=str(error))
            self.talk.say(f"{candidate}: failed: {error}")
            return None
