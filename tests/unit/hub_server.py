"""A small hub on loopback: model and data set info, trees, files with etag and ranges."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

from tests.quiet import QuietServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Sparse:
    """A large file of which only the first bytes are there; it is never sent whole."""

    head: bytes
    size: int

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> bytes:
        first, last = part.start or 0, min(part.stop or self.size, self.size)
        return self.head[first:last].ljust(max(0, last - first), b"\0")


def named(data: bytes | Sparse) -> str:
    """What stands for the content: its SHA-256."""
    return hashlib.sha256(data if isinstance(data, bytes) else f"{data.size}".encode() + data.head).hexdigest()


@dataclass
class Hub:
    """`files` by `repo` then path; a repo in `private` needs the token, one in `gated` refuses everybody."""

    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    private: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    ranges: bool = True
    url: str = ""
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    """Method, path and Range of every request."""
    sent: int = 0
    """Bytes of file content sent."""


@contextmanager
def serve(hub: Hub) -> Iterator[Hub]:
    server = QuietServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, body: bool) -> None:
        path = unquote(urlsplit(self.path).path).strip("/")
        self.hub.asked.append((self.command, path, self.headers.get("Range", "")))
        parts = path.removeprefix("api/").split("/")
        kind = parts.pop(0) if parts[0] in ("models", "datasets") else "models"
        repo, rest = "/".join(parts[:2]), parts[2:]
        if refused := self.refusal(repo, rest):
            self.send(refused[0], b"{}", {"X-Error-Code": refused[1]} if refused[1] else {}, body)
        elif path.startswith("api/"):
            self.describe(kind, repo, rest, body)
        else:
            self.file(self.hub.files[repo].get("/".join(rest[2:])), body)

    def refusal(self, repo: str, rest: list[str]) -> tuple[int, str] | None:
        if repo in self.hub.broken:
            return 503, ""
        if repo in self.hub.gated:
            return 403, "GatedRepo"
        needed = self.hub.private.get(repo)
        if repo not in self.hub.files or (needed and self.headers.get("Authorization") != f"Bearer {needed}"):
            return 401, "RepoNotFound"
        if len(rest) > 1 and rest[1] not in (COMMIT, "v1"):
            return 404, "RevisionNotFound"
        return None

    def describe(self, kind: str, repo: str, rest: list[str], body: bool) -> None:
        files = self.hub.files[repo]
        if rest[:1] == ["tree"]:
            value: Any = [
                {"type": "file", "path": name, "size": len(data), "oid": named(data)[:40]}
                for name, data in files.items()
            ]
        else:
            siblings = [{"rfilename": name, "size": len(data)} for name, data in files.items()]
            value = {"id": repo, "sha": COMMIT, "siblings": siblings, "private": False, "gated": False}
        self.send(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, body)

    def file(self, data: bytes | Sparse | None, body: bool) -> None:
        if data is None:
            self.send(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            return
        heads = {"ETag": f'"{named(data)}"', "X-Repo-Commit": COMMIT}
        wanted = self.headers.get("Range", "")
        if not (wanted and self.hub.ranges):
            assert isinstance(data, bytes), "a file of this size is not to be fetched"
            self.send(200, data, heads, body, content=True)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        part = data[int(first) : int(last) + 1 if last else None]
        heads["Content-Range"] = f"bytes {first}-{int(first) + len(part) - 1}/{len(data)}"
        self.send(206, part, heads, body, content=True)

    def send(self, status: int, data: bytes, heads: dict[str, str], body: bool, content: bool = False) -> None:
        self.send_response(status)
        for name, value in {**heads, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                return  # a client that has read enough hangs up
            self.hub.sent += len(data) if content else 0
