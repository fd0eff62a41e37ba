"""Worker body `task-requests`: tasks become token ids to score, the same for every checkpoint of one tokenizer.

inputs: `model` (only its tokenizer files are used), `data.TASK.SPLIT`, `code.TASK.MODULE`.
files: requests.jsonl, a line each: {"ids": [...], "from": n}, where the log-likelihood of ids[n:] is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from optpipe.backends.evaluators import harness
from optpipe.backends.evaluators.tokens import Coder, load_tokenizer
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 1


def run(options: Json, work: Work) -> Json:
    """Options: tasks (name -> lm-eval configuration), documents (of each), longest (tokens of a request)."""
    with harness.offline():
        tasks = harness.load_tasks(options, work)
        chosen = harness.documents(tasks, options, work)
        model = harness.recorder(Coder(load_tokenizer(work.inputs["model"]), template=False))
        harness.evaluated(tasks, chosen, model)
    asked, cut = cut_to(model.asked, int(options["longest"]))
    work.out.mkdir(parents=True, exist_ok=True)
    text = "".join(json.dumps(request) + "\n" for request in asked)
    (work.out / "requests.jsonl").write_text(text, encoding="utf-8")
    return {
        "requests": len(asked),
        "tokens": sum(len(request["ids"]) for request in asked),
        "longest": max(len(request["ids"]) for request in asked),
        "cut": cut,
        "documents": chosen,
        "available": {name: len(task.eval_docs) for name, task in tasks.items()},
        "lm_eval": harness.version(),
    }


def cut_to(asked: Sequence[tuple[list[int], list[int]]], longest: int) -> tuple[list[Json], int]:
    """Requests of at most `longest` ids, and how many lost the beginning of their context for it, as lm-eval does."""
    requests: list[Json] = []
    cut = 0
    for context, continuation in asked:
        if not context or not 0 < len(continuation) < longest:
            text = f"a request has {len(context)} ids of context and {len(continuation)} to score"
            raise Failure(f"{text}; at least one of each, and less than {longest} to score, can be served")
        ids = [*context, *continuation][-longest:]
        cut += len(ids) < len(context) + len(continuation)
        requests.append({"ids": ids, "from": len(ids) - len(continuation)})
    return requests, cut
