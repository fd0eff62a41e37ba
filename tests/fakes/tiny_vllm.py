"""Stands for `vllm serve MODEL --config FILE --host H --port P --served-model-name N`, over the numpy model.

Its speed follows from the checkpoint's bytes and the tunable settings. Orders (see orders.py) are obeyed at
`engine` (while it starts), `canary`, `parity` and `request`; `skew` shifts log-probabilities by a nat,
`repeat` answers one token over and over. Without `enforce-eager` it compiles what VLLM_CACHE_ROOT does not hold yet
for this configuration, and obeys orders at `compile`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import mmap
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from optpipe.worker import Failure
from tests.fakes import orders, tiny
from tests.fakes.engine import Engine, Handler

TUNABLE = ("max-num-seqs", "max-num-batched-tokens", "no-enable-prefix-caching", "no-enable-chunked-prefill")
VARIABLE = "VLLM_ENABLE_V1_MULTIPROCESSING"
"""The one tunable setting that lies in the environment."""
SECONDS_PER_BYTE = 5e-8


class Tiny(Engine):
    """The server with a model and a name for orders."""

    def __init__(self, port: int, name: str, config: dict[str, Any], model: Path) -> None:
        super().__init__(port, name, config)
        self.RequestHandlerClass = Answers
        self.model = tiny.Model.load(model)
        tuned = {key: value for key, value in config.items() if key in TUNABLE}
        tuned |= {VARIABLE: os.environ[VARIABLE]} if VARIABLE in os.environ else {}
        self.who = f"{name} {'tuned' if tuned else 'default'}"
        spread = hashlib.sha256(json.dumps(tuned, sort_keys=True).encode()).digest()[0] / 255
        factor = 0.6 + 0.3 * spread if tuned else 1.0
        self.speed = {"token_s": factor * SECONDS_PER_BYTE * self.model.bytes, "tuned": bool(tuned)}


class Answers(Handler):
    server: Tiny

    def do_GET(self) -> None:
        if self.path == "/fake/speed":
            self.json(200, self.server.speed)
        else:
            super().do_GET()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        kind = "parity" if "prompt_logprobs" in body else "canary" if "logprobs" in body else "request"
        try:
            word = orders.obey(kind, self.server.who)
        except Failure as failure:
            self.json(500, {"error": {"message": failure.message}})
            return
        prompt = body["prompt"]
        ids = tiny.encode(prompt) if isinstance(prompt, str) else prompt
        answer = [3 + ord("a")] * body["max_tokens"] if word == "repeat" else None
        answer = answer or self.server.model.greedy(ids, body["max_tokens"])
        self.server.count(len(ids), len(answer))
        self.json(200, self.completion_of(body, ids, answer, 1.0 if word == "skew" else 0.0))

    def completion_of(self, body: dict[str, Any], ids: list[int], answer: list[int], shift: float) -> dict[str, Any]:
        words = [chr(ord("a") + token % 26) for token in answer]
        choice: dict[str, Any] = {"index": 0, "text": "".join(words), "finish_reason": "length"}
        if "logprobs" in body:
            choice["logprobs"] = {"tokens": words, "token_logprobs": [-1.0] * len(words)}
        if "prompt_logprobs" in body:
            values = self.server.model.logprobs(np.array(ids)) - shift
            entries = [{str(i): {"logprob": float(value)}} for i, value in zip(ids[1:], values, strict=True)]
            choice["prompt_logprobs"] = [None, *entries]
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(words)}
        return {"object": "text_completion", "model": self.server.name, "choices": [choice], "usage": usage}


def compile_(server: Tiny) -> None:
    """As vLLM does: one artifact for each configuration, loaded where it is there, and what the log says of it."""
    root = os.environ.get("VLLM_CACHE_ROOT")
    if root is None or "enforce-eager" in server.config:
        return
    sys.stderr.write("INFO config: compilation_config={'mode': <CompilationMode.FAKE_ONCE: 2>, 'backend': 'fake'}\n")
    own = hashlib.sha256(json.dumps(server.config, sort_keys=True).encode()).hexdigest()[:16]
    made = Path(root, "torch_compile_cache", own, "model")
    if made.exists() and made.stat().st_size != 1000:
        sys.stderr.write("ERROR OSError: file too short\n")
        raise Failure("engine core initialization failed", transient=True)
    if not made.exists():
        made.parent.mkdir(parents=True)
        made.with_suffix(".part").write_bytes(bytes(1000))
        orders.obey("compile", server.who)
        made.with_suffix(".part").replace(made)


def shared_memory(port: int) -> mmap.mmap:
    """What a real engine leaves behind when it is killed."""
    with Path("/dev/shm", f"optpipe-fake-{os.getpid()}-{port}").open("w+b") as file:
        file.truncate(4096)
        return mmap.mmap(file.fileno(), 4096)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("serve")
    parser.add_argument("model", type=Path)
    for name in ("--config", "--host", "--port", "--served-model-name"):
        parser.add_argument(name, required=True)
    words = parser.parse_args()
    lines = Path(words.config).read_text().splitlines()
    config = {key: json.loads(value) for key, value in (line.split(": ", 1) for line in lines)}
    server = Tiny(int(words.port), words.served_model_name, config, words.model)
    shared = shared_memory(int(words.port))
    try:
        orders.obey("engine", server.who)
        compile_(server)
    except Failure as failure:
        sys.stderr.write(f"{failure.message}\n")
        end(shared, int(words.port), 1)
    signal.signal(signal.SIGTERM, lambda *_: end(shared, int(words.port)))
    server.serve_forever()


def end(shared: mmap.mmap, port: int, code: int = 0) -> None:
    shared.close()
    Path("/dev/shm", f"optpipe-fake-{os.getpid()}-{port}").unlink(missing_ok=True)
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
