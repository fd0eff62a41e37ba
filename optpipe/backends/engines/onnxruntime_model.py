"""The engine's own half of `onnxruntime_server.py`: generators over the compiled model, and whose turn it is.

onnxruntime-genai batches continuously on GPUs only, so each request has a generator of its own, and one thread
computes one token of each in turn. Runs in the onnxruntime toolchain.
"""

from __future__ import annotations

import json
import queue
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from optpipe.records import Json

DONE = None


@dataclass
class Asked:
    """One request: what it wants, and where its tokens go, each (id, log-probability or None), DONE at the end."""

    ids: list[int]
    max_tokens: int
    ignore_eos: bool
    temperature: float
    top_p: float
    seed: int | None
    logprobs: bool
    prompt_logprobs: bool
    tokens: queue.Queue[tuple[int, float | None] | BaseException | None] = field(default_factory=queue.Queue)
    prompt: list[Json | None] = field(default_factory=list)
    gone: bool = False
    """Nobody waits for it any more."""


# ---------------------------------------------------------------- the model


class Model:
    """The compiled model and its tokenizer; only the scheduler's thread computes with it."""

    def __init__(self, folder: Path, config: Json) -> None:
        import onnxruntime_genai
        import tokenizers

        onnxruntime_genai.disable_telemetry_events()
        self.genai: Any = onnxruntime_genai
        told = json.loads((folder / "genai_config.json").read_text(encoding="utf-8"))["model"]
        self.longest = int(config.get("max-model-len") or told["context_length"])
        self.vocabulary = int(told["vocab_size"])
        ends = told["eos_token_id"]
        self.ends = set(ends if isinstance(ends, list) else [ends])
        threads = {"intra_op_num_threads": int(config.get("threads", 1)), "inter_op_num_threads": 1}
        settings = onnxruntime_genai.Config(str(folder))
        settings.overlay(json.dumps({"model": {"decoder": {"session_options": threads}}}))
        self.model = onnxruntime_genai.Model(settings)
        self.tokenizer: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))

    def generator(self, asked: Asked) -> Any:
        """A generator that has read the prompt; fills in the prompt's own log-probabilities where asked for."""
        import numpy

        most = len(asked.ids) + asked.max_tokens
        options: Json = {"max_length": most, "do_sample": asked.temperature > 0.0}
        if asked.temperature > 0.0:
            options |= {"temperature": asked.temperature, "top_p": asked.top_p, "top_k": 0}
        if asked.seed is not None:
            options["random_seed"] = asked.seed
        if asked.ignore_eos:
            options["min_length"] = most
        params = self.genai.GeneratorParams(self.model)
        params.set_search_options(**options)
        made = self.genai.Generator(self.model, params)
        made.append_tokens(numpy.array(asked.ids, dtype=numpy.int32))
        if asked.prompt_logprobs:
            asked.prompt = prompt_logprobs(made.get_output("logits")[0], asked.ids)
        return made

    def step(self, made: Any, asked: Asked) -> tuple[int, float | None]:
        """The next token, and its log-probability where asked for."""
        scores = made.get_logits().reshape(-1).copy() if asked.logprobs else None
        made.generate_next_token()
        token = int(made.get_next_tokens()[0])
        return token, None if scores is None else float(log_softmax(scores)[token])


def log_softmax(logits: Any) -> Any:
    """float64 over the last axis."""
    import numpy

    wide = logits.astype(numpy.float64)
    shifted = wide - wide.max(-1, keepdims=True)
    return shifted - numpy.log(numpy.exp(shifted).sum(-1, keepdims=True))


def prompt_logprobs(logits: Any, ids: list[int]) -> list[Json | None]:
    """As vLLM writes them: of each token but the first and of the likeliest in its place. logits: [L, vocabulary]."""
    found: list[Json | None] = [None]
    for at, token in enumerate(ids[1:]):
        values = log_softmax(logits[at])
        best = int(values.argmax())
        found.append({str(one): {"logprob": float(values[one])} for one in dict.fromkeys((token, best))})
    return found


# ---------------------------------------------------------------- whose turn it is


class Scheduler(threading.Thread):
    """One token of each request in turn; a request that fails gets the error, the others go on."""

    def __init__(self, model: Model, most: int) -> None:
        super().__init__(daemon=True)
        self.model, self.most = model, most
        self.waiting: queue.Queue[Asked] = queue.Queue()

    def run(self) -> None:
        active: list[tuple[Asked, Any]] = []
        while True:
            active += self.admitted(len(active))
            active = [pair for pair in active if self.goes_on(*pair)]

    def admitted(self, active: int) -> list[tuple[Asked, Any]]:
        """Those whose turn has come, one prompt at a time; waits while there is nothing to do at all."""
        if active >= self.most:
            return []
        try:
            asked = self.waiting.get(block=active == 0)
        except queue.Empty:
            return []
        if asked.gone:
            return []
        try:
            return [(asked, self.model.generator(asked))]
        except (RuntimeError, ValueError) as error:
            asked.tokens.put(error)
            return []

    def goes_on(self, asked: Asked, made: Any) -> bool:
        """One more token of a request; whether there are more to come."""
        if asked.gone:
            return False
        try:
            token, logprob = self.model.step(made, asked)
            ended = made.is_done()
        except (RuntimeError, ValueError) as error:
            asked.tokens.put(error)
            return False
        asked.tokens.put((token, logprob))
        if ended:
            asked.tokens.put(DONE)
        return not ended
