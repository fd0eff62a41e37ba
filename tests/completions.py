"""A small engine for tests: `/v1/completions`, plain and streamed, `/health`, `/metrics`; a thread a request.

What it answers is up to `answer(body, number)`, which returns a status and a body (a dict, text or bytes).
A streamed request gets `Stream`: chunks of text and the seconds to wait before each.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.quiet import QuietServer

Body = dict[str, Any]
Answer = Callable[[Body, int], tuple[int, Any]]


@dataclass(frozen=True)
class Stream:
    """Chunks (seconds to wait, text); an empty text is sent as an empty delta."""

    chunks: tuple[tuple[float, str], ...]
    usage: Body


@dataclass
class Completions:
    """A running fake: its address and every body that it was asked with."""

    url: str = ""
    asked: list[Body] = field(default_factory=list)
    healthy: bool = True
    metrics: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


@contextmanager
def serving(answer: Answer, metrics: str = "") -> Iterator[Completions]:
    """Serve on a free port of the loopback until the block ends."""
    engine = Completions(metrics=metrics)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *words: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            status = 404 if self.path == "/metrics" and not engine.metrics else 200
            self.whole(status if engine.healthy else 503, engine.metrics)

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with engine.lock:
                engine.asked.append(body)
                number = len(engine.asked) - 1
            status, said = answer(body, number)
            if isinstance(said, Stream):
                self.streamed(said)
            else:
                self.whole(status, said)

        def whole(self, status: int, said: Any) -> None:
            data = said if isinstance(said, bytes) else said.encode() if isinstance(said, str) else None
            data = json.dumps(said).encode() if data is None else data
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def streamed(self, said: Stream) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for wait, text in said.chunks:
                time.sleep(wait)
                self.event({"choices": [{"index": 0, "text": text, "finish_reason": None}]})
            self.event({"choices": [], "usage": said.usage})
            self.wire(b"data: [DONE]\n\n")
            self.wire(b"")

        def event(self, value: Body) -> None:
            self.wire(
                b"data: "
                + json.dumps({"object": "text_completion", "model": "m", **value}).encode()
                + b"\n\n"
            )

        def wire(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))

    server = QuietServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
