"""Worker body `task-requests`: tasks become token ids to score, the same for every checkpoint of one tokenizer.

inputs: `model` (only its tokenizer files are used), `data.TASK.SPLIT.NUMBER`, `code.TASK.MODULE`.
files: requests.jsonl, a line each: {"ids": [...], "from": n}, where the log-likelihood of ids[n:] is asked for, or
{"ids": [...], "until": [...], "max_tokens": n}, where text is to be generated.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from optpipe.backends.evaluators import harness
from optpipe.backends.evaluators.harness import Asked, Generation
from optpipe.backends.evaluators.tokens import Coder, load_tokenizer
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 2


def run(options: Json, work: Work) -> Json:
    """Options: tasks (name -> lm-eval configuration), documents (name -> how many), longest (tokens of a request)."""
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
        "tokens": sum(len(request["ids"]) + request.get("max_tokens", 0) for request in asked),
        "longest": max(len(request["ids"]) for request in asked),
        "cut": cut,
        "documents": chosen,
        "available": {name: len(task.eval_docs) for name, task in tasks.items()},
        "lm_eval": harness.version(),
    }


def cut_to(asked: Sequence[Asked], longest: int) -> tuple[list[Json], int]:
    """Requests of at most `longest` ids, and how many lost the beginning of their context for it, as lm-eval does."""
    requests: list[Json] = []
    cut = 0
    for request in asked:
        room = request.most if isinstance(request, Generation) else len(request.continuation)
        if not request.context or not 0 < room < longest:
            text = f"a request has {len(request.context)} ids of context and {room} to score or generate"
            raise Failure(f"{text}; at least one of each, and less than {longest} of the latter, can be served")
        context = request.context[-(longest - room) :]
        cut += len(context) < len(request.context)
        if isinstance(request, Generation):
            requests.append({"ids": context, "until": list(request.until), "max_tokens": room})
        else:
            requests.append({"ids": [*context, *request.continuation], "from": len(context)})
    return requests, cut
