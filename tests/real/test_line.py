"""One line through the real llm-compressor, the real vLLM and the real AIPerf, from a folder to a served answer."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import psutil
import pytest

from optpipe.backends.executors.engine_run import can_bind, free_port
from tests.real.conftest import optpipe

pytestmark = pytest.mark.real

RECIPE = """\
version: 1
name: cut
model: {{source: {model}}}
checkpoints:
  int8: {{method: int8}}
targets:
  vllm: {{engine: vllm, max_model_len: 384, kv_cache_memory_bytes: 268435456}}
texts:
  python: {{source: python-docs}}
# A model cut to three layers writes no sense, so its quality gates are wide; everything else is as ever.
gates:
  {{perplexity_increase_pct: 60, kl_divergence: 2, top1_agreement: 0.2,
   parity_factor: 20, parity_mean_ceiling: 1, parity_p99_ceiling: 5}}
load: {{scenario: steady, concurrency: 2, input_tokens: 128, output_tokens: 160, requests: 24}}
slo: {{ttft_ms: {{p90: 5000}}, tpot_ms: {{p90: 1000}}}}
tune: {{trials: 1}}
publish: [{{registry: folder, promote: champion}}]
keep: all
"""


@pytest.fixture(scope="module")
def built(cut3: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a finished build, and what `build --json` said."""
    folder = tmp_path_factory.mktemp("line")
    (folder / "recipe.yaml").write_text(RECIPE.format(model=cut3), encoding="utf-8")
    done = optpipe("build", "recipe.yaml", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr[-4000:] + done.stdout[-2000:]
    return folder, json.loads(done.stdout)


def test_a_folder_becomes_a_published_version(built: tuple[Path, dict[str, Any]]) -> None:
    folder, said = built
    assert said["verdict"] == "published"
    assert set(said["candidates"]) == {"base@vllm", "int8@vllm"}
    for candidate in said["candidates"].values():
        assert candidate["status"] == "passed", candidate["reasons"]
        assert candidate["perplexity"]["python"]["n_units"] >= 30
        assert candidate["output_tokens_per_s"]["value"] > 0
        assert candidate["ttft_ms"]["p50"] > 0 and candidate["ttft_ms"]["p90"] is None
    assert said["candidates"]["int8@vllm"]["bits_per_weight"] < 9
    assert said["candidates"]["int8@vllm"]["bytes"] < said["candidates"]["base@vllm"]["bytes"]
    assert (folder / "artifacts" / "latest" / "report.html").is_file()


def test_the_same_again_runs_no_job(built: tuple[Path, dict[str, Any]]) -> None:
    folder, said = built
    began = time.monotonic()
    again = json.loads(optpipe("build", "recipe.yaml", "--json", cwd=folder).stdout)
    assert again["jobs"]["run"] == 0
    assert again["digest"] == said["digest"]
    assert time.monotonic() - began < 60  # a hang, not a speed: benchmarks measure speed


def test_a_changed_byte_is_named(built: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = built
    assert optpipe("pull", "cut@champion", str(tmp_path / "copy"), cwd=folder).returncode == 0
    assert optpipe("verify", str(tmp_path / "copy"), cwd=folder).returncode == 0
    victim = tmp_path / "copy" / "tokenizer.json"
    victim.chmod(0o644)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    bad = optpipe("verify", str(tmp_path / "copy"), cwd=folder)
    assert bad.returncode != 0 and "tokenizer.json" in bad.stderr + bad.stdout


def test_serve_answers_and_leaves_nothing(built: tuple[Path, dict[str, Any]]) -> None:
    folder, _ = built
    port, before = free_port(), shared_memory()
    command = [sys.executable, "-m", "optpipe", "serve", "cut@champion", "--port", str(port)]
    server = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
    try:
        assert completion(server, port, "The capital of France is")
        below = psutil.Process(server.pid).children(recursive=True)
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)
    assert server.returncode == 0
    assert len(below) >= 2
    assert not [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
    assert can_bind(port)
    assert shared_memory() <= before


def completion(server: subprocess.Popen[str], port: int, prompt: str) -> str:
    body = json.dumps({"model": "cut", "prompt": prompt, "max_tokens": 8, "temperature": 0}).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        assert server.poll() is None, server.stderr and server.stderr.read()
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                choice = json.load(answer)["choices"][0]
                assert choice["finish_reason"] in ("length", "stop")
                return str(choice["text"])
        except OSError:
            time.sleep(1)
    raise AssertionError("the engine did not answer within 300 s")


def shared_memory() -> set[str]:
    """What lies in shared memory, but for what the fakes of another test run put there."""
    return {path.name for path in Path("/dev/shm").iterdir() if not path.name.startswith("optpipe-fake-")}
