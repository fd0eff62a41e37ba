"""The engines, by the word after `engine:` in a recipe. Adding one: a module that has what `Engine` lists, and
its name in `Target` and `ENGINES` here (docs/adding-an-engine.md walks through it).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from optpipe.backends.engines import onnxruntime, tensorrt_llm, vllm
from optpipe.errors import Problem
from optpipe.records import Artifact, Compiling, EngineSpec, Hardware, Json, Tool
from optpipe.toolchains import Toolchain

Target = vllm.Vllm | onnxruntime.OnnxRuntime | tensorrt_llm.TensorRtLlm
"""Every engine's options in a recipe: one class per engine, told apart by `engine`."""


class Engine(Protocol):
    """What the line asks of an engine's module; `target` is the module's own class of `Target`."""

    PACKAGES: tuple[str, ...]
    """Distributions, the first that is installed says the engine's version."""
    NOTES: tuple[str, ...]
    """What readers of its figures must know; plans and reports say it."""
    OFFLINE: Tool | None
    """Its own benchmark without a server, where it has one."""

    def toolchain(self, hardware: Hardware) -> str:
        """The name of the toolchain that compiles and serves on this hardware."""

    def problems(self, target: Any, place: str, managed: bool) -> tuple[Problem, ...]:
        """What is wrong with a target whatever the model is; `managed`: its toolchain is optpipe's own lock."""

    def refused(self, target: Any, place: str, chain: Toolchain, hardware: Hardware) -> tuple[Problem, ...]:
        """What the engine in a toolchain of the user's own does not take of the target."""

    def here(
        self, target: Any, hardware: Hardware, release: str | None
    ) -> Iterator[tuple[str, str, str | None, str]]:
        """(check, what is looked at, reason against it or None, nearest that works) of this machine; `release`: of an
        engine that optpipe does not install, where it was found."""

    def settled(self, target: Any, chain: Toolchain) -> Any:
        """The target as the release that was found decides it."""

    def compiling(self, target: Any, scheme: Json | None, hardware: Hardware) -> Compiling:
        """What is built before it serves a checkpoint of this scheme; None is the base."""

    def spec(
        self, title: str, target: Any, model: Artifact, settings: Mapping[str, Any], hardware: Hardware, threads: int
    ) -> EngineSpec:
        """Everything that a session needs to serve `model` so."""

    def argv(self, model: str, served_name: str) -> tuple[str, ...]:
        """The command after the toolchain's python, with {config}, {host} and {port} to be filled in."""

    def flags(self, settings: Mapping[str, Any]) -> Json:
        """Settings as its configuration file wants them."""

    def devices(self, flat: Mapping[str, Any]) -> int:
        """GPUs that one engine of this configuration takes."""

    def search_space(self, hardware: Hardware, widths: Sequence[int]) -> dict[str, tuple[Any, ...]]:
        """Settings that do not change the model's numbers, with their choices beside the default; `widths`: the
        tensor parallelism that the model can have here beside the target's own."""

    def promising(self, hardware: Hardware) -> tuple[Json, ...]:
        """Settings that are worth a try before a search knows anything."""

    def infeasible(self, settings: Mapping[str, Any], max_model_len: int) -> str | None:
        """Why the engine would refuse these settings together, or None."""


ENGINES: dict[str, Engine] = {"vllm": vllm, "onnxruntime": onnxruntime, "tensorrt_llm": tensorrt_llm}

FILES = {"tensorrt_llm": "trtllm"}
"""Names of configurations that are not their engine's."""


def file_of(name: str) -> str:
    """The engine's configuration in a bundle."""
    return f"engine/{FILES.get(name, name)}.yaml"


def version(engine: Engine, versions: Mapping[str, str]) -> str:
    """The engine's own version among what its toolchain holds; an image says its digest."""
    named = (versions[name] for name in (*engine.PACKAGES, "image") if name in versions)
    return next(named, "unknown")
