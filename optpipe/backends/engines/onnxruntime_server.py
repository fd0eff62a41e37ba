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
from optpipe.backends.engines.onnxruntime_request import Wrong, asked_of, stops_of
from optpipe.records import Json

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

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news; anything else is a fault of ours, with its traceback in the log."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


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
    begun = False
    """Whether an answer has been begun, so that no other can be."""

    def handle_one_request(self) -> None:
        self.begun = False
        super().handle_one_request()

    def send_response(self, code: int, message: str | None = None) -> None:
        self.begun = True
        super().send_response(code, message)

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
        """400 for what is wrong with the request; what is wrong with us is told as 500 and goes on to the log."""
        answered = False
        try:
            self.answer()
            answered = True
        finally:
            if not answered and not self.begun and not isinstance(sys.exc_info()[1], ConnectionError):
                self.close_connection = True
                self.whole(500, {"error": {"message": "internal error: see the server's log", "type": "server_error"}})

    def answer(self) -> None:
        length = self.headers.get("Content-Length", "")
        try:
            body = json.loads(self.rfile.read(int(length)))
        except ValueError as error:  # no number, no UTF-8, no JSON
            self.refuse(f"the body is no JSON of Content-Length {length!r}: {error}")
            return
        if self.path != "/v1/completions":
            self.whole(404, {"error": {"message": f"no {self.path}"}})
            return
        try:
            asked, stops = asked_of(body, self.server.model), stops_of(body)
        except Wrong as error:
            self.refuse(str(error))
            return
        text = Text(self.server.model.tokenizer, body.get("skip_special_tokens") is False, stops)
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

    def refuse(self, message: str) -> None:
        self.whole(400, {"error": {"message": message, "type": "invalid_request_error"}})

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
