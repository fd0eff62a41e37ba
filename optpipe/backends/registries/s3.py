"""A registry in a bucket of S3 or of what speaks like it.

<prefix>/<name>/versions/<hex>/...             the bundle as it is; complete when its manifest.json is there
<prefix>/<name>/aliases/<alias>/000001.json    the moves of an alias
<prefix>/.conditional                          empty; tells whether the server refuses to write over it

Amazon and most others refuse a second object of one name when asked to (`If-None-Match: *`): that decides between
two who move an alias at once. A server that does not is found out, and the history decides. Credentials come from
where every AWS tool takes them: AWS_* variables, ~/.aws, the role of the machine or pod.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optpipe import bundle as bundles
from optpipe.backends.registries import places
from optpipe.backends.registries.storage import Storage
from optpipe.bundle import Entry, Manifest
from optpipe.errors import PublishFailed, Unreachable
from optpipe.rundir import CHUNK

PART = 64 << 20
"""Bytes from which on a file goes over in parts; S3 takes 5 GiB in one piece at most."""
MOST_PARTS = 9000
"""S3 takes 10,000 parts."""
TAKEN = ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")
UNKNOWN = ("NoSuchKey", "NotFound", "404")


@dataclass(frozen=True)
class S3:
    """Publish into a bucket; credentials from AWS_*, ~/.aws or the machine's role."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012

    bucket: str
    """The bucket; it must be there."""
    prefix: str = ""
    """The folder in it below which models lie."""
    endpoint: str | None = None
    """URL of a server that is not Amazon's; else AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL."""
    registry: Literal["s3"] = "s3"
    """Which kind."""
    promote: str | None = None
    """An alias to move to the new version where it beats the one that the alias means now."""


class S3Storage(Storage):
    """Objects in a bucket."""

    kind = "s3"

    def __init__(self, settings: S3) -> None:
        places.checked_part(settings.bucket, places.BUCKET, "a bucket")
        if settings.endpoint is not None:
            places.checked_url(settings.endpoint, "https://s3.example.com")
        self._bucket, self._prefix, self._endpoint = settings.bucket, settings.prefix.strip("/"), settings.endpoint
        server = f"s3+{self._endpoint}/" if self._endpoint else "s3://"
        self.where = server + "/".join(filter(None, (self._bucket, self._prefix)))

    @functools.cached_property
    def _client(self) -> Any:
        import botocore.config
        import botocore.session

        session = botocore.session.get_session()
        region = session.get_config_variable("region") or "us-east-1"
        config = botocore.config.Config(
            s3={"addressing_style": "path"} if self._elsewhere() else {},
            request_checksum_calculation="when_required",  # not every server knows Amazon's newer checksums
            response_checksum_validation="when_required",  # and every file is hashed here anyway
            connect_timeout=10,
            retries={"max_attempts": 2},
        )
        with self._explained():
            return session.create_client("s3", region_name=region, endpoint_url=self._endpoint, config=config)

    def _elsewhere(self) -> bool:
        return bool(self._endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"))

    # ------------------------------------------------------------ versions

    def names(self) -> list[str]:
        found = self._list("", delimiter="/")
        return [name for path in found if (name := path.rstrip("/")) and self.versions(name)]

    def versions(self, name: str) -> list[str]:
        objects = self._objects(f"{name}/versions/")
        ends = f"/{bundles.MANIFEST}"
        whole = [(when, path.split("/")[2]) for path, when in objects if path.endswith(ends) and path.count("/") == 3]
        return [f"sha256:{hexdigest}" for _, hexdigest in sorted(whole)]

    def manifest(self, name: str, digest: str) -> bytes | None:
        return self._get(f"{_folder(name, digest)}/{bundles.MANIFEST}")

    def size(self, name: str, digest: str, file: Entry) -> int | None:
        head = self._call("head_object", Key=self._key(f"{_folder(name, digest)}/{file.path}"), missing=UNKNOWN)
        return int(head["ContentLength"]) if head else None

    def put(self, name: str, digest: str, file: Entry, source: Path) -> None:
        key = self._key(f"{_folder(name, digest)}/{file.path}")
        with bundles.open_plain(source) as body:
            if file.size <= PART:
                self._call("put_object", Key=key, Body=body)
                self.tick(file.size)
                return
            upload = self._call("create_multipart_upload", Key=key)["UploadId"]
            try:
                parts = self._parts(key, upload, body, max(PART, -(-file.size // MOST_PARTS)))
                self._call("complete_multipart_upload", Key=key, UploadId=upload, MultipartUpload={"Parts": parts})
            except BaseException:
                with contextlib.suppress(PublishFailed):
                    self._call("abort_multipart_upload", Key=key, UploadId=upload)
                raise

    def _parts(self, key: str, upload: str, body: Any, size: int) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        while piece := body.read(size):
            number = len(parts) + 1
            sent = self._call("upload_part", Key=key, UploadId=upload, PartNumber=number, Body=piece)
            parts.append({"ETag": sent["ETag"], "PartNumber": number})
            self.tick(len(piece))
        return parts

    def read(self, name: str, digest: str, file: Entry) -> Iterator[bytes]:
        found = self._call("get_object", Key=self._key(f"{_folder(name, digest)}/{file.path}"))
        with self._explained():
            yield from found["Body"].iter_chunks(CHUNK)

    def seal(self, name: str, digest: str, manifest: Manifest) -> None:
        self._put(f"{_folder(name, digest)}/{bundles.MANIFEST}", manifest.encode())

    def signature(self, name: str, digest: str) -> bytes | None:
        return self._get(f"{_folder(name, digest)}/{bundles.SIGNATURE}")

    def put_signature(self, name: str, digest: str, signature: bytes) -> None:
        self._put(f"{_folder(name, digest)}/{bundles.SIGNATURE}", signature)

    # ------------------------------------------------------------ aliases

    @functools.cached_property
    def _refuses(self) -> bool:
        """Asked twice to create one object, the server refuses the second time (or, later, at once)."""
        return any(not self._create(".conditional", b"") for _ in range(2))

    @property
    def conditional(self) -> bool:
        return self._refuses

    def moves(self, name: str) -> list[bytes]:
        found = (self._get(path) for path in self._list(f"{name}/aliases/"))
        return [data for data in found if data is not None]

    def add_move(self, name: str, alias: str, sequence: int, data: bytes) -> bool:
        path = f"{name}/aliases/{alias}/{sequence:06d}"
        if self.conditional:
            return self._create(f"{path}.json", data)
        self._put(f"{path}.{hashlib.sha256(data).hexdigest()[:12]}.json", data)
        return True

    # ------------------------------------------------------------ calls

    def _key(self, path: str) -> str:
        return f"{self._prefix}/{path}" if self._prefix else path

    def _get(self, path: str) -> bytes | None:
        found = self._call("get_object", Key=self._key(path), missing=UNKNOWN)
        with self._explained():
            return bytes(found["Body"].read()) if found else None

    def _put(self, path: str, data: bytes) -> None:
        self._call("put_object", Key=self._key(path), Body=data)

    def _create(self, path: str, data: bytes) -> bool:
        """False where an object of this name is there, and the server says so."""
        return self._call("put_object", Key=self._key(path), Body=data, IfNoneMatch="*", missing=TAKEN) is not None

    def _list(self, path: str, delimiter: str = "") -> list[str]:
        """Paths below `path`, or, up to a delimiter, the folders there."""
        if not delimiter:
            return [found for found, _ in self._objects(path)]
        pages = self._pages(path, delimiter)
        start = len(self._key(""))
        return [found["Prefix"][start:] for page in pages for found in page.get("CommonPrefixes", ())]

    def _objects(self, path: str) -> list[tuple[str, Any]]:
        start = len(self._key(""))
        pages = self._pages(path, "")
        return [(found["Key"][start:], found["LastModified"]) for page in pages for found in page.get("Contents", ())]

    def _pages(self, path: str, delimiter: str) -> list[Any]:
        pages = self._client.get_paginator("list_objects_v2")
        with self._explained():
            return list(pages.paginate(Bucket=self._bucket, Prefix=self._key(path), Delimiter=delimiter))

    def _call(self, what: str, *, missing: tuple[str, ...] = (), **words: Any) -> Any:
        """The answer; None where the server's error is one of `missing`."""
        from botocore.exceptions import ClientError

        with self._explained():
            try:
                return getattr(self._client, what)(Bucket=self._bucket, **words)
            except ClientError as error:
                if error.response.get("Error", {}).get("Code") in missing:
                    return None
                raise

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What the client raises, as one error that says what to do."""
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
            EndpointConnectionError,
            HTTPClientError,
            NoCredentialsError,
        )

        again = "nothing half can be seen there; the next try goes on"
        try:
            yield
        except NoCredentialsError:
            raise PublishFailed(
                "there are no credentials", place=self.where, hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
            ) from None
        except ClientError as error:
            said = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            denied = status in (401, 403)
            hint = "check the AWS credentials that are set, and what they may do" if denied else again
            message = f"{error.operation_name} is answered {status}: {said.get('Code')} {said.get('Message', '')}"
            raise PublishFailed(message.strip(), place=self.where, hint=hint) from None
        except (EndpointConnectionError, HTTPClientError) as error:
            hint = f"check the endpoint and the network; {again}"
            raise Unreachable(str(error).partition("?")[0].replace('"', ""), place=self.where, hint=hint) from None
        except BotoCoreError as error:
            raise PublishFailed(str(error), place=self.where, hint=again) from None


def _folder(name: str, digest: str) -> str:
    return f"{name}/versions/{digest.removeprefix('sha256:')}"
