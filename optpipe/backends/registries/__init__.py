"""Registries keep immutable versions by digest, and aliases that move.

Another registry is one file (its settings, and a Storage), a line in `storage_of`, one in `settings_of` and one in
the recipe's schema.
"""

from __future__ import annotations

from pathlib import Path

from optpipe.backends.registries import places
from optpipe.backends.registries.folder import Folder, FolderStorage
from optpipe.backends.registries.huggingface import HuggingFace, HuggingFaceStorage
from optpipe.backends.registries.mlflow import Mlflow, MlflowStorage
from optpipe.backends.registries.oci import Oci, OciStorage
from optpipe.backends.registries.references import Reference, Version
from optpipe.backends.registries.registry import Progress, Registry
from optpipe.backends.registries.s3 import S3, S3Storage
from optpipe.backends.registries.storage import Storage
from optpipe.errors import InputError, did_you_mean
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
        if where.partition(":")[0].lower() in SCHEMES and not Path(where).exists():
            raise InputError(f"{where!r} lacks a slash", place="registry", hint="write KIND://..., e.g. oci://host/path")
        return Folder(path=where)
    scheme, _, rest = where.partition("://")
    scheme, parts = scheme.lower(), places.split(where)
    plain = scheme.partition("+")[2]
    match scheme:
        case "oci":
            return Oci(url=rest)
        case "oci+http":
            return Oci(url=f"http://{rest}")
        case "mlflow+http" | "mlflow+https":
            return Mlflow(uri=f"{plain}://{rest}")
        case "s3":
            return S3(bucket=parts.netloc, prefix=parts.path.strip("/"))
        case "s3+http" | "s3+https":
            bucket, _, prefix = parts.path.strip("/").partition("/")
            return S3(bucket=bucket, prefix=prefix, endpoint=f"{plain}://{parts.netloc}")
        case "hf":
            return HuggingFace(owner=rest.rstrip("/"))
    raise InputError(f"{where!r} is no registry that is known here", place="registry", hint=_kinds(scheme))


def _kinds(scheme: str) -> str:
    if scheme in ("http", "https"):
        return f"say which kind it is: oci://HOST/PATH, mlflow+{scheme}://HOST or s3+{scheme}://HOST/BUCKET"
    return did_you_mean(scheme, list(SCHEMES))


def missing_folder(where: str) -> bool:
    """`where` names a folder, and it is not there."""
    return isinstance(settings_of(where), Folder) and not Path(where).is_dir()


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
                raise InputError(f"{root} is not a folder", place="publish.path", hint="name a folder, there or not")
            return FolderStorage(root)


__all__ = ["Folder", "Reference", "Registry", "Settings", "Version", "at", "connect"]
