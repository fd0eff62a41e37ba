"""An OCI registry, in the CNCF model format: one artifact for each version, one raw layer for each file.

<url>/<name>:sha256-<hex>             a version; its layer manifest.json has the version's digest as its own
<url>/<name>:<alias>                  the same artifact under an alias, as runtimes name it
<url>/<name>:<alias>.000001.<id>      a move of an alias
<url>/<name>:sha256-<hex>.model.sig   the signature over a version

Raw layers carry their path, so that what mounts or unpacks artifacts finds the model's folder as it is, and a file
that two versions share is stored once. A registry has no conditional write of a tag: the history decides.
Media types: the CNCF ModelPack specification, https://github.com/modelpack/model-spec.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from optpipe import bundle as bundles
from optpipe.backends.registries import oci_login, places
from optpipe.backends.registries.http import Body, Http
from optpipe.backends.registries.storage import Storage
from optpipe.bundle import Entry, Manifest
from optpipe.errors import PublishFailed
from optpipe.records import Json, canonical

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
ARTIFACT = "application/vnd.cncf.model.manifest.v1+json"
CONFIG = "application/vnd.cncf.model.config.v1+json"
WEIGHT = "application/vnd.cncf.model.weight.v1.raw"
WEIGHT_CONFIG = "application/vnd.cncf.model.weight.config.v1.raw"
DOC = "application/vnd.cncf.model.doc.v1.raw"
MOVE = "application/vnd.optpipe.move.v1+json"
SIGNATURE = "application/vnd.optpipe.signature.v1"
EMPTY = "application/vnd.oci.empty.v1+json"
PATH = "org.cncf.model.filepath"
TITLE = "org.opencontainers.image.title"

VERSION_TAG = re.compile(r"sha256-[0-9a-f]{64}")
MOVE_TAG = re.compile(r".+\.\d{6}\.[0-9a-f]{12}")


@dataclass(frozen=True)
class Oci:
    """Publish into an OCI registry; credentials are those of `docker login`."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012

    url: str
    """`host[:port]/path`; the model's name is added. Loopback is spoken to without TLS, as docker does."""
    registry: Literal["oci"] = "oci"
    """Which kind."""
    promote: str | None = None
    """An alias to move to the new version where it beats the one that the alias means now."""


class OciStorage(Storage):
    """Blobs, manifests and tags below one path of a registry."""

    kind = "oci"

    def __init__(self, settings: Oci) -> None:
        bare = settings.url.partition("://")[2] or settings.url
        self._host, _, self._path = bare.strip("/").partition("/")
        parts = places.checked_url(f"https://{self._host}", "oci://registry.example.com/models")
        if self._path:
            places.checked_part(self._path, places.OCI_PATH, "a repository's path")
        plain = settings.url.startswith("http://") or parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._secure = not plain
        self.where = f"oci://{bare.strip('/')}"
        self._known: dict[str, str] = {}
        self._kept: dict[tuple[str, str], bytes] = {}
        url = f"{'http' if plain else 'https'}://{self._host}"
        self._http = Http(url, lambda: self._known, self._authorize, credentials=oci_login.HINT)

    @property
    def conditional(self) -> bool:
        return False

    # ------------------------------------------------------------ versions

    def names(self) -> list[str]:
        start = f"{self._path}/" if self._path else ""
        found = [repository for page in self._pages("/v2/_catalog?n=1000") for repository in page["repositories"] or ()]
        below = [name.removeprefix(start) for name in found if name.startswith(start)]
        return [name for name in below if "/" not in name and self.versions(name)]

    def versions(self, name: str) -> list[str]:
        return [tag.replace("-", ":") for tag in self._tags(name) if VERSION_TAG.fullmatch(tag)]

    def manifest(self, name: str, digest: str) -> bytes | None:
        found = self._manifest(name, _tag(digest))
        if found is None or _digest_of(found.json()) != digest:
            return None
        return b"".join(self._http.stream(self._at(name, f"blobs/{digest}")))

    def size(self, name: str, digest: str, file: Entry) -> int | None:
        found = self._call(name, "HEAD", f"blobs/sha256:{file.sha256}", missing=(404,))
        return int(found.headers["Content-Length"]) if found is not None else None

    def put(self, name: str, digest: str, file: Entry, source: Path) -> None:
        self._blob(name, file.sha256, file.size, lambda: self.chunks(source))

    def read(self, name: str, digest: str, file: Entry) -> Iterator[bytes]:
        return self._http.stream(self._at(name, f"blobs/sha256:{file.sha256}"))

    def seal(self, name: str, digest: str, manifest: Manifest) -> None:
        """The artifact under its own tag: the registry refuses it while a layer is missing."""
        listed = manifest.encode()
        layers = [_layer(file) for file in manifest.files]
        layers.append(_layer(Entry(bundles.MANIFEST, hashlib.sha256(listed).hexdigest(), len(listed))))
        diffs = [layer["digest"] for layer in layers]
        about = {"name": name, "version": digest}
        config = {"descriptor": about, "modelfs": {"type": "layers", "diffIds": diffs}, "config": {}}
        self._small(name, listed)
        self._artifact(name, _tag(digest), ARTIFACT, (CONFIG, canonical(config)), layers)

    def signature(self, name: str, digest: str) -> bytes | None:
        self._kept.pop((name, tag := f"{_tag(digest)}.model.sig"), None)  # unlike a move, it may be written anew
        return self._content(name, tag)

    def put_signature(self, name: str, digest: str, signature: bytes) -> None:
        self._document(name, f"{_tag(digest)}.model.sig", SIGNATURE, signature)

    # ------------------------------------------------------------ aliases

    def moves(self, name: str) -> list[bytes]:
        found = (self._content(name, tag) for tag in self._tags(name) if MOVE_TAG.fullmatch(tag))
        return [data for data in found if data is not None]

    def add_move(self, name: str, alias: str, sequence: int, data: bytes) -> bool:
        ident = hashlib.sha256(data).hexdigest()[:12]
        self._document(name, f"{alias}.{sequence:06d}.{ident}", MOVE, data)
        return True

    def points(self, alias: str) -> bool:
        return True

    def pointer(self, name: str, alias: str) -> str | None:
        """Of what we did not publish, the digest that the registry gives it."""
        found = self._manifest(name, alias)
        if found is None:
            return None
        return _digest_of(found.json()) or f"sha256:{hashlib.sha256(found.content).hexdigest()}"

    def point(self, name: str, alias: str, digest: str) -> None:
        found = self._manifest(name, _tag(digest))
        if found is None:
            raise PublishFailed(f"{digest} is not there", place=f"{self.where}/{name}", hint="publish it again")
        self._push(name, alias, found.content)

    # ------------------------------------------------------------ calls

    def _authorize(self, challenge: str) -> dict[str, str] | None:
        found = oci_login.authorization(challenge, self._host, self._secure)
        self._known = found or {}
        return found

    def _at(self, name: str, what: str) -> str:
        return f"/v2/{f'{self._path}/' if self._path else ''}{name}/{what}"

    def _call(self, name: str, method: str, what: str, **words: Any) -> Any:
        return self._http.call(method, what if "://" in what else self._at(name, what), **words)

    def _manifest(self, name: str, tag: str) -> Any:
        return self._call(name, "GET", f"manifests/{tag}", headers={"Accept": MANIFEST}, missing=(404,))

    def _tags(self, name: str) -> list[str]:
        return sorted(tag for page in self._pages(self._at(name, "tags/list?n=1000")) for tag in page["tags"] or ())

    def _pages(self, path: str) -> Iterator[Json]:
        """Every page of a list; none where there is no such list."""
        while path:
            answer = self._http.call("GET", path, missing=(404,))
            if answer is None:
                return
            yield answer.json()
            path = answer.links.get("next", {}).get("url", "")

    def _blob(self, name: str, sha256: str, size: int, body: Body) -> None:
        begun = self._call(name, "POST", "blobs/uploads/").headers["Location"]
        target = begun if "://" in begun else self._http.url + begun
        target += f"{'&' if '?' in target else '?'}digest=sha256:{sha256}"
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        self._call(name, "PUT", target, body=body, headers=headers)

    def _small(self, name: str, data: bytes) -> Json:
        """A blob from memory, if it is not there; its descriptor."""
        sha256 = hashlib.sha256(data).hexdigest()
        if self._call(name, "HEAD", f"blobs/sha256:{sha256}", missing=(404,)) is None:
            self._blob(name, sha256, len(data), data)
        return {"digest": f"sha256:{sha256}", "size": len(data)}

    def _artifact(self, name: str, tag: str, kind: str, config: tuple[str, bytes], layers: list[Json]) -> None:
        described = {"mediaType": config[0], **self._small(name, config[1])}
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "artifactType": kind, "config": described}
        self._push(name, tag, canonical({**manifest, "layers": layers}))

    def _push(self, name: str, tag: str, manifest: bytes) -> None:
        self._call(name, "PUT", f"manifests/{tag}", body=manifest, headers={"Content-Type": MANIFEST})

    def _document(self, name: str, tag: str, kind: str, data: bytes) -> None:
        """One small document as an artifact of its own."""
        layer = {"mediaType": kind, **self._small(name, data)}
        self._artifact(name, tag, kind, (EMPTY, b"{}"), [layer])

    def _content(self, name: str, tag: str) -> bytes | None:
        """The one layer of a small document; read once, for it never changes."""
        if (name, tag) not in self._kept:
            found = self._manifest(name, tag)
            if found is None:
                return None
            layer = found.json()["layers"][0]["digest"]
            self._kept[name, tag] = b"".join(self._http.stream(self._at(name, f"blobs/{layer}")))
        return self._kept[name, tag]


def _tag(digest: str) -> str:
    return digest.replace(":", "-")


def _digest_of(artifact: Json) -> str | None:
    """A version's digest: that of its layer manifest.json."""
    for layer in artifact.get("layers", ()):
        if layer.get("annotations", {}).get(PATH) == bundles.MANIFEST:
            return str(layer["digest"])
    return None


def _layer(file: Entry) -> Json:
    return {
        "mediaType": media_type(file.path),
        "digest": f"sha256:{file.sha256}",
        "size": file.size,
        "annotations": {PATH: file.path, TITLE: file.path},
    }


def media_type(path: str) -> str:
    """What a file of a bundle is in the CNCF model format."""
    name = PurePosixPath(path)
    if name.suffix in (".safetensors", ".onnx", ".data", ".gguf"):
        return WEIGHT
    beside = len(name.parts) == 1 or name.parts[0] == "engine"
    return WEIGHT_CONFIG if beside and name.suffix in (".json", ".jinja", ".model", ".txt", ".yaml") else DOC
