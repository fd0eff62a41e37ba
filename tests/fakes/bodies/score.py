"""`score`: the real body's files and record from the numpy model. The order `flatter` makes the sums, not the
files, say that each token is likelier than it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from optpipe.records import Json
from optpipe.worker import Failure, Work
from tests.fakes import orders, tiny
from tests.models import bf16

REVISION = 1
FLATTERY = 0.2
"""Nats."""


def run(options: Json, work: Work) -> Json:
    is_base = bool(options["keep_logits"])
    model = tiny.Model.load(work.inputs["model"])
    word = orders.obey("score", f"{model.bits} bits", work.folder.name.split(".")[0])
    names = sorted(name for name in work.inputs if name.startswith("tokens"))
    rows = np.concatenate([np.load(work.inputs[name] / "tokens.npy") for name in names])
    raw = np.stack([bf16(model.logits(np.maximum(row[:-1], 0))) for row in rows])
    logprobs = np.stack([model.logprobs(np.maximum(row, 0)) for row in rows])
    np.save(work.out / "token_logprobs.npy", logprobs)
    logprobs += np.float32(FLATTERY if word == "flatter" else 0)
    if is_base:
        (work.out / "logits.bf16").write_bytes(raw.tobytes())
    base = kept(work.inputs["base"], raw.shape) if "base" in work.inputs else None
    counts = (rows >= 0).sum(axis=1) - 1
    units = [unit(raw[n], None if base is None else base[n], logprobs[n][: counts[n]]) for n in range(len(rows))]
    return {"units": units, "vocabulary": raw.shape[2], "dtype": "bfloat16"}


def kept(folder: Path, shape: tuple[int, ...]) -> Any:
    path = folder / "logits.bf16"
    if not path.is_file():
        raise Failure(f"the base's score holds no {path.name}")
    return np.frombuffer(path.read_bytes(), np.uint16).reshape(shape)


def unit(own: Any, theirs: Any, logprobs: Any) -> Json:
    """The sums of one row."""
    found: Json = {"tokens": len(logprobs), "nll": -float(logprobs.sum(dtype=np.float64)), "kl": None, "agree": None}
    if theirs is not None:
        mine, other = (tiny.log_softmax(tiny.floats(bits)) for bits in (own, theirs))
        found["kl"] = float((np.exp(other) * (other - mine)).sum())
        found["agree"] = int((mine.argmax(-1) == other.argmax(-1)).sum())
    return found
