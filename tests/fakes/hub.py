"""A hub on loopback that can be written to: repositories, large files, commits with a parent, tags.

It speaks what huggingface_hub's documented upload calls say (create, preupload, LFS batch, commit, tag, refs, tree,
paths-info, resolve), keeps everything in memory, and asks for one token.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.quiet import QuietServer

TOKEN = "hf_testtoken"
START = {".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}


@dataclass
class Repo:
    """Commits by name, each with all its files; branch main and tags point to one."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=lambda: {"0" * 40: dict(START)})
    main: str = "0" * 40
    tags: dict[str, str] = field(default_factory=dict)

    def at(self, revision: str) -> dict[str, bytes] | None:
        return self.commits.get(self.main if revision == "main" else self.tags.get(revision, revision))


@dataclass
class Hub:
    repos: dict[str, Repo] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    full: bool = False
    """No space for another large file."""
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    wbufsize = 1 << 16  # head and body in one piece, else each answer waits for an acknowledgement

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self.answer()

    do_POST = do_PUT = do_HEAD = do_GET

    def answer(self) -> None:
        body = self.body()
        if body is None:
            self.close_connection = True
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        known = self.headers.get("Authorization") in (f"Bearer {TOKEN}", None)
        if not known or (self.command != "GET" and parts[0] != "lfs" and not self.headers.get("Authorization")):
            return self.send(401, {"error": "Invalid credentials in Authorization header"})
        with self.hub.lock:
            self.send(*self.route(parts, body))

    def body(self) -> bytes | None:
        """What was sent; None where the connection broke before all of it came."""
        if self.headers.get("Transfer-Encoding") == "chunked":
            data = bytearray()
            while size := int(self.rfile.readline().strip() or b"0", 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return bytes(data)
        length = int(self.headers.get("Content-Length") or 0)
        found = self.rfile.read(length)
        return found if len(found) == length else None

    def route(self, parts: list[str], body: bytes) -> tuple[int, Any]:
        match parts:
            case ["api", "repos", "create"]:
                return self.create(json.loads(body))
            case ["api", "validate-yaml"]:
                return 200, {"errors": [], "warnings": []}
            case ["api", "models"]:
                owner = parse_qs(urlsplit(self.path).query).get("author", [""])[0]
                return 200, [{"id": name} for name in self.hub.repos if name.startswith(f"{owner}/")]
            case ["lfs", oid]:
                return self.store(oid, body)
            case ["api", "models", owner, name, what, *rest]:
                repo = self.hub.repos.get(f"{owner}/{name}")
                return self.api(repo, f"{owner}/{name}", what, rest, body) if repo else (404, {"error": "RepoNotFound"})
            case [_, name, "info", "lfs", "objects", "batch"] if name.endswith(".git"):
                return 200, {"transfer": "basic", "objects": [self.batch(one) for one in json.loads(body)["objects"]]}
            case [owner, name, "resolve", revision, *path]:
                repo = self.hub.repos.get(f"{owner}/{name}")
                files = repo.at(revision) if repo else None
                data = files.get("/".join(path)) if files is not None else None
                return (404, {"error": "EntryNotFound"}) if data is None else (200, data)
        return 404, {"error": f"no such call: {self.path}"}

    def create(self, wanted: Any) -> tuple[int, Any]:
        name = f"{wanted['organization']}/{wanted['name']}" if wanted.get("organization") else wanted["name"]
        taken = name in self.hub.repos
        self.hub.repos.setdefault(name, Repo())
        return 409 if taken else 200, {"url": f"{self.hub.url}/{name}", "error": "there already"}

    def batch(self, wanted: Any) -> Any:
        there = wanted["oid"] in self.hub.large
        upload = {} if there else {"actions": {"upload": {"href": f"{self.hub.url}/lfs/{wanted['oid']}"}}}
        return {"oid": wanted["oid"], "size": wanted["size"], **upload}

    def store(self, oid: str, body: bytes) -> tuple[int, Any]:
        if self.hub.full:
            return 400, {"error": "no space left"}
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "content is not what its name says"}
        self.hub.large[oid] = body
        return 200, {}

    def api(self, repo: Repo, name: str, what: str, rest: list[str], body: bytes) -> tuple[int, Any]:
        if what == "refs":
            tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": oid} for tag, oid in repo.tags.items()]
            main = {"name": "main", "ref": "refs/heads/main", "targetCommit": repo.main}
            return 200, {"branches": [main], "converts": [], "tags": tags}
        if what == "commit":
            return self.commit(repo, name, [json.loads(line) for line in body.splitlines()])
        files = repo.at(rest[0])
        if files is None:
            return 404, {"error": "RevisionNotFound"}
        match what:
            case "preupload":
                return 200, {"files": [self.mode(files, one) for one in json.loads(body)["files"]]}
            case "tree":
                return 200, [described(path, data) for path, data in files.items()]
            case "paths-info":
                return 200, [described(path, files[path]) for path in parse_qs(body.decode())["paths"] if path in files]
            case "revision":
                return 200, {"id": name, "sha": repo.main, "siblings": []}
            case "tag":
                tag = json.loads(body)["tag"]
                if tag in repo.tags:
                    return 409, {"error": "tag is there"}
                repo.tags[tag] = next(oid for oid, held in repo.commits.items() if held is files)
                return 200, {}
        return 404, {"error": what}

    def mode(self, files: dict[str, bytes], wanted: Any) -> Any:
        large = wanted["path"].endswith(".safetensors")
        data = files.get(wanted["path"])
        oid = None if data is None else hashlib.sha256(data).hexdigest() if large else git_oid(data)
        return {"path": wanted["path"], "uploadMode": "lfs" if large else "regular", "shouldIgnore": False, "oid": oid}

    def commit(self, repo: Repo, name: str, lines: list[Any]) -> tuple[int, Any]:
        if lines[0]["value"].get("parentCommit", repo.main) != repo.main:
            return 412, {"error": "main is somewhere else"}
        files = dict(repo.commits[repo.main])
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.large:
                    return 400, {"error": f"no such object {value['oid']}"}
                files[value["path"]] = self.hub.large[value["oid"]]
            else:
                del files[value["path"]]
        oid = hashlib.sha1(f"{repo.main} {sorted(files)} {len(repo.commits)}".encode()).hexdigest()
        repo.commits[oid], repo.main = files, oid
        return 200, {"commitUrl": f"{self.hub.url}/{name}/commit/{oid}", "commitOid": oid}

    def send(self, status: int, value: Any) -> None:
        data = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(status)
        if isinstance(value, dict) and status == 404:
            self.send_header("X-Error-Code", str(value["error"]).partition(":")[0])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            try:
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                return


def git_oid(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def described(path: str, data: bytes) -> Any:
    return {"type": "file", "path": path, "size": len(data), "oid": git_oid(data)}


@contextmanager
def serve(hub: Hub, port: int = 0) -> Iterator[Hub]:
    server = QuietServer(("127.0.0.1", port), type("Bound", (Handler,), {"hub": hub}))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    hub.url = hub.url or f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
