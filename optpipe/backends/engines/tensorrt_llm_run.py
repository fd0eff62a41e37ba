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
from dataclasses import dataclass
from pathlib import Path

from optpipe.toolchains.trtllm import Wrong, builds, command, release


def engine_in(model: Path) -> bool:
    """Whether a folder holds an engine of `trtllm-build`."""
    return any(model.glob("rank*.engine"))


@dataclass(frozen=True)
class Order:
    """What is to be served, where, and as what."""

    model: str
    config: str
    host: str
    port: str
    name: str


def words(version: str, order: Order, *, built: bool, tokenizer: str | None = None) -> list[str]:
    """The words of `trtllm-serve` as a release knows them; up to 1.2 a model is called as its folder is."""
    old = builds(version)
    backend = ["--backend", "tensorrt" if built else "pytorch"]
    file = ["--extra_llm_api_options" if old else "--config", order.config]
    named = ["--tokenizer", tokenizer or order.model] if old else ["--served_model_name", order.name]
    return [order.model, *backend, *file, "--host", order.host, "--port", order.port, *named]


def serve(said: argparse.Namespace) -> list[str]:
    """The command line of `trtllm-serve`."""
    version = release()
    model = Path(said.model).absolute()
    built, tokenizer = engine_in(model), str(model)
    if built and not builds(version):
        raise Wrong(
            f"{model.name} holds an engine, and TensorRT-LLM {version} runs none: engines ended with 1.3.0rc20. "
            "Build the recipe anew: from 1.3 on the checkpoint itself is served"
        )
    if builds(version):
        here = Path.cwd() if os.access(Path.cwd(), os.W_OK) else None  # the session's folder, which goes with it
        link = Path(tempfile.mkdtemp(prefix="served-", dir=here)) / said.served_model_name
        link.symlink_to(model)
        model = link
    order = Order(str(model), said.config, said.host, said.port, said.served_model_name)
    return [command("trtllm-serve", version), *words(version, order, built=built, tokenizer=tokenizer)]


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
