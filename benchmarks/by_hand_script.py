"""The engineer's script: quantize, score, serve, load, tune, confirm and package, one after another.

    python by_hand_script.py plan.json folder

What a competent engineer writes who knows these libraries and has no optpipe: it imports nothing of it. All
candidates are served and measured, whatever their quality; nothing runs side by side. `plan.json` says what
optpipe did (candidates, token ids, loads, settings of the trials), so that both do the same work.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Json = dict[str, Any]
HOST = "127.0.0.1"
READY_S = 600.0
STEPS: list[Json] = []


def main(plan: Json, folder: Path) -> None:
    models(plan, folder)
    for name in ("base", *plan["checkpoints"]):
        with serving(plan, folder, name, plan["configs"][name]) as engine:
            canary(engine, plan)
            rows_through(engine, plan)
            load(engine, plan, name, plan["seed"])
    for number, trial in enumerate(plan["trials"], 1):
        with serving(plan, folder, trial["checkpoint"], trial["config"], trial["environment"]) as engine:
            load(engine, plan, f"trial {number}", plan["seed"])
    if final := plan["confirm"]:
        with serving(plan, folder, final["checkpoint"], final["config"], final["environment"]) as engine:
            canary(engine, plan)
            rows_through(engine, plan)
            load(engine, plan, "confirm", final["seed"])
        with step("package"):
            package(plan, folder, final)
    (folder / "steps.json").write_text(json.dumps(STEPS, indent=1))


def models(plan: Json, folder: Path) -> None:
    """All that needs torch: base, checkpoints, scores, in one process of the quantizers' environment."""
    script = Path(__file__).with_name("by_hand_models.py")
    threads = str(plan["threads"])
    environment = {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads, "HF_HUB_OFFLINE": "1"}
    with step("models: process"), (folder / "models.log").open("wb") as log:
        done = subprocess.run(
            [plan["pythons"]["quantize"], str(script), str(folder / "plan.json"), str(folder)],
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ | environment | {"TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"},
            check=True,
        )
    lines = [line for line in done.stdout.splitlines() if line.startswith(b'{"step"')]
    STEPS.extend(json.loads(line) for line in lines)


# ---------------------------------------------------------------- the engine


@contextmanager
def serving(plan: Json, folder: Path, name: str, config: Json, variables: Json | None = None) -> Iterator[Json]:
    """vLLM with one checkpoint and configuration, from ready to gone."""
    port, number = free_port(), len(STEPS)
    file, log = folder / f"{number}.yaml", folder / f"{number}.engine.log"
    file.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in config.items()))
    command = [plan["pythons"]["vllm"], "-m", "vllm.entrypoints.cli.main", "serve", str(folder / name)]
    command += ["--config", str(file), "--host", HOST, "--port", str(port), "--served-model-name", name]
    threads = {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": str(plan["engine_threads"])}
    environment = os.environ | threads | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | (variables or {})
    with log.open("wb") as output:
        with step(f"{name}: engine start"):
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
            wait_ready(process, port, log)
        try:
            yield {"port": port, "name": name, "folder": folder, "python": plan["pythons"]["load"]}
        finally:
            with step(f"{name}: engine stop"):
                stop(process)


def wait_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + READY_S
    while time.monotonic() < end:
        try:
            if request(port, "GET", "/health")[0] == 200:
                return
        except OSError:
            pass
        if process.poll() is not None:
            break
        time.sleep(0.25)
    stop(process)
    sys.exit(f"the engine did not start: see {log}")


def stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    return port


def request(port: int, method: str, path: str, body: Json | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(HOST, port, timeout=300)
    try:
        text = json.dumps(body) if body else None
        connection.request(method, path, text, {"Content-Type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def complete(engine: Json, prompt: Any, **options: Any) -> Json:
    body = {"model": engine["name"], "prompt": prompt, "temperature": 0, **options}
    status, answer = request(engine["port"], "POST", "/v1/completions", body)
    if status != 200:
        sys.exit(f"{engine['name']}: HTTP {status}: {answer.decode(errors='replace')[:300]}")
    choice: Json = json.loads(answer)["choices"][0]
    return choice


# ---------------------------------------------------------------- what is asked of it


def canary(engine: Json, plan: Json) -> None:
    """A few greedy answers, to be looked at."""
    with step(f"{engine['name']}: canary"):
        asked = {"max_tokens": plan["canary"]["max_tokens"], "logprobs": 1}
        answers = {prompt: complete(engine, prompt, **asked)["text"] for prompt in plan["canary"]["prompts"]}
        (engine["folder"] / f"{len(STEPS)}.canary.json").write_text(json.dumps(answers, indent=1))


def rows_through(engine: Json, plan: Json) -> None:
    """The engine's own log-probabilities of a few scored rows."""
    with step(f"{engine['name']}: rows"):
        total = 0.0
        for ids in plan["served_rows"]:
            entries = complete(engine, ids, max_tokens=1, prompt_logprobs=0)["prompt_logprobs"]
            total += sum(entry[str(token)]["logprob"] for entry, token in zip(entries[1:], ids[1:]))
        (engine["folder"] / f"{len(STEPS)}.rows.json").write_text(json.dumps(total))


def load(engine: Json, plan: Json, title: str, seed: int) -> None:
    """The recipe's load by AIPerf; its own export holds the figures."""
    asked, out = plan["load"], engine["folder"] / f"{len(STEPS)}.aiperf"
    command = [engine["python"], "-m", "aiperf", "profile", "--model-names", engine["name"]]
    command += ["--url", f"http://{HOST}:{engine['port']}", "--endpoint-type", "completions", "--streaming"]
    command += ["--tokenizer", str(engine["folder"] / "base"), "--use-server-token-count"]
    command += ["--concurrency", str(asked["concurrency"]), "--request-count", str(asked["requests"])]
    command += ["--warmup-request-count", str(asked["warmup"])]
    command += ["--num-dataset-entries", str(asked["requests"] + asked["warmup"])]
    command += ["--isl", str(asked["input_tokens"]), "--osl", str(asked["output_tokens"])]
    command += ["--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0"]
    command += ["--random-seed", str(seed), "--output-artifact-dir", str(out), "--ui", "none"]
    command += ["--workers-max", "1", "--record-processor-service-count", "1"]
    command += ["--no-gpu-telemetry", "--no-server-metrics"]
    environment = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")}
    environment |= {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "DO_NOT_TRACK": "1"}
    with step(f"{title}: load"), (engine["folder"] / f"{len(STEPS)}.aiperf.log").open("wb") as log:
        subprocess.run(command, stdout=log, stderr=log, env=environment, check=True)
    exported = json.loads((out / "profile_export_aiperf.json").read_text())
    STEPS[-1]["output_tokens_per_s"] = exported["output_token_throughput"]["avg"]
    STEPS[-1]["requests"] = exported["request_count"]["avg"]


def package(plan: Json, folder: Path, final: Json) -> None:
    """The chosen checkpoint, its engine configuration and a README in one folder."""
    out = folder / "package"
    shutil.copytree(folder / final["checkpoint"], out / "model")
    (out / "engine.json").write_text(json.dumps(final["config"], indent=1))
    quality = json.loads((folder / "quality.json").read_text())[final["checkpoint"]]
    loads = [entry for entry in STEPS if "output_tokens_per_s" in entry]
    rows = [f"| {entry['step']} | {entry['output_tokens_per_s']:.1f} tokens/s |" for entry in loads]
    text = [f"# {plan['name']}: {final['checkpoint']}", "", json.dumps(quality), "", *rows, ""]
    (out / "README.md").write_text("\n".join(text))


@contextmanager
def step(name: str) -> Iterator[None]:
    """Time one step; a failed one is timed as well."""
    began = time.time()
    try:
        yield
    finally:
        STEPS.append({"step": name, "start": began, "end": time.time()})


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2]))
