"""The `score` job: teacher-forced log-probabilities of each row by transformers, beside the base's.

Runs in the quantizers' toolchain. Standard library only at import.

inputs: `model` (a folder, compressed-tensors checkpoints included), `tokens` (tokens.npy, int32 [rows, L], shorter
rows padded with -1 on the right) or several `tokens.NAME`, whose rows follow one another by name, so that the model
is loaded once for all texts;
optionally `base` (files of the base's own score job on the same tokens, with its logits).
files: token_logprobs.npy, float32 [rows, L - 1], in nats; with `keep_logits` the raw logits, [rows, L - 1,
vocabulary] in the model's own dtype, so that a model's divergence from itself is exactly 0.
"""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optpipe.worker import Failure

if TYPE_CHECKING:
    from optpipe.records import Json
    from optpipe.worker import Work

REVISION = 2
"""Raised when results of this file or of `forward.py` change."""

LOGITS = {"bfloat16": "logits.bf16", "float32": "logits.f32"}
CHUNK = {"cpu": 8, "cuda": 256}
"""Tokens whose logits over the whole vocabulary are worked on at once: on a CPU few enough to stay in the cache."""


@dataclass(frozen=True)
class Options:
    """What the job may be told; float32 is for tiny models in tests."""

    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    batch: int = 1
    keep_logits: bool = False


def run(options: Json, work: Work) -> Json:
    """One pass over all rows; per row (a unit) the sums of nll, KL(base || this) and equal argmaxes."""
    os.environ.update(TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")
    import numpy
    import torch

    from optpipe.backends.evaluators import forward

    chosen = Options(**options)
    work.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(work.threads)
    torch.manual_seed(work.seed)
    rows = every_row(work.inputs)
    device = forward.device()
    model = forward.load(work.inputs["model"], getattr(torch, chosen.dtype), device)
    vocabulary = forward.vocabulary(model)
    if int(rows.max()) >= vocabulary:
        raise Failure(f"token {int(rows.max())} is outside the model's vocabulary of {vocabulary}")
    shape = (len(rows), rows.shape[1] - 1, vocabulary)
    base = kept(work.inputs["base"], chosen.dtype, shape) if "base" in work.inputs else None
    logprobs, units = numpy.empty(shape[:2], dtype="float32"), []
    path = work.out / LOGITS[chosen.dtype]
    with torch.inference_mode(), path.open("wb") if chosen.keep_logits else nullcontext() as file:
        for first in range(0, len(rows), chosen.batch):
            ids = torch.from_numpy(rows[first : first + chosen.batch].astype("int64")).to(device)
            for unit, own in enumerate(forward.logits(model, ids.clamp(min=0))[:, :-1], first):
                theirs = None if base is None else torch.from_numpy(base[unit]).to(device).view(own.dtype)
                units.append(score(own, theirs, ids[unit - first, 1:], logprobs[unit], unit))
                if file is not None:
                    file.write(own.contiguous().view(torch.uint8).cpu().numpy().data)
            work.progress(len(units), len(rows), "rows scored")
    numpy.save(work.out / "token_logprobs.npy", logprobs)
    return {"units": units, "vocabulary": vocabulary, "dtype": chosen.dtype}


def every_row(inputs: dict[str, Path]) -> Any:
    """The rows of all tokens inputs by name: int32 [rows, L]."""
    import numpy

    names = sorted(name for name in inputs if name.partition(".")[0] == "tokens")
    return numpy.concatenate([numpy.load(inputs[name] / "tokens.npy") for name in names])


def kept(base: Path, dtype: str, shape: tuple[int, ...]) -> Any:
    """The base's logits, mapped from its file as integers of their width: [rows, L - 1, vocabulary]."""
    import numpy

    path = base / LOGITS[dtype]
    if not path.is_file():
        raise Failure(
            f"the base's score holds no {path.name}", hint="score the base with keep_logits and this dtype"
        )
    width = {"bfloat16": "int16", "float32": "int32"}[dtype]
    logits = numpy.memmap(path, dtype=width, mode="c")
    if logits.size != shape[0] * shape[1] * shape[2]:
        raise Failure(
            f"the base's logits are {logits.size} values, these are {' x '.join(map(str, shape))}",
            hint="score both on the same tokens, with the same vocabulary",
        )
    return logits.reshape(shape)


def likeliest(logprobs: Any) -> Any:
    """The index of the largest of each row; numpy's search is the faster one on a CPU."""
    return logprobs.argmax(-1) if logprobs.is_cuda else logprobs.numpy().argmax(-1)


def score(own: Any, theirs: Any, targets: Any, logprobs: Any, unit: int) -> Json:
    """The sums of one row; its log-probabilities go into `logprobs`.

    own, theirs: logits [L - 1, vocabulary]; targets: [L - 1], -1 behind the row's end. Log-softmax in float32,
    sums in float64.
    """
    import math

    import torch

    nll, kl, agree, tokens = 0.0, 0.0, 0, int((targets >= 0).sum())
    logprobs[tokens:] = 0.0
    step = CHUNK[own.device.type]
    for start in range(0, tokens, step):
        part = slice(start, min(start + step, tokens))
        mine = torch.log_softmax(own[part].float(), dim=-1)
        picked = mine.gather(-1, targets[part, None])[:, 0].cpu().numpy()
        logprobs[part] = picked
        nll -= float(picked.sum(dtype="float64"))
        if theirs is not None:
            other = torch.log_softmax(theirs[part].float(), dim=-1)
            agree += int((likeliest(mine) == likeliest(other)).sum())
            kl += float(torch.linalg.vecdot(other.exp(), other - mine).sum(dtype=torch.float64))
    for name, value in (("perplexity", nll), ("KL divergence", kl)):
        if not math.isfinite(value):
            raise Failure(f"{name} is not finite: first at unit {unit}")
    compared = theirs is not None
    return {
        "tokens": tokens,
        "nll": nll,
        "kl": kl if compared else None,
        "agree": agree if compared else None,
    }
