"""Which release an engine that optpipe installs none of has here, found without starting it: what a plan goes by."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from optpipe.errors import OptpipeError
from optpipe.toolchains import Image, Kind, get

CONTAINERS = ("docker", "podman")
VARIABLES = {"tensorrt-llm": "TRT_LLM_VERSION"}
"""What the engine's own images say in their environment."""
TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Release:
    """The version, None where it is not known; and in words where it is from, or why it is not known."""

    version: str | None
    told: str


def release_of(name: str, package: str, settings: Mapping[str, Kind]) -> Release:
    """By the package's metadata in a toolchain's Python; of an image by what it says of itself, where it is here."""
    try:
        chain = get(name, settings)
    except OptpipeError as error:
        return Release(None, error.message)
    chosen = settings.get(name)
    if isinstance(chosen, Image):
        return of_image(chosen, package)
    if package in chain.versions:
        return Release(chain.versions[package], f"in {chain.origin}")
    return Release(None, f"{chain.origin} has no {package} installed")


def of_image(image: Image, package: str) -> Release:
    """By a variable that the image sets; it is looked at where it lies, never fetched or run."""
    program, place = image.command[0], image.command[-1]
    if Path(program).name not in CONTAINERS:
        return Release(None, f"{Path(program).name} is not asked what is in {place}")
    argv = [program, "image", "inspect", "--format", "{{json .Config.Env}}", place]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        told = json.loads(done.stdout) or []
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        said = str(getattr(error, "stderr", None) or error).strip().splitlines() or ["no output"]
        return Release(None, f"{Path(program).name} does not show {place}: {said[-1]}")
    variables = dict(entry.partition("=")[::2] for entry in told)
    version = variables.get(VARIABLES[package], "")
    if not re.match(r"\d+\.\d+", version):
        return Release(None, f"{place} does not say it by {VARIABLES[package]}")
    return Release(version, f"in {place}")
