"""lm-eval as a library: it makes the requests of tasks and scores the answers; who answers is not its business.

Runs in the `tasks` toolchain, which needs no torch: log-likelihoods come from an engine or from transformers, as
answers to the same token ids. Templates of task files are rendered in Jinja's sandbox. Nothing asks the network.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpipe.backends.evaluators.tokens import Coder, order
from optpipe.records import Json
from optpipe.worker import Failure, Work


@contextmanager
def offline() -> Iterator[None]:
    """No network, no cache that outlives the job, no template outside of the sandbox."""
    with tempfile.TemporaryDirectory(prefix="optpipe-tasks-") as scratch:
        caches = {"HF_HOME": scratch, "HF_DATASETS_CACHE": f"{scratch}/datasets"}
        os.environ.update(caches, HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", TOKENIZERS_PARALLELISM="false")
        sandbox()
        yield


def sandbox() -> None:
    """Have lm-eval render templates where they reach no attribute that leads out of their document."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from lm_eval import utils

    made = ImmutableSandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    made.filters.update(utils.env.filters)
    utils.env = made


def load_tasks(options: Json, work: Work) -> dict[str, Any]:
    """lm-eval's task objects by name, their documents read from the job's inputs."""
    import datasets
    from lm_eval.api.task import ConfigurableTask

    datasets.disable_progress_bars()
    found = {}
    for number, (name, given) in enumerate(options["tasks"].items()):
        work.progress(number, len(options["tasks"]), "tasks read")
        config = {key: function(name, value, work) for key, value in given.items()}
        files: dict[str, list[str]] = {}
        for input_, path in sorted(work.inputs.items()):
            task_, _, split = input_.rpartition(".")[0].rpartition(".")
            if task_ == f"data.{name}":
                files.setdefault(split, []).append(str(path))
        with told(name):
            task = ConfigurableTask(config={**config, "dataset_kwargs": {"data_files": files}})
        task.set_fewshot_seed(seed=work.seed)
        found[name] = task
    return found


def function(task: str, value: Any, work: Work) -> Any:
    """What `!function module.name` names, from a file that the recipe allowed by digest; other values as they are."""
    if not (isinstance(value, dict) and "!function" in value):
        return value
    module, _, name = value["!function"].partition(".")
    spec = importlib.util.spec_from_file_location(module, work.inputs[f"code.{task}.{module}"])
    assert spec is not None and spec.loader is not None, "an input is a file"
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    if not hasattr(loaded, name):
        raise Failure(f"{task}: {module}.py has no {name}")
    return getattr(loaded, name)


def documents(tasks: dict[str, Any], options: Json, work: Work) -> dict[str, list[int]]:
    """Which documents of each task are asked: spread over all of them, the same for every model; fewer are a part
    of more."""
    return {
        name: sorted(order(len(task.eval_docs), work.seed)[: int(options["documents"][name])])
        for name, task in tasks.items()
    }


def evaluated(tasks: dict[str, Any], chosen: dict[str, list[int]], model: Any) -> Json:
    """lm-eval's own results, with every sample."""
    from lm_eval.evaluator import evaluate

    with told(", ".join(tasks)):
        done: Json = evaluate(lm=model, task_dict={"tasks": tasks}, samples=chosen, bootstrap_iters=0, log_samples=True)
    return done


@contextmanager
def told(name: str) -> Iterator[None]:
    """What lm-eval stumbles over in a task file or its documents, as a definite failure that names the task."""
    from datasets.exceptions import DatasetsError
    from jinja2 import TemplateError

    faults = (TemplateError, DatasetsError, ArithmeticError, LookupError, ValueError, TypeError, SyntaxError)
    try:
        yield
    except faults as error:
        first = (str(error).strip() or "no text").splitlines()[0][:300]
        text = f"{name}: lm-eval cannot make requests of it: {type(error).__name__}: {first}"
        passing = isinstance(error.__cause__, OSError)  # a full disk shows as documents that cannot be read
        hint = "its templates must fit the columns of its documents"
        raise Failure(text, hint=hint, transient=passing) from None


# ---------------------------------------------------------------- models that are none


MAX_TOKENS = 256
"""Of generated text, where a task says nothing: lm-eval's own default."""
Answer = tuple[float, bool] | str
"""(log-likelihood in nats, greedy) of a continuation, or the text that was generated."""


@dataclass(frozen=True)
class Likelihood:
    """Ids of a context, and those of the continuation whose log-likelihood is asked for."""

    context: list[int]
    continuation: list[int]


@dataclass(frozen=True)
class Generation:
    """Ids of a context that is to be continued up to the first of `until`, by `most` tokens at most."""

    context: list[int]
    until: tuple[str, ...]
    most: int


Asked = Likelihood | Generation


def recorder(coder: Coder) -> Any:
    """A model for lm-eval that keeps what it is asked, in `asked`."""
    from lm_eval.api.model import TemplateLM

    class Recorder(TemplateLM):  # type: ignore[misc,no-any-unimported,unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.asked: list[Asked] = []

        @property
        def eot_token_id(self) -> int:
            return int(coder.bos if coder.eos is None else coder.eos)

        @property
        def prefix_token_id(self) -> int:
            return self.eot_token_id if coder.bos is None else int(coder.bos)

        def tok_encode(self, string: str, add_special_tokens: bool | None = None, **rest: Any) -> list[int]:
            ids = coder.encode([string])[0]
            return ids if add_special_tokens is False else [*coder.prefix, *ids]

        def _loglikelihood_tokens(self, requests: Sequence[Any], **rest: Any) -> list[tuple[float, bool]]:
            self.asked += [Likelihood(list(context), list(continuation)) for _, context, continuation in requests]
            return [(0.0, False)] * len(requests)

        def generate_until(self, requests: Sequence[Any], **rest: Any) -> list[str]:
            for context, given in (request.args for request in requests):
                until, most = tuple(given.get("until", ())), int(given.get("max_gen_toks", MAX_TOKENS))
                self.asked.append(Generation(self.tok_encode(context), until, most))
            return [""] * len(requests)

        loglikelihood_rolling = unsupported

    return Recorder()


def replayer(answers: Sequence[Answer]) -> Any:
    """A model for lm-eval whose answers are known, in the order in which they are asked for."""
    from lm_eval.api.model import LM

    left = list(reversed(answers))

    class Replayer(LM):  # type: ignore[misc,no-any-unimported,unused-ignore]
        def loglikelihood(self, requests: Sequence[Any]) -> list[Any]:
            return self.next(len(requests), tuple)

        def generate_until(self, requests: Sequence[Any]) -> list[Any]:
            return self.next(len(requests), str)

        def next(self, count: int, kind: type) -> list[Any]:
            taken = [left.pop() for _ in range(min(count, len(left)))]
            if len(taken) != count or not all(isinstance(answer, kind) for answer in taken):
                raise Failure(f"the {len(answers)} answers are not those to the requests of the tasks")
            return taken

        loglikelihood_rolling = unsupported

    return Replayer()


def unsupported(self: Any, requests: Sequence[Any], *rest: Any, **more: Any) -> Any:
    raise Failure("a task asks for the log-likelihood of whole documents; that is not scored here")


# ---------------------------------------------------------------- what is recorded


def scores(tasks: dict[str, Any], options: Json, done: Json) -> Json:
    """Per task its version, the metric that says right or wrong, and each item's answer."""
    return {
        name: score(task, options["metrics"][name], done["results"][name], done["samples"][name])
        for name, task in tasks.items()
    }


def score(task: Any, metric: str, results: Json, samples: list[Json]) -> Json:
    """Where a task filters answers in several ways, the first way decides; the others are among the figures."""
    numbers = {key.removesuffix(",none"): value for key, value in results.items() if isinstance(value, float)}
    figures = {key: float(value) for key, value in numbers.items() if math.isfinite(value)}
    items = [item(sample, metric) for sample in samples if sample["filter"] == samples[0]["filter"]]
    return {
        "version": str(task.VERSION),
        "metric": metric,
        "n": len(items),
        "correct": sum(item["correct"] for item in items),
        "metrics": figures,
        "items": items,
    }


def item(sample: Json, metric: str) -> Json:
    """One document: right or wrong (or between), with what was answered."""
    value = float(sample[metric])
    if not 0.0 <= value <= 1.0:  # code of the task's own may say anything
        raise Failure(f"document {sample['doc_id']}: {metric} is {value}, not from 0 to 1")
    found = {"id": int(sample["doc_id"]), "correct": int(value) if value.is_integer() else value}
    answers = [answers[0] for answers in sample["resps"]]
    if isinstance(answers[0], str):
        return {**found, "text": answers[0], "taken": str(sample["filtered_resps"][0])}
    return {**found, "logprobs": [float(answer[0]) for answer in answers]}


def version() -> str:
    """lm-eval's own."""
    from importlib.metadata import version as of

    return of("lm_eval")


def read_answers(folder: Path) -> list[Answer]:
    """The answers of a `tasks` or `tasks-reference` job, in the order of the requests."""
    lines = (folder / "answers.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return [a if isinstance(a, str) else (float(a[0]), bool(a[1])) for a in map(json.loads, lines)]
