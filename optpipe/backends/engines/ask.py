"""Asking a library which options it has: once, in its toolchain's own Python, kept by the fingerprint of that."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from optpipe.errors import EnvironmentMissing
from optpipe.records import Json
from optpipe.rundir import optpipe_home, read_json, write_json
from optpipe.toolchains import Toolchain, worker_source

TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Question:
    """A module that prints one line of JSON; `title` is the library, `folder` of OPTPIPE_HOME holds the answers."""

    title: str
    module: str
    folder: str
    environment: Mapping[str, str] = field(default_factory=dict)


def kept_at(question: Question, chain: Toolchain) -> Path:
    return optpipe_home() / question.folder / f"{chain.fingerprint.removeprefix('sha256:')}.json"


def ask(question: Question, chain: Toolchain) -> Json:
    """The answer (the first time about 10 s). EnvironmentMissing, with the last thing that was said, where it
    does not come."""
    kept = kept_at(question, chain)
    if kept.exists():
        return dict(read_json(kept))
    own = {"PYTHONPATH": str(worker_source()), **question.environment}
    argv = chain.argv("-m", question.module, env=own)
    env = {**chain.environment(), **own}
    try:
        done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        answer: Json = json.loads((done.stdout.strip().splitlines() or [""])[-1])
    except (subprocess.SubprocessError, OSError, ValueError) as error:
        said = "it printed no JSON" if isinstance(error, ValueError) else getattr(error, "stderr", None) or error
        last = (str(said).strip().splitlines() or ["no output"])[-1]
        text = f"{question.title} does not say which options it has: {last}"
        raise EnvironmentMissing(text, place=f"toolchain {chain.name}", hint="see `optpipe doctor`") from error
    write_json(kept, answer)
    return answer
