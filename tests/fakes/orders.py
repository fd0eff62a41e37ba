"""What a test tells the fakes to do, and what they did: a folder named by OPTPIPE_FAKES.

orders.json     [{"at": "quantize", "who": "gptq", "do": "hold"}, ...]: the first that fits is obeyed
log.jsonl       a line for each thing that began: {"at", "who", "pid", "key", "tmp"}

`who` fits where it is part of what acts. `do` is hold (wait until the order is gone), fail (a definite
failure with `message`), fail-passing (a transient one), die (SIGKILL), or a word that the fake knows itself.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from optpipe.worker import Failure


def folder() -> Path:
    return Path(os.environ["OPTPIPE_FAKES"])


def first(at: str, who: str) -> dict[str, Any]:
    """The order for this act; {} without one."""
    try:
        orders = json.loads((folder() / "orders.json").read_text())
    except FileNotFoundError:
        return {}
    return next((dict(o) for o in orders if o["at"] == at and o.get("who", "") in who), {})


def obey(at: str, who: str, key: str = "") -> str:
    """Note the act and do what the order says; the word of an order that only the caller knows."""
    line = json.dumps({"at": at, "who": who, "pid": os.getpid(), "key": key, "tmp": os.environ["TMPDIR"]}) + "\n"
    with (folder() / "log.jsonl").open("a") as file:
        file.write(line)
    while (order := first(at, who)).get("do") == "hold":
        time.sleep(0.02)
    word = str(order.get("do", ""))
    if word in ("fail", "fail-passing"):
        raise Failure(order.get("message", "planted"), hint="take it out again", transient=word == "fail-passing")
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(10)
    return word
