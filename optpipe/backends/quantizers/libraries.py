"""The libraries that quantize, by the name that a recipe gives them; only those that can be run are listed.

Each is one module that imports nothing heavy: its schemes (frozen dataclasses with `library` and `method`),
what is wrong with their values, what they can't be made of, and the body of its jobs.
"""

from __future__ import annotations

from typing import Any, Protocol

from optpipe.backends.quantizers import autoawq, autogptq, gptqmodel, llmcompressor, modelopt
from optpipe.errors import Problem

DEFAULT = "llmcompressor"


class Library(Protocol):
    """What every such module has, beside `REVISION` and `run(options, work)` for the worker."""

    JOB: str
    """The kind of its jobs in `worker.BODIES`."""
    TOOLCHAIN: str
    """The toolchain that they run in, installed when a recipe asks for the library."""

    def validate(self, scheme: Any) -> tuple[Problem, ...]:
        """What is wrong with a scheme's values; `place` is the field."""

    def unmapped(self, scheme: Any, architecture: str) -> str | None:
        """Why a scheme can't be made of this architecture."""


LIBRARIES: dict[str, Library] = {
    "llmcompressor": llmcompressor,
    "gptqmodel": gptqmodel,
    "modelopt": modelopt,
    "autogptq": autogptq,
    "autoawq": autoawq,
}
