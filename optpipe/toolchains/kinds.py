"""The kinds of toolchain a recipe can name, and what each becomes when ready to run. Standard library only.

In a recipe:

    toolchains:
      vllm: {kind: interpreter, python: ~/vendor/bin/python}
      quantize: {kind: image, command: [docker, run, --rm, "quantize@sha256:..."]}
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal


@dataclass(frozen=True)
class Managed:
    """A lock of optpipe's own that is installed on first use; `auto` takes CUDA where a GPU is visible."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}
    kind: Literal["managed"] = "managed"
    """Which kind."""
    accelerator: Literal["auto", "cpu", "cuda"] = "auto"
    """Which of its locks."""


@dataclass(frozen=True)
class Interpreter:
    """A Python (3.10 on) that already has the library, such as a vendor's virtual environment."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}
    python: str
    """The interpreter's path."""
    kind: Literal["interpreter"] = "interpreter"
    """Which kind."""


@dataclass(frozen=True)
class Image:
    """A container image by digest behind a command prefix that ends with the image.

    The prefix must mount the artifacts folder and OPTPIPE_HOME at the same paths, and share the
    network with the host (`--network host`) where it serves an engine.
    """

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}
    command: tuple[str, ...]
    """The prefix, word by word."""
    kind: Literal["image"] = "image"
    """Which kind."""
    python: str = "python3"
    """The Python inside."""


@dataclass(frozen=True)
class Endpoint:
    """A server that already runs and speaks the OpenAI API: it can be benchmarked, nothing else."""

    __pydantic_config__: ClassVar[dict[str, object]] = {"extra": "forbid", "use_attribute_docstrings": True}
    url: str
    """Its address, without /v1."""
    kind: Literal["endpoint"] = "endpoint"
    """Which kind."""


Kind = Managed | Interpreter | Image | Endpoint


@dataclass(frozen=True)
class Toolchain:
    """A toolchain that is there: `python` is the argv prefix that stands for the word "python".

    `fingerprint` is the SHA-256 of what is really installed, or an image's digest; `versions` names it;
    `origin` says in words where it comes from; `env` holds what each of its processes needs.
    """

    name: str
    kind: str
    python: tuple[str, ...]
    env: dict[str, str]
    fingerprint: str
    versions: dict[str, str] = field(default_factory=dict)
    origin: str = ""
    url: str | None = None
    lock: Path | None = None
    """The lock that a managed one was installed from."""

    def environment(self, base: Mapping[str, str] = os.environ) -> dict[str, str]:
        """`base` with this toolchain's variables, and its scripts (vllm, ninja) first on PATH."""
        merged = {**base, **self.env}
        if self.python and self.kind in ("managed", "interpreter"):
            merged["PATH"] = os.pathsep.join([str(Path(self.python[0]).parent), base.get("PATH", os.defpath)])
        return merged

    def argv(self, *arguments: str, env: Mapping[str, str] | None = None) -> tuple[str, ...]:
        """The command for `python ARGUMENTS`; in an image `env` travels on the command line by `env`(1)."""
        if self.kind != "image":
            return (*self.python, *arguments)
        variables = tuple(f"{key}={value}" for key, value in {**self.env, **(env or {})}.items())
        return (*self.python[:-1], "env", *variables, self.python[-1], *arguments)
