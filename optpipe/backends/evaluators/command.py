"""Worker body `command`, in an engine session: an evaluator of the user's own, any program that prints JSON.

It is started by its words (never through a shell), in an empty folder, with little of the build's environment, and
OPTPIPE_ENGINE_URL (the engine's address, OpenAI's API below /v1), OPTPIPE_ENGINE_MODEL (the name to ask for) and
OPTPIPE_FOLDER (that folder; what it leaves there is kept). On stdout it prints one document:

    {"metrics": {"accuracy": 0.5}, "items": [{"id": "q1", "score": 1}, {"id": "q2", "score": 0}]}

`items` are paired with the base's by `id`; a score is from 0 (wrong) to 1 (right). Standard library only.
inputs: `file.NUMBER`, what stands in `argv` as {"file": NUMBER}, and what else its answer depends on.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from optpipe.records import Json
from optpipe.worker import Failure, Work

REVISION = 1

INHERITED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "SSL_CERT_FILE")
"""Of the environment; no token, no proxy (the engine is on this machine)."""
MAX_BYTES = 64 << 20
"""Of what it prints: a million items."""
SHOWN_LINES = 5
MAX_METRICS, MAX_NAME = 50, 60
"""Of its figures, which reports tell one by one."""
KEYS = {"metrics", "items"}


@dataclass(frozen=True)
class Command:
    """An evaluator of one's own: a program that asks the engine and prints scores as JSON."""

    __pydantic_config__: ClassVar[Json] = {"extra": "forbid", "use_attribute_docstrings": True}

    argv: list[str]
    """The program and its words, as they are (no shell). A word that is the path of a file beside the recipe stands
    for that file, and its content is part of what is kept: another content is another evaluation."""
    files: tuple[str, ...] = ()
    """Other files that the result depends on, e.g. modules and questions."""
    version: str | None = None
    """Of what is not named by files; change it to have everything measured again."""
    timeout_s: float = 3600.0
    """Seconds for one candidate."""

    def __post_init__(self) -> None:
        if not self.argv or not all(word and "\0" not in word for word in self.argv):
            raise ValueError(f"argv {self.argv} is no program with its words")
        if not 0 < self.timeout_s <= 7 * 86400:
            raise ValueError(f"timeout_s {self.timeout_s} is not above 0 and at most a week")


def files_of(command: Command, folder: Path) -> list[Path]:
    """The files that are part of a command: words of `argv` that are files beside the recipe, then `files`."""
    named = [folder / word for word in command.argv if (folder / word).is_file()]
    return [path.absolute() for path in (*named, *(folder / name for name in command.files))]


def options_of(command: Command, folder: Path) -> Json:
    """Options of the job: files by number, so that what is kept depends on their content, not on their place."""
    numbers = {path: number for number, path in reversed(list(enumerate(files_of(command, folder))))}
    argv = [{"file": numbers[path]} if (path := (folder / w).absolute()) in numbers else w for w in command.argv]
    return {"argv": argv, "version": command.version, "timeout_s": command.timeout_s}


def run(options: Json, work: Work) -> Json:
    """Options: argv (words, and {"file": NUMBER} for an input), timeout_s, version. {n, correct, metrics, items}."""
    argv = [word if isinstance(word, str) else str(work.inputs[name(word["file"])]) for word in options["argv"]]
    work.out.mkdir(parents=True, exist_ok=True)
    work.progress(0, 0, f"{Path(argv[0]).name} at work")
    printed = work.folder / "printed.json"
    talk = work.folder / "talk.txt"
    with printed.open("wb") as out, talk.open("wb") as err:
        code = ended(argv, environment(work), work.out, (out, err), float(options["timeout_s"]))
    if code is None:
        raise Failure(f"no result within {options['timeout_s']:g} s{tail(talk)}", hint=ENOUGH, transient=True)
    if code:
        how = f"it ended with exit code {code}" if code > 0 else f"it was ended by {signal.Signals(-code).name}"
        raise Failure(f"{how}{tail(talk)}", hint="the next build tries it again", transient=True)
    return checked(read(printed, talk))


ENOUGH = "raise its `timeout_s`, or have it ask less"


def name(number: int) -> str:
    """Of the input with a file."""
    return f"file.{number:03d}"


def environment(work: Work) -> dict[str, str]:
    kept = {key: os.environ[key] for key in INHERITED if key in os.environ}
    engine = {"OPTPIPE_ENGINE_URL": str(work.context["url"]), "OPTPIPE_ENGINE_MODEL": str(work.context["model"])}
    return {**kept, **engine, "OPTPIPE_FOLDER": str(work.out), "OPTPIPE_SEED": str(work.seed), "NO_PROXY": "*"}


def ended(argv: Sequence[str], env: dict[str, str], folder: Path, pipes: tuple[Any, Any], limit: float) -> int | None:
    """Exit code of the program, or None where its time was over; whatever it started in its group ends with it."""
    streams = {"stdin": subprocess.DEVNULL, "stdout": pipes[0], "stderr": pipes[1]}
    try:
        process = subprocess.Popen(argv, env=env, cwd=folder, start_new_session=True, **streams)
    except OSError as error:
        hint = "name a program on PATH, or a file beside the recipe that may be executed"
        raise Failure(f"{argv[0]!r} cannot be started: {error.strerror}", hint=hint, transient=True) from None
    try:
        return process.wait(limit)
    except subprocess.TimeoutExpired:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def tail(talk: Path) -> str:
    """`; it said last: ...`, some lines of what went to stderr."""
    size = talk.stat().st_size
    with talk.open("rb") as file:
        file.seek(max(0, size - 4000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return f"; it said last: {' | '.join(line[:200] for line in lines[-SHOWN_LINES:])}" if lines else ""


# ---------------------------------------------------------------- what it printed


def read(printed: Path, talk: Path) -> Any:
    """The JSON that was printed; a NaN is none."""
    if printed.stat().st_size > MAX_BYTES:
        raise Failure(f"it printed {printed.stat().st_size:,} bytes; {MAX_BYTES:,} are read at most", hint=FORM)
    try:
        return json.loads(printed.read_bytes(), parse_constant=refused)
    except (ValueError, RecursionError) as error:
        first = printed.read_bytes()[:80].decode(errors="replace")
        said = f"it printed no JSON document ({str(error)[:120]}): {first!r}{tail(talk)}"
        raise Failure(said, hint=FORM) from None


FORM = 'on stdout one document alone: {"metrics": {name: number}, "items": [{"id": ..., "score": 0 to 1}, ...]}'


def refused(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


def checked(document: Any) -> Json:
    """What is recorded of a document, or what is wrong with it."""
    for wrong in faults(document):
        raise Failure(wrong, hint=FORM)
    items = sorted(document["items"], key=lambda item: (str(type(item["id"])), item["id"]))
    scores = [item["score"] for item in items]
    return {
        "n": len(items),
        "correct": math.fsum(scores),
        "metrics": {key: float(value) for key, value in sorted(document.get("metrics", {}).items())},
        "items": [{"id": item["id"], "correct": float(item["score"])} for item in items],
    }


def faults(document: Any) -> Iterator[str]:
    if not isinstance(document, dict) or not set(document) <= KEYS:
        shown = sorted(set(document) - KEYS) if isinstance(document, dict) else type(document).__name__
        yield f"it printed {shown} where `metrics` and `items` are expected"
        return
    metrics, items = document.get("metrics", {}), document.get("items")
    if not isinstance(metrics, dict):
        yield f"metrics: {str(metrics)[:80]} is no mapping of names to numbers"
        return
    if len(metrics) > MAX_METRICS or any(len(key) > MAX_NAME for key in metrics):
        yield f"metrics: more than {MAX_METRICS}, or a name of more than {MAX_NAME} characters"
    for key, value in metrics.items():
        if not number(value):
            yield f"metrics: {key!r}: {str(value)[:80]} is no finite number"
    if not isinstance(items, list) or not items:
        yield "it printed no items, so there is nothing to pair with the base"
        return
    seen = set()
    for at, item in enumerate(items):
        if not isinstance(item, dict) or not isinstance(item.get("id"), (str, int)) or isinstance(item["id"], bool):
            yield f"item {at}: {str(item)[:80]} has no `id` that is a text or a whole number"
            return
        if not number(item.get("score")) or not 0 <= item["score"] <= 1:
            yield f"item {item['id']!r}: score {str(item.get('score'))[:80]} is not from 0 to 1"
        if item["id"] in seen:
            yield f"item {item['id']!r} stands there twice"
        seen.add(item["id"])


def number(value: Any) -> bool:
    """A finite number, and no truth value."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= 1e300
