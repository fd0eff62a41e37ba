"""Worker body `task-scores`: lm-eval's own verdict on answers, item by item.

inputs: those of `task-requests` without the model, and `answers` (files of `tasks` or `tasks-reference`).
"""

from __future__ import annotations

from optpipe.backends.evaluators import harness
from optpipe.records import Json
from optpipe.worker import Work

REVISION = 2


def run(options: Json, work: Work) -> Json:
    """Options of `task-requests`, and `metrics` (task -> the one that says right or wrong).

    {"tasks": {name: {version, metric, n, correct, metrics, items}}, "lm_eval"}.
    """
    answers = harness.read_answers(work.inputs["answers"])
    with harness.offline():
        tasks = harness.load_tasks(options, work)
        done = harness.evaluated(tasks, harness.documents(tasks, options, work), harness.replayer(answers))
    return {"tasks": harness.scores(tasks, options, done), "lm_eval": harness.version()}
