"""What tasks ask of an engine is known before any document is read."""

from __future__ import annotations

from optpipe.model import tasks
from optpipe.model.task_work import OTHER, PER_DOCUMENT, WRITTEN_TWICE, TaskWork, by_transformers, work


def test_every_shipped_task_is_known() -> None:
    assert set(PER_DOCUMENT) == set(tasks.shipped())
    generated = {name for name in tasks.shipped() if tasks.read(name, None).generates}
    assert {name for name, (_, _, written) in PER_DOCUMENT.items() if written} == generated


def test_work_grows_with_documents_and_tasks() -> None:
    assert work({}) == TaskWork(0, 0, 0)
    assert work({"piqa": 50}) == TaskWork(100, 3250, 0)
    both = work({"piqa": 10, "own.yaml": 20})
    assert both == TaskWork(10 * 2 + 20 * OTHER[0], 10 * 65 + 20 * OTHER[1], 0)
    assert work({f"piqa@{'0' * 40}": 50}) == work({"piqa": 50})


def test_seconds_are_those_of_tokens_read_and_written() -> None:
    assert TaskWork(10, 100, 20).seconds(0.01, 0.1) == 1 + 2


def test_transformers_writes_only_a_few_texts() -> None:
    few, piqa = work({"gsm8k_cot": WRITTEN_TWICE}), work({"piqa": 100})
    found = by_transformers({"piqa": 100, "gsm8k_cot": 200})
    assert found == TaskWork(few.requests + piqa.requests, few.read + piqa.read, few.written)
