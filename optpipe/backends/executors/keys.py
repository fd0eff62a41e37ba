"""What a job's result depends on, and the SHA-256 of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from optpipe.records import EngineSpec, Hardware, Job, Json
from optpipe.toolchains import Toolchain

FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx_vnni", "amx_tile", "amx_bf16", "amx_int8")
ARM_FLAGS = ("asimddp", "bf16", "i8mm", "sve", "sve2")
ENGINE_VARIABLES = ("VLLM_", "TRTLLM_", "NCCL_", "TORCH", "CUDA_", "OMP_", "KMP_", "MKL_", "ONEDNN_", "ATEN_")
NOT_IN_KEYS = frozenset({"CUDA_VISIBLE_DEVICES", "CUDA_HOME", "OMP_NUM_THREADS", "MKL_NUM_THREADS"})


def instruction_set() -> str:
    """The processor's features that choose other kernels, and so other last bits: `avx2 avx512f ...`."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return os.uname().machine
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    present = set(next(lines, "").partition(":")[2].split())
    return " ".join([os.uname().machine, *(flag for flag in FLAGS + ARM_FLAGS if flag in present)])


class Keys:
    """Makes keys for one machine; `revision` gives the REVISION of a kind's body."""

    def __init__(self, hardware: Hardware, revision: Callable[[str], int]) -> None:
        self._hardware = hardware
        self._revision = revision
        self._instructions = instruction_set()

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


def inherited() -> dict[str, str]:
    """Variables of the caller's that reach into an engine and can change what it does."""
    names = (n for n in sorted(os.environ) if n.startswith(ENGINE_VARIABLES) and n not in NOT_IN_KEYS)
    return {name: os.environ[name] for name in names}
