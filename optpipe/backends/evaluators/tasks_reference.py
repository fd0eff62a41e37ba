"""Worker body `tasks-reference`: the answers of the `tasks` job by transformers, to compare the engine with.

Runs in the quantizers' toolchain. inputs: `model` (a folder, compressed-tensors checkpoints included), `requests`.
files: answers.jsonl as of `tasks`.
"""

from __future__ import annotations

import math
import os
from typing import Any

from optpipe.backends.evaluators.tasks import Answer, read_requests, write_answers
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 1


def run(options: Json, work: Work) -> Json:
    """Option `dtype`: bfloat16 or, for tiny models in tests, float32. {"requests", "tokens"}."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    import torch

    from optpipe.backends.evaluators import forward

    torch.set_num_threads(work.threads)
    requests = read_requests(work.inputs["requests"])
    model = forward.load(work.inputs["model"], getattr(torch, options.get("dtype", "bfloat16")))
    answers: list[Answer] = []
    with torch.inference_mode():
        for request in requests:
            ids = torch.tensor([request["ids"]])
            answers.append(answer(forward.logits(model, ids)[0], ids[0], int(request["from"])))
            work.progress(len(answers), len(requests), "requests of tasks answered")
    write_answers(answers, work.out)
    return {"requests": len(answers), "tokens": sum(len(request["ids"]) for request in requests)}


def answer(logits: Any, ids: Any, first: int) -> Answer:
    """logits: [L, vocabulary] of ids [L]; log-likelihood of ids[first:] in float32, and whether it is greedy."""
    import torch

    told = torch.log_softmax(logits[first - 1 : -1].float(), dim=-1)
    own = told.gather(-1, ids[first:, None])[:, 0]
    value = float(own.sum(dtype=torch.float64))
    if not math.isfinite(value):
        raise Failure(f"a log-likelihood is {value}")
    return value, bool((own >= told.amax(-1)).all())
