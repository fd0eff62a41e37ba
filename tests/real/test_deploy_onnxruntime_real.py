"""`optpipe serve` starts a compiled version by the words that `deploy` writes, answers, and ends with SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe import toolchains
from optpipe.backends.engines import ENGINES, version
from optpipe.deploy import Wish, manifests, read
from optpipe.model.hardware import this_machine
from optpipe.records import Bundle, Compiled, bound_to
from optpipe.stages.package import Engine, package
from tests.real.bodies import run_body
from tests.unit.test_deploy import free_port
from tests.unit.test_package import begun, records

pytestmark = pytest.mark.real
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory, cut3: Path) -> Bundle:
    """The first three layers of a real model, compiled to a graph and packaged as if it had won."""
    run = begun(tmp_path_factory.mktemp("deploy") / "artifacts", "imaginary-135m")
    folder = run.store.root / "jobs" / "graph"
    made = run_body("compile-onnxruntime", folder, {"model": cut3}, {"precision": "fp32"}, toolchain="onnxruntime-cpu")
    assert "failure" not in made, made
    release = version(ENGINES["onnxruntime"], toolchains.get("onnxruntime-cpu").versions)
    here = bound_to("onnxruntime", release, replace(this_machine(), gpus=0))
    about = ("sq-w8a8@vllm", "onnxruntime", release, True, "made for a test", folder / "files")
    limits = {"max_model_len": 256}
    graph = Compiled(*about, "sha256:" + "c0" * 32, 3, "onnxruntime-cpu", "sha256:" + "7e" * 32, here, limits)
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": "{source}"}
    engine = Engine("onnxruntime", release, {"max-num-seqs": 2, "max-model-len": 256, "threads": 1}, environment)
    return package(run, replace(records(run), compiled=(graph,)), engine)


def asked(port: int, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode() if body else None)
    with opener.open(request, timeout=60) as answer:
        return dict(json.load(answer))


def test_the_containers_words_serve_the_version(bundle: Bundle, tmp_path: Path) -> None:
    project = yaml.safe_load(manifests("compose", read(bundle.path, bundle.digest, Wish("x")))["compose.yaml"])
    words, port = project["services"]["engine"]["entrypoint"], free_port()
    assert words[0] == "optpipe"
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "imaginary-135m").symlink_to(bundle.path)
    moved = {"0.0.0.0": "127.0.0.1", "8000": str(port)}
    argv = [moved.get(word, word) if not word.startswith("/model/") else f"{tmp_path}{word}" for word in words[1:]]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    log = tmp_path / "log"
    with log.open("wb") as out:  # what is packaged here nobody has signed
        whole = [sys.executable, "-m", "optpipe", *argv, "--allow-unsigned"]
        server = subprocess.Popen(whole, env=env, cwd=tmp_path, stdout=out, stderr=out)
    try:
        end = time.monotonic() + 180
        while "ready after" not in log.read_text():
            assert server.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        assert asked(port, "/v1/models")["data"][0]["id"] == "imaginary-135m"
        body = {"model": "imaginary-135m", "prompt": "The sun", "max_tokens": 4, "temperature": 0}
        assert asked(port, "/v1/completions", body)["usage"]["completion_tokens"] == 4
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0 and "stopping" in log.read_text()
    finally:
        server.kill()
    with pytest.raises(OSError, match="refused"):
        asked(port, "/health")
