"""The body of every job kind in tests: does the steps that its options name, then says what it saw.

Steps: {"touch": FILE} appends a line, {"wait": FILE} waits until the file exists, {"sleep": S},
{"write": TEXT} to files/out.txt, {"copy": INPUT} to files/out.txt, {"allocate": BYTES}, {"shm": NAME},
{"fork": S} leaves a process of its own session behind, {"fail": MESSAGE, "transient": bool}, {"die": SIGNAL},
{"exit": CODE}, {"print": TEXT}, {"progress": N}, {"env": [NAME, ...]}, {"ask": PROMPT} the engine,
{"ask-in-vain": PROMPT} and swallow a failure.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from optpipe.worker import Failure, Work

REVISION = 1
KEPT: list[Any] = []


def run(options: dict[str, Any], work: Work) -> dict[str, Any]:
    record: dict[str, Any] = {"seed": work.seed, "threads": work.threads}
    for step in options.get("steps", []):
        name = next(iter(step))
        record.update(STEPS[name](step[name], step, work) or {})
    return record


def touch(value: str, step: dict[str, Any], work: Work) -> None:
    with Path(value).open("a") as file:
        file.write(f"{os.getpid()} {time.time()}\n")


def wait(value: str, step: dict[str, Any], work: Work) -> None:
    while not Path(value).exists():
        time.sleep(0.02)


def sleep(value: float, step: dict[str, Any], work: Work) -> None:
    time.sleep(value)


def write(value: str, step: dict[str, Any], work: Work) -> None:
    (work.out / "out.txt").write_text(value)


def copy(value: str, step: dict[str, Any], work: Work) -> dict[str, Any]:
    text = (work.inputs[value] / "out.txt").read_text()
    (work.out / "out.txt").write_text(text)
    return {"text": text}


def allocate(value: int, step: dict[str, Any], work: Work) -> None:
    KEPT.append(bytearray(os.urandom(1 << 20) * (value >> 20)))


def shm(value: str, step: dict[str, Any], work: Work) -> None:
    with Path("/dev/shm", value).open("w+b") as file:
        file.truncate(4096)
        KEPT.append(mmap.mmap(file.fileno(), 4096))


def fork(value: float, step: dict[str, Any], work: Work) -> dict[str, Any]:
    program = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(float(%r))"
    child = subprocess.Popen([sys.executable, "-c", program % value], start_new_session=True)
    return {"child": child.pid}


def fail(value: str, step: dict[str, Any], work: Work) -> None:
    raise Failure(value, transient=bool(step.get("transient")))


def die(value: int, step: dict[str, Any], work: Work) -> None:
    os.kill(os.getpid(), value)
    time.sleep(10)


def leave(value: int, step: dict[str, Any], work: Work) -> None:
    os._exit(value)


def say(value: str, step: dict[str, Any], work: Work) -> None:
    sys.stderr.write(value + "\n")


def progress(value: int, step: dict[str, Any], work: Work) -> None:
    for number in range(value):
        work.progress(number + 1, value, "steps")
        time.sleep(0.15)


def env(value: list[str], step: dict[str, Any], work: Work) -> dict[str, Any]:
    return {"env": {name: os.environ.get(name) for name in value}}


def ask(value: str, step: dict[str, Any], work: Work) -> dict[str, Any]:
    body = {"model": work.context["model"], "prompt": value, "max_tokens": 8}
    url = work.context["url"] + "/v1/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=30) as answer:
            return {"answer": json.load(answer)["choices"][0]["text"]}
    except OSError as error:
        raise Failure(f"the engine gave no answer: {error}", transient=True) from None


def ask_in_vain(value: str, step: dict[str, Any], work: Work) -> None:
    """A load generator that counts failures and ends well."""
    with contextlib.suppress(Failure):
        ask(value, step, work)


STEPS = {
    "touch": touch,
    "wait": wait,
    "sleep": sleep,
    "write": write,
    "copy": copy,
    "allocate": allocate,
    "shm": shm,
    "fork": fork,
    "fail": fail,
    "die": die,
    "exit": leave,
    "print": say,
    "progress": progress,
    "env": env,
    "ask": ask,
    "ask-in-vain": ask_in_vain,
}
