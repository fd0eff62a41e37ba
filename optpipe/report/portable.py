"""Records without anything of the machine that they were made on."""

from __future__ import annotations

import platform
import re
from pathlib import Path
from typing import Any

from optpipe.records import to_json

ABSOLUTE = re.compile(r"(?<![\w.:/<>-])/(?!v\d)[\w.][^\s:'\",;)\]]*")
"""An absolute path in a text; not the `//` of a URL, not an API's `/v1/...`."""


def portable(record: Any, artifacts: Path) -> Any:
    """JSON without absolute paths and this host's name: inside the artifacts relative, else the last part."""
    return _portable(to_json(record), f"{artifacts}/", platform.node())


def _portable(value: Any, artifacts: str, host: str) -> Any:
    if isinstance(value, dict):
        return {key: _portable(item, artifacts, host) for key, item in value.items()}
    if isinstance(value, list):
        return [_portable(item, artifacts, host) for item in value]
    if not isinstance(value, str):
        return value
    if host and value == host:
        return "this machine"
    return ABSOLUTE.sub(_last_part, value.replace(artifacts, "artifacts/"))


def _last_part(found: re.Match[str]) -> str:
    return f"<path>/{found[0].rstrip('/').rpartition('/')[2]}"
