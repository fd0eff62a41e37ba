"""Serves a compiled ONNX model over HTTP as vLLM does: /health, /v1/models, /v1/completions, plain and streamed.

python -m optpipe.backends.engines.onnxruntime_server MODEL --config FILE --host H --port P --served-model-name N

Runs in the onnxruntime toolchain, on the standard library's HTTP server. At most `max-num-seqs` requests are
answered at once, one token of each in turn; the others wait in the order of their arrival.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import sys
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from optpipe.backends.engines.files import read_yaml
from optpipe.backends.engines.onnxruntime_model import DONE, Asked, Model, Scheduler
from optpipe.records import Json


class Wrong(Exception):
    """A request that cannot be answered, with what is wrong with it."""


# ---------------------------------------------------------------- HTTP


class Server(ThreadingHTTPServer):
    """The model under a name."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], name: str, model: Model, most: int) -> None:
        super().__init__(address, Handler)
        self.name, self.model = name, model
        self.scheduler = Scheduler(model, most)
        self.scheduler.start()
        self.numbers = itertools.count(1)

    def asked(self, body: Json) -> Asked:
        """The request, checked. Raises Wrong."""
        prompt = body.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], (str, list)):
            prompt = prompt[0]
        ids = self.model.tokenizer.encode(prompt).ids if isinstance(prompt, str) else prompt
        if not isinstance(ids, list) or not ids or not all(isinstance(one, int) for one in ids):
            raise Wrong("prompt is neither a text nor a list of token ids")
        if body.get("n", 1) != 1 or body.get("echo"):
            raise Wrong("n other than 1 and echo are not offered")
        tokens = int(body.get("max_tokens") or 16)
        if len(ids) + tokens > self.model.longest:
            raise Wrong(f"{len(ids)} + {tokens} tokens are more than max_model_len {self.model.longest}")
        return Asked(
            ids=ids,
            max_tokens=tokens,
            ignore_eos=bool(body.get("ignore_eos")),
            temperature=float(body.get("temperature", 1.0)),
            top_p=float(body.get("top_p", 1.0)),
            seed=body.get("seed"),
            logprobs=body.get("logprobs") is not None,
            prompt_logprobs=body.get("prompt_logprobs") is not None,
        )


@dataclass
class Text:
    """The text of the tokens so far. Pieces are whole characters: what ends in half a one waits for the rest."""

    tokenizer: Any
    special: bool
    stops: tuple[str, ...] = ()
    ids: list[int] = field(default_factory=list)
    told: str = ""

    def add(self, token: int) -> str:
        """What the token adds."""
        self.ids.append(token)
        whole = self.tokenizer.decode(self.ids, skip_special_tokens=not self.special)
        if whole.endswith("\ufffd"):
            return ""
        piece, self.told = whole[len(self.told) :], whole
        return str(piece)

    def stop(self) -> int | None:
        """Where a stop string begins, if one is there."""
        found = [at for stop in self.stops if (at := self.told.find(stop)) >= 0]
        return min(found, default=None)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet: a load is thousands of lines."""

    def do_GET(self) -> None:
        if self.path == "/health":
            self.whole(200 if self.server.scheduler.is_alive() else 503, {})
        elif self.path == "/v1/models":
            about = {"id": self.server.name, "object": "model", "max_model_len": self.server.model.longest}
            self.whole(200, {"object": "list", "data": [about]})
        else:
            self.whole(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        try:
            body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))))
            if self.path != "/v1/completions":
                self.whole(404, {"error": {"message": f"no {self.path}"}})
                return
            asked = self.server.asked(body)
        except (Wrong, ValueError, TypeError, AttributeError) as error:
            self.whole(400, {"error": {"message": str(error), "type": "invalid_request_error"}})
            return
        stops = body.get("stop") or ()
        given = (stops,) if isinstance(stops, str) else tuple(stops)
        text = Text(self.server.model.tokenizer, body.get("skip_special_tokens") is False, given)
        self.server.scheduler.waiting.put(asked)
        try:
            if body.get("stream"):
                self.streamed(asked, text)
            else:
                self.at_once(asked, text)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        finally:
            asked.gone = True

    def at_once(self, asked: Asked, text: Text) -> None:
        logprobs: Json = {"tokens": [], "token_logprobs": []}
        finish, count = "length", 0
        while (found := asked.tokens.get()) is not DONE:
            if isinstance(found, BaseException):
                self.whole(500, {"error": {"message": str(found)}})
                return
            token, logprob = found
            count += 1
            if token in self.server.model.ends and not asked.ignore_eos:
                finish = "stop"
            text.add(token)
            logprobs["tokens"].append(self.server.model.tokenizer.decode([token], skip_special_tokens=False))
            logprobs["token_logprobs"].append(logprob)
            if text.stop() is not None:
                finish = "stop"
                break
        choice: Json = {"index": 0, "text": text.told[: text.stop()], "finish_reason": finish}
        choice["logprobs"] = logprobs if asked.logprobs else None
        if asked.prompt_logprobs:
            choice["prompt_logprobs"] = asked.prompt
        self.whole(200, self.envelope([choice], asked, count))

    def streamed(self, asked: Asked, text: Text) -> None:
        """Server-sent events: a piece of text each, then the usage, then [DONE]."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        finish, count = "length", 0
        while (found := asked.tokens.get()) is not DONE:
            if isinstance(found, BaseException):
                self.event({"error": {"message": str(found)}})
                break
            count += 1
            if found[0] in self.server.model.ends and not asked.ignore_eos:
                finish = "stop"
            before = len(text.told)
            text.add(found[0])
            stop = text.stop()
            piece = text.told[before:stop]
            self.event(self.envelope([{"index": 0, "text": piece, "finish_reason": None}], asked, count))
            if stop is not None:
                finish = "stop"
                break
        self.event(self.envelope([{"index": 0, "text": "", "finish_reason": finish}], asked, count))
        self.event(self.envelope([], asked, count))
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def envelope(self, choices: list[Json], asked: Asked, count: int) -> Json:
        usage = {"prompt_tokens": len(asked.ids), "completion_tokens": count, "total_tokens": len(asked.ids) + count}
        ident = f"cmpl-{next(self.server.numbers)}"
        about = {"id": ident, "object": "text_completion", "created": int(time.time()), "model": self.server.name}
        return {**about, "choices": choices, "usage": usage}

    def event(self, value: Json) -> None:
        self.chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    def whole(self, status: int, value: Json) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    for name in ("--config", "--host", "--port", "--served-model-name"):
        parser.add_argument(name, required=True)
    words = parser.parse_args()
    config = read_yaml(Path(words.config).read_text(encoding="utf-8"))
    model = Model(words.model, config)
    most = int(config.get("max-num-seqs", 4))
    server = Server((words.host, int(words.port)), words.served_model_name, model, most)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    sys.stderr.write(f"serving {words.served_model_name} on {words.host}:{words.port}\n")
    server.serve_forever()


if __name__ == "__main__":
    main()
