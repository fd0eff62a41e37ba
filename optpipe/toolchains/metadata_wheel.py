"""A wheel of metadata alone: makes a distribution's name known beside another that carries its code."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from pathlib import Path

EPOCH = (1980, 1, 1, 0, 0, 0)


def write_metadata_wheel(folder: Path, name: str, version: str, *, requires: str) -> Path:
    """Write `name`-`version`-py3-none-any.whl of three metadata files; the same bytes each time."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Dist: {requires}\n"
    files = {
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: optpipe\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{path},sha256={_hash(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path, EPOCH), text)
    return wheel


def _hash(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
