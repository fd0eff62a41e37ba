"""Which TensorRT-LLM an environment has, what that release can do, and where its commands are. Standard library only.

Up to 1.2 engines are built; 1.3.0rc20 is the last release that does, and from then on checkpoints are served.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

PACKAGE = "tensorrt-llm"
NEW = (1, 3)
"""The first release without engines; its commands take `--config`, and `trtllm-serve` a served name."""


class Wrong(Exception):
    """What a program in the toolchain ends with, in words."""


def release() -> str:
    """The release that is installed for this Python."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(PACKAGE)
    except PackageNotFoundError:
        raise Wrong(f"{sys.executable} has no {PACKAGE} installed") from None


def builds(version: str) -> bool:
    """Whether a release has `trtllm-build`: `1.2.1` does, `1.3.0rc20` counts as 1.3 and is not asked to."""
    major, minor, *_ = (*version.split("."), "0")
    return (int(major), int(minor)) < NEW


def no_build(version: str) -> str:
    """What took the place of engines, for those who look for `trtllm-build`."""
    return (
        f"TensorRT-LLM {version} builds no engines: trtllm-build ended with 1.3.0rc20. From 1.3 on `trtllm-serve` "
        "loads the checkpoint as it is, with a YAML in place of build options, and tunes itself when it starts"
    )


def command(name: str, version: str) -> str:
    """A command beside this Python, else on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which(name)
    if found is None:
        raise Wrong(f"TensorRT-LLM {version} is installed for {sys.executable}, but there is no {name} beside it")
    return found
