"""MLflow's model registry, through its REST interface: no MLflow is needed here.

run of experiment optpipe, tag optpipe.digest     its artifacts are the bundle, through the server's artifact proxy
model version, tag optpipe.digest                 a complete version: that run's artifacts; written after them
model's tag optpipe.move.<alias>.000001.<id>      a move of an alias
model's own alias                                 what everybody else reads; written last

MLflow has no conditional write of an alias: the history decides. It keeps `latest` and names like v1 for itself and
takes no dots: such an alias is in the history alone. Credentials come from MLFLOW_TRACKING_TOKEN, or
MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD.
"""

from __future__ import annotations

import base64
import hashlib
import os
import posixpath
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from optpipe import bundle as bundles
from optpipe.backends.registries import places
from optpipe.backends.registries.http import Http
from optpipe.backends.registries.storage import Storage
from optpipe.bundle import Entry, Manifest
from optpipe.errors import PublishFailed
from optpipe.records import Json

API = "/api/2.0/mlflow"
PROXY = "/api/2.0/mlflow-artifacts/artifacts"
OURS, NAME, DIGEST, MOVE = "optpipe", "optpipe.name", "optpipe.digest", "optpipe.move."
NATIVE = re.compile(r"(?!latest$)(?!v\d+$)[a-z0-9_-]+")
"""Aliases that MLflow takes."""
HINT = "set MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"


@dataclass(frozen=True)
class Mlflow:
    """Publish into MLflow's model registry; the server must serve artifacts (its default)."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012

    uri: str | None = None
    """The server's URL; by default MLFLOW_TRACKING_URI."""
    registry: Literal["mlflow"] = "mlflow"
    """Which kind."""
    promote: str | None = None
    """An alias to move to the new version where it beats the one that the alias means now."""


class MlflowStorage(Storage):
    """Registered models, their versions, tags and aliases, and the artifacts behind them."""

    kind = "mlflow"

    def __init__(self, settings: Mlflow) -> None:
        uri = settings.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
        places.checked_url(uri, "https://mlflow.example.org")
        verify = os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH")
        self._http = Http(uri, _login, credentials=HINT, verify=verify)
        self.where = f"mlflow+{self._http.url}"
        self._roots: dict[tuple[str, str], str] = {}

    @property
    def conditional(self) -> bool:
        return False

    # ------------------------------------------------------------ versions

    def names(self) -> list[str]:
        found = self._pages("registered-models/search", "registered_models", {"filter": f"tags.{OURS} = '1'"})
        return sorted(model["name"] for model in found if self.versions(model["name"]))

    def versions(self, name: str) -> list[str]:
        return list(self._versions(name))

    def manifest(self, name: str, digest: str) -> bytes | None:
        if digest not in self._versions(name):
            return None
        return b"".join(self._http.stream(self._artifact(name, digest, bundles.MANIFEST)))

    def size(self, name: str, digest: str, file: Entry) -> int | None:
        folder, base = posixpath.split(f"{self._root(name, digest)}/{file.path}")
        found = self._http.call("GET", PROXY, params={"path": folder}, missing=(404,))
        files = found.json().get("files", ()) if found is not None else ()
        sizes = [int(one.get("file_size", 0)) for one in files if one["path"] == base and not one.get("is_dir")]
        return sizes[0] if sizes else None

    def put(self, name: str, digest: str, file: Entry, source: Path) -> None:
        headers = {"Content-Length": str(file.size)}
        path = self._artifact(name, digest, file.path)
        self._http.call("PUT", path, body=lambda: self.chunks(source), headers=headers)

    def read(self, name: str, digest: str, file: Entry) -> Iterator[bytes]:
        return self._http.stream(self._artifact(name, digest, file.path))

    def seal(self, name: str, digest: str, manifest: Manifest) -> None:
        self._http.call("PUT", self._artifact(name, digest, bundles.MANIFEST), body=manifest.encode())
        self._register(name)
        info = self._run(name, digest)
        tags = [{"key": DIGEST, "value": digest}]
        version = {"name": name, "source": info["artifact_uri"], "run_id": info["run_id"], "tags": tags}
        self._ask("POST", "model-versions/create", version)
        self._ask("POST", "runs/update", {"run_id": info["run_id"], "status": "FINISHED", "end_time": _now()})

    def signature(self, name: str, digest: str) -> bytes | None:
        found = self._http.call("GET", self._artifact(name, digest, bundles.SIGNATURE), missing=(404,))
        return bytes(found.content) if found is not None else None

    def put_signature(self, name: str, digest: str, signature: bytes) -> None:
        self._http.call("PUT", self._artifact(name, digest, bundles.SIGNATURE), body=signature)

    # ------------------------------------------------------------ aliases

    def moves(self, name: str) -> list[bytes]:
        found = self._ask("GET", "registered-models/get", {"name": name}, missing=(404,))
        tags = found["registered_model"].get("tags", ()) if found else ()
        return [tag["value"].encode() for tag in tags if tag["key"].startswith(MOVE)]

    def add_move(self, name: str, alias: str, sequence: int, data: bytes) -> bool:
        key = f"{MOVE}{alias}.{sequence:06d}.{hashlib.sha256(data).hexdigest()[:12]}"
        self._ask("POST", "registered-models/set-tag", {"name": name, "key": key, "value": data.decode()})
        return True

    def points(self, alias: str) -> bool:
        return NATIVE.fullmatch(alias) is not None

    def pointer(self, name: str, alias: str) -> str | None:
        """Of a version that we did not publish, MLflow's number."""
        found = self._ask("GET", "registered-models/alias", {"name": name, "alias": alias}, missing=(400, 404))
        if found is None:
            return None
        version = found["model_version"]
        return _digest(version) or f"version {version['version']}"

    def point(self, name: str, alias: str, digest: str) -> None:
        found = self._versions(name).get(digest)
        if found is None:
            raise PublishFailed(f"{digest} is not there", place=f"{self.where}: {name}", hint="publish it again")
        self._ask("POST", "registered-models/alias", {"name": name, "alias": alias, "version": found["version"]})

    # ------------------------------------------------------------ calls

    def _versions(self, name: str) -> dict[str, Json]:
        """MLflow's record of each of our versions, in their order; the first where a digest has two."""
        found = self._pages("model-versions/search", "model_versions", {"filter": f"name='{name}'"})
        by_digest: dict[str, Json] = {}
        for version in sorted(found, key=lambda version: int(version["version"])):
            if digest := _digest(version):
                by_digest.setdefault(digest, version)
        return by_digest

    def _artifact(self, name: str, digest: str, path: str) -> str:
        return f"{PROXY}/{quote(f'{self._root(name, digest)}/{path}')}"

    def _root(self, name: str, digest: str) -> str:
        """The folder of a version's artifacts behind the proxy: that of its run."""
        if (name, digest) not in self._roots:
            version = self._versions(name).get(digest)
            uri = urlsplit(version["source"] if version else self._run(name, digest)["artifact_uri"])
            if uri.scheme != "mlflow-artifacts":
                hint = "start the server with --serve-artifacts and --artifacts-destination"
                raise PublishFailed(f"keeps artifacts at {uri.scheme}:, not behind itself", place=self.where, hint=hint)
            self._roots[name, digest] = uri.path.strip("/")
        return self._roots[name, digest]

    def _run(self, name: str, digest: str) -> Json:
        """The run that a version's files belong to; the first try's, or a new one."""
        experiment = self._experiment()
        wanted = f"tags.`{DIGEST}` = '{digest}' and tags.`{NAME}` = '{name}'"
        order = ["attributes.start_time ASC"]
        query = {"experiment_ids": [experiment], "filter": wanted, "max_results": 1, "order_by": order}
        if runs := self._ask("POST", "runs/search", query).get("runs"):
            return dict(runs[0]["info"])
        tags = [{"key": DIGEST, "value": digest}, {"key": NAME, "value": name}]
        fields = {"experiment_id": experiment, "run_name": f"{name} {digest[:19]}", "start_time": _now(), "tags": tags}
        return dict(self._ask("POST", "runs/create", fields)["run"]["info"])

    def _experiment(self) -> str:
        for _ in range(2):
            found = self._ask("GET", "experiments/get-by-name", {"experiment_name": OURS}, missing=(404,))
            if found:
                return str(found["experiment"]["experiment_id"])
            self._ask("POST", "experiments/create", {"name": OURS}, missing=(400,))
        raise PublishFailed(f"takes no experiment {OURS!r}", place=self.where, hint="restore the one that was deleted")

    def _register(self, name: str) -> None:
        """The registered model, there or made; MLflow answers 400 where it is there."""
        tags = [{"key": OURS, "value": "1"}]
        self._ask("POST", "registered-models/create", {"name": name, "tags": tags}, missing=(400,))
        self._ask("POST", "registered-models/set-tag", {"name": name, "key": OURS, "value": "1"})

    def _ask(self, method: str, what: str, fields: Json, missing: tuple[int, ...] = ()) -> Any:
        words: dict[str, Any] = {"params": fields} if method == "GET" else {"json": fields}
        found = self._http.call(method, f"{API}/{what}", missing=missing, **words)
        return found.json() if found is not None else None

    def _pages(self, what: str, key: str, query: Json) -> Iterator[Json]:
        token = ""
        while True:
            page = self._ask("GET", what, {**query, "max_results": 200, **({"page_token": token} if token else {})})
            yield from page.get(key, ())
            if not (token := page.get("next_page_token", "")):
                return


def _login() -> dict[str, str]:
    if token := os.environ.get("MLFLOW_TRACKING_TOKEN"):
        return {"Authorization": f"Bearer {token}"}
    user, password = os.environ.get("MLFLOW_TRACKING_USERNAME"), os.environ.get("MLFLOW_TRACKING_PASSWORD")
    if not user:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{user}:{password or ''}".encode()).decode()}


def _digest(version: Json) -> str | None:
    return next((str(tag["value"]) for tag in version.get("tags", ()) if tag["key"] == DIGEST), None)


def _now() -> int:
    """Milliseconds, as MLflow counts."""
    return time.time_ns() // 1_000_000
