"""`task-scores`: right is the likelier of two choices where it is the first, and a text of an even sum of bytes."""

from __future__ import annotations

from optpipe.backends.evaluators.harness import read_answers
from optpipe.backends.evaluators.tokens import order
from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes import orders

REVISION = 1


def run(options: Json, work: Work) -> Json:
    orders.obey("task-scores", " ".join(options["tasks"]), work.folder.name.split(".")[0])
    answers = iter(read_answers(work.inputs["answers"]))
    tasks = {}
    for name in options["tasks"]:
        items = []
        for number in sorted(order(100, work.seed)[: options["documents"][name]]):
            answer = next(answers)
            if isinstance(answer, str):
                right = 1 - sum(answer.encode()) % 2
                items.append({"id": number, "correct": right, "text": answer, "taken": answer})
                continue
            first, second = answer[0], next(answers)[0]
            items.append({"id": number, "correct": int(first >= second), "logprobs": [first, second]})
        correct = sum(item["correct"] for item in items)
        figures = {"acc": correct / len(items)}
        shown = {"version": "1.0", "metric": options["metrics"][name], "n": len(items), "correct": correct}
        tasks[name] = {**shown, "metrics": figures, "items": items}
    return {"tasks": tasks, "lm_eval": "0.0.fake"}
