"""The `score-onnxruntime` job: like `score`, but of a compiled ONNX graph, by plain onnxruntime with empty pasts.

Runs in the onnxruntime toolchain; standard library only at import. What is scored is what is served: the graph with
its own kernels. inputs: `model` (the compiled folder), tokens and `base` as for `score`. files: token_logprobs.npy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from optpipe.worker import Failure

if TYPE_CHECKING:
    from collections.abc import Callable

    from optpipe.records import Json
    from optpipe.worker import Work

REVISION = 1
DTYPE = "bfloat16"
"""Of the base's logits that are compared with; the graph's own are float32."""


def run(options: Json, work: Work) -> Json:
    """One pass over all rows; per row (a unit) the sums of nll, KL(base || this) and equal argmaxes."""
    import numpy
    import torch

    from optpipe.backends.evaluators import score

    torch.set_num_threads(work.threads)
    work.out.mkdir(parents=True, exist_ok=True)
    rows = score.every_row(work.inputs)
    logits = session(work.inputs["model"] / "model.onnx", work.threads)
    vocabulary = logits(rows[:1, :2]).shape[-1]
    if int(rows.max()) >= vocabulary:
        raise Failure(f"token {int(rows.max())} is outside the graph's vocabulary of {vocabulary}")
    shape = (len(rows), rows.shape[1] - 1, vocabulary)
    base = score.kept(work.inputs["base"], DTYPE, shape) if "base" in work.inputs else None
    logprobs, units = numpy.empty(shape[:2], dtype="float32"), []
    for unit, row in enumerate(rows):
        own = torch.from_numpy(logits(row[None])[0, :-1])
        theirs = None if base is None else torch.from_numpy(base[unit]).view(getattr(torch, DTYPE))
        units.append(score.score(own, theirs, torch.from_numpy(row[1:].astype("int64")), logprobs[unit], unit))
        work.progress(len(units), len(rows), "rows scored")
    numpy.save(work.out / "token_logprobs.npy", logprobs)
    return {"units": units, "vocabulary": vocabulary, "dtype": "float32"}


def session(path: Path, threads: int) -> Callable[[Any], Any]:
    """A function from token ids, int [batch, L], to logits, float32 [batch, L, vocabulary]."""
    import numpy
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    settings.inter_op_num_threads = 1
    onnxruntime.set_default_logger_severity(3)
    graph = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
    inputs = {one.name: one for one in graph.get_inputs()}
    pasts = {name: one.shape for name, one in inputs.items() if name.startswith("past_key_values")}
    size = head_size(path)

    def logits(ids: Any) -> Any:
        batch, length = ids.shape
        fed = {
            "input_ids": ids.astype("int64"),
            "attention_mask": numpy.ones((batch, length), dtype="int64"),
            "position_ids": numpy.tile(numpy.arange(length, dtype="int64"), (batch, 1)),
        }
        fed = {name: value for name, value in fed.items() if name in inputs}
        empty = {name: numpy.zeros((batch, shape[1], 0, size), dtype="float32") for name, shape in pasts.items()}
        return graph.run(["logits"], {**fed, **empty})[0]

    return logits


def head_size(path: Path) -> int:
    """Of one attention head, as the engine's own configuration beside the graph says it."""
    import json

    told = json.loads(path.with_name("genai_config.json").read_text(encoding="utf-8"))
    return int(told["model"]["decoder"]["head_size"])
