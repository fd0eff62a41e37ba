"""How much the tasks of a recipe ask of an engine, before any document is read: for a plan's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

PER_DOCUMENT = {
    "arc_challenge": (4.0, 146, 0),
    "arc_easy": (4.0, 131, 0),
    "boolq": (2.0, 266, 0),
    "gsm8k_cot": (1.0, 802, 87),
    "hellaswag": (4.0, 310, 0),
    "lambada_openai": (1.0, 76, 0),
    "mmlu": (4.0, 507, 0),
    "openbookqa": (4.0, 59, 0),
    "piqa": (2.0, 65, 0),
    "sciq": (4.0, 433, 0),
    "winogrande": (2.0, 45, 0),
}
"""Requests, tokens read and tokens written: means over 50 documents with SmolLM2's tokenizer; written by
SmolLM2-135M, for 16."""
WRITTEN_TWICE = 8
"""Documents of a task with generated text that transformers is asked too: it writes them one by one."""
OTHER = (4.0, 300, 0)
"""Of a task that is not known here."""


@dataclass(frozen=True)
class TaskWork:
    """What one candidate is asked."""

    requests: float
    read: float
    """Tokens of all prompts; none is read from a cache."""
    written: float
    """Tokens that are generated."""

    def seconds(self, per_read: float, per_written: float) -> float:
        """At so many seconds for each token that is read and each that is written."""
        return per_read * self.read + per_written * self.written


def called(name: str) -> str:
    """The task's own name, of one as a recipe names it: `NAME@<commit>`; a file is taken to be called as it does."""
    return Path(name.partition("@")[0]).stem


def work(documents: Mapping[str, int]) -> TaskWork:
    """Of tasks as a recipe names them (also NAME@<commit>, and files of one's own): so many documents of each."""
    known = [(count, PER_DOCUMENT.get(name.partition("@")[0], OTHER)) for name, count in documents.items()]
    return TaskWork(*(sum(count * each[column] for count, each in known) for column in range(3)))


def by_transformers(documents: Mapping[str, int]) -> TaskWork:
    """The same of transformers, which is asked fewer documents of tasks with generated text."""
    written = {name: min(count, WRITTEN_TWICE) for name, count in documents.items() if work({name: 1}).written}
    read = work({name: count for name, count in documents.items() if name not in written})
    few = work(written)
    return TaskWork(read.requests + few.requests, read.read + few.read, few.written)
