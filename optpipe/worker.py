"""Runs one job inside a toolchain: JSON in, files and a record out. Standard library only (3.10 on).

    python -m optpipe.worker <folder>

The folder holds `job.json` (kind, options, inputs, context, threads, seed) and gets `progress.jsonl`,
then `record.json` or `failure.json`; what the job makes lies in `files/`. The only place in optpipe
that catches every exception: what a backend raises becomes a failure with a log, never a traceback.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from optpipe.records import Json, to_json

BODIES = {
    "gguf": "optpipe.backends.converters.gguf",
    "tokens": "optpipe.backends.evaluators.tokens",
    "excerpts": "optpipe.backends.evaluators.excerpts",
    "quantize": "optpipe.backends.quantizers.llmcompressor",
    "quantize-gptqmodel": "optpipe.backends.quantizers.gptqmodel",
    "quantize-modelopt": "optpipe.backends.quantizers.modelopt",
    "quantize-autogptq": "optpipe.backends.quantizers.autogptq",
    "quantize-autoawq": "optpipe.backends.quantizers.autoawq",
    "compile-onnxruntime": "optpipe.backends.compilers.onnxruntime",
    "compile-tensorrt-llm": "optpipe.backends.compilers.tensorrt_llm",
    "score-onnxruntime": "optpipe.backends.evaluators.score_onnx",
    "score": "optpipe.backends.evaluators.score",
    "canary": "optpipe.backends.evaluators.canary",
    "parity": "optpipe.backends.evaluators.parity",
    "served-perplexity": "optpipe.backends.evaluators.served",
    "task-requests": "optpipe.backends.evaluators.task_requests",
    "tasks": "optpipe.backends.evaluators.tasks",
    "tasks-reference": "optpipe.backends.evaluators.tasks_reference",
    "task-library": "optpipe.backends.evaluators.task_library",
    "command": "optpipe.backends.evaluators.command",
    "task-scores": "optpipe.backends.evaluators.task_scores",
    "load": "optpipe.backends.loads.aiperf",
    "offline-tensorrt-llm": "optpipe.backends.loads.trtllm_bench",
}
"""The closed table of job kinds; each module has `run(options, work) -> record` and a `REVISION`."""


class Failure(Exception):
    """What a body raises for a cause it knows; `transient` ones are tried again, others are kept."""

    def __init__(self, message: str, *, hint: str | None = None, transient: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.transient = transient


@dataclass(frozen=True)
class Work:
    """What a body gets beside its options."""

    inputs: dict[str, Path]
    context: Json
    out: Path
    threads: int
    seed: int
    folder: Path

    def progress(self, done: float, total: float, what: str) -> None:
        """Tell how far the job is; shown with the time left."""
        line = json.dumps({"time": time.time(), "done": done, "total": total, "what": what})
        with (self.folder / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")


class Body(Protocol):
    REVISION: int

    def run(self, options: Json, work: Work) -> Json: ...


def load_body(kind: str) -> Body:
    module: Any = importlib.import_module(BODIES[kind])
    body: Body = module
    return body


def main(folder: Path) -> int:
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    inputs = {name: Path(path) for name, path in job["inputs"].items()}
    work = Work(inputs, job["context"], folder / "files", job["threads"], job["seed"], folder)
    try:
        record = to_json(load_body(job["kind"]).run(job["options"], work))
        text = json.dumps(record, allow_nan=False)
    except Exception as error:
        traceback.print_exc()
        write(folder / "failure.json", json.dumps(describe(error)))
        return 1
    write(folder / "record.json", text)
    return 0


def describe(error: Exception) -> Json:
    """The failure as the build shows it. Only a cause that a body knows can be definite, and kept: what
    else goes wrong (memory, a disk, a fault of ours) is tried again."""
    if isinstance(error, Failure):
        return {"message": error.message, "hint": error.hint, "transient": error.transient}
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return {"message": f"{type(error).__name__}: {first}", "hint": None, "transient": True}


def write(path: Path, text: str) -> None:
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


if __name__ == "__main__":
    # bodies import this module by its name: run that one, or their Failure would be another class
    from optpipe.worker import main as run

    sys.exit(run(Path(sys.argv[1])))
