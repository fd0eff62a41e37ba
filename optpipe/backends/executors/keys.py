"""What a job's result depends on, and the SHA-256 of it."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable

from optpipe.model.hardware import instruction_set
from optpipe.records import EngineSpec, Hardware, Job, Json
from optpipe.rundir import digest_json
from optpipe.toolchains import Toolchain

ENGINE_VARIABLES = ("VLLM_", "TRTLLM_", "NCCL_", "TORCH", "CUDA_", "OMP_", "KMP_", "MKL_", "ONEDNN_", "ATEN_")
NOT_IN_KEYS = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_HOME", "OMP_NUM_THREADS", "MKL_NUM_THREADS"})


class Keys:
    """Makes keys for one machine; `revision` gives the REVISION of a kind's body."""

    def __init__(self, hardware: Hardware, revision: Callable[[str], int]) -> None:
        self._hardware = hardware
        self._revision = revision
        self._instructions = f"{platform.machine()} {instruction_set()}"

    def parts(self, job: Job, toolchain: Toolchain, engine: Json | None = None) -> Json:
        """All that the job's result depends on, as JSON."""
        parts: Json = {
            "kind": job.kind,
            "revision": self._revision(job.kind),
            "options": job.options,
            "inputs": {name: artifact.digest for name, artifact in job.inputs.items()},
            "toolchain": toolchain.fingerprint,
            "seed": job.seed,
            "threads": job.threads,
            "instructions": self._instructions,
        }
        if engine is not None:
            parts["engine"] = engine
        if job.needs.gpus or (engine and engine["gpus"]):
            parts["gpu"] = [self._hardware.gpu, self._hardware.compute_capability]
        if job.bound_to_hardware:
            environment = engine["environment"] if engine else toolchain.env
            parts["hardware"] = {**self._bound(), "environment": {**inherited(), **environment}}
        return parts

    def _bound(self) -> Json:
        here = self._hardware
        names = ("cpu", "cores", "gpu", "gpus", "compute_capability", "driver")
        return {name: getattr(here, name) for name in names}

    def code(self, spec: EngineSpec, toolchain: Toolchain) -> str:
        """Of the code that this engine compiles here. What the engine tells apart by itself, such as the sizes that
        are tuned, is not in it."""
        serves = (spec.engine, spec.model.digest, spec.compiles)
        return code_key(serves, toolchain.fingerprint, self._hardware)

    def engine(self, spec: EngineSpec, toolchain: Toolchain) -> Json:
        """Who serves, exactly: two engines with the same identity give the same results.

        The model counts by its content and the served name not at all, so the command's words for
        them are left out.
        """
        own = {str(spec.model.path), spec.served_name}
        return {
            "engine": spec.engine,
            "toolchain": toolchain.fingerprint,
            "model": spec.model.digest,
            "config": spec.config,
            "argv": [word for word in spec.argv if word not in own],
            "environment": {**inherited(), **spec.environment},
            "gpus": spec.needs.gpus,
        }


def code_key(serves: tuple[str, str, Json | None], toolchain: str, here: Hardware) -> str:
    """SHA-256 of what code depends on that an engine compiles at its start.

    `serves`: the engine, its model's digest, options; `toolchain`: its fingerprint. Compilers write for the very
    processor (-march=native), and a driver may compile as well.
    """
    bound = {name: getattr(here, name) for name in ("cpu", "instruction_set", "gpu", "compute_capability", "driver")}
    parts = dict(zip(("engine", "model", "compiles"), serves, strict=True))
    return digest_json({**parts, "toolchain": toolchain, "hardware": bound, "environment": inherited()})


def inherited() -> dict[str, str]:
    """Variables of the caller's that reach into an engine and can change what it does."""
    names = (n for n in sorted(os.environ) if n.startswith(ENGINE_VARIABLES) and n not in NOT_IN_KEYS)
    return {name: os.environ[name] for name in names}
