"""Worker body `tasks-reference`: the answers of the `tasks` job by transformers, to compare the engine with.

Runs in the quantizers' toolchain. inputs: `model` (a folder, compressed-tensors checkpoints included), `requests`.
files: answers.jsonl as of `tasks`.
"""

from __future__ import annotations

import math
import os
from typing import Any

from optpipe.backends.evaluators.harness import Answer
from optpipe.backends.evaluators.tasks import read_requests, tokens, until_first, write_answers
from optpipe.backends.evaluators.tokens import load_tokenizer
from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 4


def run(options: Json, work: Work) -> Json:
    """Option `dtype`: bfloat16 or, for tiny models in tests, float32. {"requests", "tokens"}."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    import torch

    from optpipe.backends.evaluators import forward

    torch.set_num_threads(work.threads)
    requests = read_requests(work.inputs["requests"])
    model = forward.load(work.inputs["model"], getattr(torch, options.get("dtype", "bfloat16")))
    tokenizer = load_tokenizer(work.inputs["model"])
    answers: list[Answer] = []
    done, total = 0, tokens(requests)
    with torch.inference_mode():
        for request in requests:
            ids = torch.tensor([request["ids"]])
            if "until" in request:
                answers.append(written(model, tokenizer, ids, request))
            else:
                answers.append(answer(forward.logits(model, ids)[0], ids[0], int(request["from"])))
            done += tokens([request])
            work.progress(done, total, f"{len(answers)} of {len(requests)} requests of tasks answered")
    write_answers(answers, work.out)
    return {"requests": len(answers), "tokens": total}


def written(model: Any, tokenizer: Any, ids: Any, request: Json) -> str:
    """What transformers writes greedily after ids [1, L], up to the first stop.

    A tokenizer may write the first word of a text otherwise than a later one, so the context is decoded too. What
    else the model's generation configuration says (a repetition penalty) holds here as it does for the engine.
    """
    import torch

    stops = {"stop_strings": request["until"], "tokenizer": tokenizer} if request["until"] else {}
    plain = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
    most = int(request["max_tokens"])
    found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=most, **plain, **stops)
    whole, context = (tokenizer.decode(part, skip_special_tokens=True) for part in (found[0], ids[0]))
    return until_first(whole[len(context) :], request["until"])


def answer(logits: Any, ids: Any, first: int) -> Answer:
    """logits: [L, vocabulary] of ids [L]; log-likelihood of ids[first:] in float32, and whether it is greedy."""
    import torch

    told = torch.log_softmax(logits[first - 1 : -1].float(), dim=-1)
    own = told.gather(-1, ids[first:, None])[:, 0]
    value = float(own.sum(dtype=torch.float64))
    if not math.isfinite(value):
        raise Failure(f"a log-likelihood is {value}")
    return value, bool((own >= told.amax(-1)).all())
