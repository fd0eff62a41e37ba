"""A fake engine: /health, /v1/models, /v1/completions (streams, logprobs, prompt_logprobs), /metrics.

engine --port P --served-model-name NAME --config FILE      keys of the file, all optional:

never-ready: true        listens, but /health stays 503
ready-after: S           seconds until it listens
exit: N                  prints a line and exits with N at once
stubborn: true           forks a child; both ignore SIGTERM and map shared memory (`shm: NAME`)
worker-dies-after: S     its worker process ends, the server hangs on
die-after: N             kills itself with SIGKILL at the Nth completion
fatal-line: TEXT         prints it while starting, then hangs
answer: words | repeat | empty | nan | error      what completions look like
token-s: S               seconds per token
count: FILE              a line for each start
"""

from __future__ import annotations

import argparse
import json
import math
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

TEXT = "the quick brown fox jumps over a lazy dog while seven clever foxes watch from under an old oak"
WORDS = TEXT.split()


class Engine(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, name: str, config: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.name = name
        self.config = config
        self.lock = threading.Lock()
        self.counts = {"requests": 0, "prompt_tokens": 0, "generation_tokens": 0}

    def count(self, prompt: int, generated: int) -> int:
        with self.lock:
            self.counts["requests"] += 1
            self.counts["prompt_tokens"] += prompt
            self.counts["generation_tokens"] += generated
            return self.counts["requests"]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Engine

    def log_message(self, format: str, *args: Any) -> None:
        sys.stderr.write(f"INFO {format % args}\n")

    def do_GET(self) -> None:
        if self.path == "/health":
            self.answer(503 if self.server.config.get("never-ready") else 200, b"", "text/plain")
        elif self.path == "/v1/models":
            self.json(200, {"object": "list", "data": [{"id": self.server.name, "object": "model"}]})
        elif self.path == "/metrics":
            lines = [f"vllm:{name}_total {value}" for name, value in self.server.counts.items()]
            self.answer(200, "\n".join([*lines, ""]).encode(), "text/plain")
        else:
            self.json(404, {"error": "not found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        config = self.server.config
        prompt = body["prompt"]
        ids = prompt if isinstance(prompt, list) else [len(word) for word in prompt.split()]
        words = make_words(config.get("answer", "words"), str(prompt), int(body.get("max_tokens", 16)))
        number = self.server.count(len(ids), len(words))
        if number >= config.get("die-after", math.inf):
            sys.stderr.write("ERROR out of luck\n")
            os.kill(os.getpid(), signal.SIGKILL)
        if config.get("answer") == "error":
            self.json(500, {"error": {"message": "planted"}})
        elif body.get("stream"):
            self.stream(words)
        else:
            time.sleep(len(words) * config.get("token-s", 0))
            self.json(200, self.completion(body, ids, words))

    def completion(self, body: dict[str, Any], ids: list[int], words: list[str]) -> dict[str, Any]:
        logprob = math.nan if self.server.config.get("answer") == "nan" else -1.5
        choice: dict[str, Any] = {"index": 0, "text": "".join(words), "finish_reason": "length"}
        if body.get("logprobs") is not None:
            choice["logprobs"] = {"tokens": words, "token_logprobs": [logprob] * len(words)}
        if body.get("prompt_logprobs") is not None:
            entries = [{str(i): {"logprob": -2.0 - i % 3, "rank": 1, "decoded_token": "x"}} for i in ids]
            choice["prompt_logprobs"] = [None, *entries[1:]]
        usage = {"prompt_tokens": len(ids), "completion_tokens": len(words)}
        return {
            "id": "cmpl-1",
            "object": "text_completion",
            "model": self.server.name,
            "choices": [choice],
            "usage": usage,
        }

    def stream(self, words: list[str]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for word in ["", *words]:
            time.sleep(self.server.config.get("token-s", 0))
            chunk = {"object": "text_completion", "choices": [{"index": 0, "text": word, "finish_reason": None}]}
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
        self.wfile.write(b"data: [DONE]\n\n")

    def json(self, status: int, value: Any) -> None:
        self.answer(status, json.dumps(value).encode(), "application/json")

    def answer(self, status: int, data: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def make_words(kind: str, prompt: str, count: int) -> list[str]:
    if kind == "empty":
        return []
    if kind == "repeat":
        return [" the"] * count
    start = sum(prompt.encode()) % len(WORDS)
    return [" " + WORDS[(start + i * i) % len(WORDS)] for i in range(count)]


def stubborn_child(config: dict[str, Any]) -> mmap.mmap:
    """Two processes that ignore SIGTERM and share memory, as an engine and its worker do."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with Path("/dev/shm", config["shm"]).open("w+b") as file:
        file.truncate(1 << 16)
        shared = mmap.mmap(file.fileno(), 1 << 16)
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(60)
    return shared


def worker(seconds: float) -> None:
    """A process with a worker's title, which ends; nobody waits for it."""
    subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({seconds})", "FAKE::Worker"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--config", type=Path, required=True)
    words = parser.parse_args()
    config = json.loads(words.config.read_text())
    if "count" in config:
        with Path(config["count"]).open("a") as file:
            file.write(f"{os.getpid()} {words.port}\n")
    sys.stderr.write("INFO starting\n")
    if "exit" in config:
        sys.stderr.write(config.get("fatal-line", "ValueError: no such thing") + "\n")
        sys.exit(config["exit"])
    if "fatal-line" in config:
        sys.stderr.write(config["fatal-line"] + "\n")
        time.sleep(600)
    if "worker-dies-after" in config:
        worker(config["worker-dies-after"])
    shared = stubborn_child(config) if config.get("stubborn") else None
    time.sleep(config.get("ready-after", 0))
    engine = Engine(words.port, words.served_model_name, config)
    if shared is None:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    engine.serve_forever()


if __name__ == "__main__":
    main()
