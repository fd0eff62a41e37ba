"""The files beside a served model: flat settings as YAML that needs no library to read, and variables."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from optpipe.records import Json
from optpipe.rundir import PLACE


def yaml_text(flat: Json, notes: Sequence[str] = ()) -> str:
    """The file: `notes` as comments, one `key: value` a line; strings, lists and maps as JSON, which is YAML."""
    lines = [f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in flat.items()]
    return "".join(f"# {note}\n" for note in notes) + ("".join(lines) or "{}\n")


def read_yaml(text: str) -> Json:
    """What `yaml_text` wrote, read by the standard library alone."""
    lines = (line for line in text.splitlines() if line and line != "{}" and not line.startswith("#"))
    pairs = (line.partition(": ") for line in lines)
    return {key: json.loads(value) for key, _, value in pairs}


def env_text(environment: Mapping[str, Any]) -> str:
    """The variables beside the file: one NAME=value a line, as shells, containers and systemd read them."""
    return "".join(f"{name}={shlex.quote(value)}\n" for name, value in sorted(elsewhere(environment).items()))


def elsewhere(environment: Mapping[str, Any]) -> dict[str, str]:
    """The variables that another machine wants too: none that names a folder which optpipe keeps compiled code in."""
    return {name: str(value) for name, value in environment.items() if value != PLACE}
