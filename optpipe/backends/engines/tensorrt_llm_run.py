"""Finds TensorRT-LLM's commands in its own environment and starts them as its release wants them.

python -m optpipe.backends.engines.tensorrt_llm_run serve MODEL --config FILE --host H --port P --served-model-name N

Runs in the toolchain; standard library only. The release decides what the options are called, and what lies in the
model's folder decides the backend: an engine of `trtllm-build` is served by the TensorRT backend, up to 1.2.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from optpipe.toolchains.trtllm import Wrong, builds, command, release


def engine_in(model: Path) -> bool:
    """Whether a folder holds an engine of `trtllm-build`."""
    return any(model.glob("rank*.engine"))


def serve(words: argparse.Namespace) -> list[str]:
    """The command line of `trtllm-serve`."""
    version = release()
    old = builds(version)
    model = Path(words.model).absolute()
    built = engine_in(model)
    if built and not old:
        raise Wrong(
            f"{model.name} holds an engine, and TensorRT-LLM {version} runs none: engines ended with 1.3.0rc20. "
            "Build the recipe anew: from 1.3 on the checkpoint itself is served"
        )
    named = [] if old else ["--served_model_name", words.served_model_name]
    if old:  # the model's name is that of its folder
        here = Path.cwd() if os.access(Path.cwd(), os.W_OK) else None  # the session's folder, which goes with it
        link = Path(tempfile.mkdtemp(prefix="served-", dir=here)) / words.served_model_name
        link.symlink_to(model)
        named, model = ["--tokenizer", str(model)], link
    file = ["--extra_llm_api_options" if old else "--config", words.config]
    place = ["--host", words.host, "--port", words.port]
    backend = ["--backend", "tensorrt" if built else "pytorch"]
    return [command("trtllm-serve", version), str(model), *backend, *file, *place, *named]


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tensorrt_llm_run")
    parser.add_argument("what", choices=("serve",))
    parser.add_argument("model")
    for name in ("config", "host", "port", "served-model-name"):
        parser.add_argument(f"--{name}", required=True)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    try:
        argv = serve(parsed(arguments))
    except Wrong as wrong:
        sys.stderr.write(f"optpipe: {wrong}\n")
        return 3
    sys.stderr.write(" ".join(argv) + "\n")
    sys.stderr.flush()
    os.execv(argv[0], argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
