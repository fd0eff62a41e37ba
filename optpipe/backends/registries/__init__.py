"""Registries keep immutable versions by digest, and aliases that move.

Another registry is one file (its settings, and a Storage), a line in `storage_of`, one in `settings_of` and one in
the recipe's schema.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from optpipe.backends.registries.folder import Folder, FolderStorage
from optpipe.backends.registries.huggingface import HuggingFace, HuggingFaceStorage
from optpipe.backends.registries.mlflow import Mlflow, MlflowStorage
from optpipe.backends.registries.oci import Oci, OciStorage
from optpipe.backends.registries.references import Reference, Version
from optpipe.backends.registries.registry import Progress, Registry
from optpipe.backends.registries.s3 import S3, S3Storage
from optpipe.backends.registries.storage import Storage
from optpipe.errors import InputError, PublishFailed, did_you_mean
from optpipe.proofs import Notary

Settings = Folder | Oci | Mlflow | S3 | HuggingFace
SCHEMES = ("oci", "oci+http", "mlflow+http", "mlflow+https", "s3", "s3+http", "s3+https", "hf")


def connect(
    settings: Settings, default: Path, *, notary: Notary | None = None, progress: Progress | None = None
) -> Registry:
    """The registry of a recipe's `publish:` entry; `default` is the folder where it names none."""
    return Registry(storage_of(settings, default), notary, progress)


def at(where: str, *, notary: Notary | None = None, progress: Progress | None = None) -> Registry:
    """The registry that a folder or URL names, as the commands' `--registry` takes it."""
    return connect(settings_of(where), Path(where), notary=notary, progress=progress)


def settings_of(where: str) -> Settings:
    """What a folder or a URL says: `oci://host/path`, `mlflow+https://host`, `s3://bucket/prefix`, `hf://owner`.

    `s3+https://host/bucket/prefix` is a server that is not Amazon's.
    """
    if "://" not in where:
        return Folder(path=where)
    parts = urlsplit(where)
    if "@" in parts.netloc:
        raise InputError("a URL with a user or password in it", place="registry", hint="set them in the environment")
    match parts.scheme:
        case "oci":
            return Oci(url=where.removeprefix("oci://"))
        case "oci+http":
            return Oci(url=where.removeprefix("oci+"))
        case "mlflow+http" | "mlflow+https":
            return Mlflow(uri=where.removeprefix("mlflow+"))
        case "s3":
            return S3(bucket=parts.netloc, prefix=parts.path.strip("/"))
        case "s3+http" | "s3+https":
            bucket, _, prefix = parts.path.strip("/").partition("/")
            return S3(bucket=bucket, prefix=prefix, endpoint=f"{parts.scheme.removeprefix('s3+')}://{parts.netloc}")
        case "hf":
            return HuggingFace(owner=parts.netloc)
    raise InputError(f"{where!r} is no registry that is known here", place="registry",
                     hint=did_you_mean(parts.scheme, list(SCHEMES)))  # fmt: skip


def storage_of(settings: Settings, default: Path) -> Storage:
    match settings:
        case Oci():
            return OciStorage(settings)
        case Mlflow():
            return MlflowStorage(settings)
        case S3():
            return S3Storage(settings)
        case HuggingFace():
            return HuggingFaceStorage(settings)
        case Folder(path=path):
            root = Path(path).expanduser() if path else default
            if root.exists() and not root.is_dir():
                raise PublishFailed(f"{root} is not a folder", place="publish.path", hint="name a folder, there or not")
            return FolderStorage(root)


__all__ = ["Folder", "Reference", "Registry", "Settings", "Version", "at", "connect"]
