"""Quantizes, evaluates, times generation, serves and tunes on one GPU without network, within a time budget.

    INTO/envs/core/bin/python -m gpu.check --into INTO      what `gpu.pieces join` made
    python -m gpu.check --dry-run                           on a CPU: a tiny model, the managed quantize toolchain

Prints one JSON document: figures with n, spread and hardware, and how each stage went. Ends with 0 when every stage
passed, 1 when one failed, 7 when one was skipped for lack of time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from optpipe import toolchains
from optpipe.errors import OptpipeError
from optpipe.model import texts
from optpipe.model.hardware import this_machine
from optpipe.records import Json, to_json
from optpipe.toolchains import Interpreter, Toolchain

HERE = Path(__file__).parent
RECIPE = HERE / "recipe.yaml"
GGUF, TEXT = "SmolLM2-135M-Instruct.Q4_1.gguf", "summaries_en-us.json"
FACTOR = 4
"""How much wider the model that is timed is than the one that is carried: 1.8 billion parameters."""
BUDGET_S = 470.0
METHODS: dict[str, Json] = {
    "fp8": {"method": "fp8"},
    "rtn-w4": {"method": "rtn", "bits": 4, "group_size": 64, "symmetric": False},
}
"""Quantized and scored job by job; the line quantizes by itself, with GPTQ."""
ROLES = ("quantize", "vllm", "load")
GRACE_S = 30.0


Env = dict[str, str] | None


class Failed(Exception):
    """Why a stage failed."""


@dataclass
class Check:
    """Where things are and how much time is left; `into` is None in a dry run."""

    folder: Path
    into: Path | None
    deadline: float
    threads: int
    base: Path = field(init=False)
    wide: Path = field(init=False)

    @property
    def left(self) -> float:
        return self.deadline - time.monotonic()

    def toolchain(self, role: str) -> Toolchain:
        """The carried environment, in a dry run the managed one."""
        if self.into is None:
            return toolchains.get(role)
        return toolchains.get(role, {role: Interpreter(str(self.into / "envs" / role / "bin" / "python"))})

    def run(self, role: str, *arguments: str) -> str:
        """Stdout of `python ARGUMENTS` in a toolchain; Failed with the end of its stderr, or when time is up."""
        chain = self.toolchain(role)
        env = {
            "PYTHONPATH": str(toolchains.worker_source()),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": str(self.threads),
        }
        command = chain.argv(*arguments, env=env)
        return self.finished(command, {**chain.environment(), **env}, " ".join(arguments[:3]))

    def finished(
        self, command: Sequence[str], env: dict[str, str] | None, what: str, fine: tuple[int, ...] = (0,)
    ) -> str:
        """Stdout of a command, which is asked to stop GRACE_S before the deadline's end and killed after it."""
        log = self.folder / "log"
        with log.open("w", encoding="utf-8") as file:
            process = subprocess.Popen(
                command, env=env, cwd=HERE.parent, stdout=subprocess.PIPE, stderr=file, text=True
            )
            try:
                out, _ = process.communicate(timeout=max(1.0, self.left - GRACE_S))
            except subprocess.TimeoutExpired:
                process.terminate()
                try:
                    process.communicate(timeout=GRACE_S)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.communicate()
                raise Failed(f"{what}: stopped, its time was up") from None
        if process.returncode not in fine:
            said = "\n".join([*out.splitlines(), *log.read_text(encoding="utf-8").splitlines()][-8:])
            raise Failed(f"{what} ended with {process.returncode}: {said[-900:]}")
        return out

    def job(self, kind: str, name: str, inputs: dict[str, Path], options: Json) -> tuple[Path, Json, float]:
        """One of optpipe's jobs as its worker runs it: (its files, its record, seconds with imports)."""
        folder = self.folder / name
        (folder / "files").mkdir(parents=True)
        paths = {key: str(path) for key, path in inputs.items()}
        job = {"kind": kind, "options": options, "inputs": paths, "context": {}, "threads": self.threads, "seed": 1}
        (folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        started = time.monotonic()
        self.run("quantize", "-m", "optpipe.worker", str(folder))
        record = json.loads((folder / "record.json").read_text(encoding="utf-8"))
        return folder / "files", record, time.monotonic() - started


# ---------------------------------------------------------------- the stages


def environment(check: Check) -> Json:
    """What is here: every toolchain's libraries, and whether torch sees the GPU."""
    code = "import torch; print(torch.cuda.is_available(), torch.version.cuda)"
    sees, cuda = check.run("quantize", "-c", code).split()
    if check.into is not None and sees != "True":
        raise Failed(f"torch sees no GPU (CUDA {cuda})")
    roles = ROLES if check.into else ROLES[:1]
    wanted = ("torch", "transformers", "llmcompressor", "compressed-tensors", "vllm", "aiperf")
    found = {role: check.toolchain(role).versions for role in roles}
    versions = {role: {name: one[name] for name in wanted if name in one} for role, one in found.items()}
    return {"cuda": cuda, "versions": versions}


def model(check: Check) -> Json:
    """The base in bf16, and the same function in larger shapes."""
    check.base, check.wide = check.folder / "tiny", check.folder / "wide"
    if check.into is None:
        check.run("quantize", str(HERE / "tiny.py"), str(check.base))
    else:
        check.base = check.job("gguf", "base", {"gguf": check.into / "files" / GGUF}, {})[0]
    made = json.loads(check.run("quantize", str(HERE / "widen.py"), str(check.base), str(check.wide), str(FACTOR)))
    return {"factor": FACTOR, "parameters": made["parameters"]}


def tokens(check: Check) -> Path:
    """Rows of ids of text that is not calibrated on: 32 of 256, in a dry run 4 of 64."""
    name = "python-docs" if check.into is None else str(check.into / "files" / TEXT)
    text = texts.resolve_text(texts.parse_text(name), "score", "extract", check.folder, lambda line: None)
    length, rows = (64, 4) if check.into is None else (256, 32)
    options = {"length": length, "first_row": 0, "rows": rows, "template": False, "min_rows": 0}
    return check.job("tokens", "tokens", {"model": check.base, "text": text.path}, options)[0]


def quality(check: Check) -> Json:
    """Each method quantizes the wide model and is scored against it, job by job."""
    rows = tokens(check)
    base, record, seconds = check.job(
        "score", "score-base", {"model": check.wide, "tokens": rows}, {"keep_logits": True}
    )
    found: Json = {"base": {**figures_of(record), "score_s": round(seconds, 1)}}
    for name, options in METHODS.items():
        files, _, took = check.job("quantize", name, {"model": check.wide}, options)
        inputs = {"model": files, "tokens": rows, "base": base}
        _, record, seconds = check.job("score", f"score-{name}", inputs, {})
        times = {"quantize_s": round(took, 1), "score_s": round(seconds, 1)}
        found[name] = {**figures_of(record), **times, "bytes": sum(f.stat().st_size for f in files.iterdir())}
    return found


def figures_of(record: Json) -> Json:
    """Mean negative log-likelihood and divergence in nats per token over all units."""
    units = record["units"]
    count = sum(unit["tokens"] for unit in units)
    found: Json = {"tokens": count, "units": len(units), "nll": round(sum(unit["nll"] for unit in units) / count, 5)}
    if units[0]["kl"] is not None:
        found["kl"] = round(sum(unit["kl"] for unit in units) / count, 6)
    return found


def generation(check: Check) -> Json:
    """transformers' own generation of the wide model in bf16: median and range of the runs."""
    numbers = ("128", "64", "3", "1", "32") if check.into else ("16", "8", "3", "1", "2")
    said = json.loads(check.run("quantize", str(HERE / "generate.py"), str(check.wide), *numbers))
    runs = {f"batch_{batch}": spread(values) for batch, values in said["tokens_per_s"].items()}
    return {"device": said["device"], "prompt_tokens": int(numbers[0]), "new_tokens": int(numbers[1]), **runs}


def spread(values: list[float]) -> Json:
    rounded = [round(value, 1) for value in sorted(values)]
    return {"tokens_per_s": statistics.median(rounded), "range": [rounded[0], rounded[-1]], "n": len(rounded)}


def line(check: Check) -> Json:
    """`optpipe build gpu/recipe.yaml` on the wide model; in a dry run its plan for the machine that it is for."""
    recipe = check.folder / "line.yaml"
    own: Json = {"extends": str(RECIPE), "version": 1, "name": "smollm2-wide", "model": {"source": str(check.wide)}}
    optpipe = [sys.executable, "-m", "optpipe"]
    if check.into is None:
        recipe.write_text(json.dumps(own), encoding="utf-8")
        command = [*optpipe, "plan", str(recipe), "--hardware", "h200", "--json"]
        plan = json.loads(check.finished(command, None, "optpipe plan"))
        return {"planned": sorted(str(one["candidate"]["name"]) for one in plan["feasible"])}
    text = {"source": str(check.into / "files" / TEXT), "column": "extract"}
    own |= {"texts": {"wiki": {**text, "part": "score"}}, "calibration": {"text": {**text, "part": "calibrate"}}}
    pythons = {role: str(check.into / "envs" / role / "bin" / "python") for role in ROLES}
    own |= {"toolchains": {role: {"kind": "interpreter", "python": path} for role, path in pythons.items()}}
    own |= {"threads": check.threads, "engine_threads": 1}
    recipe.write_text(json.dumps(own), encoding="utf-8")
    command = [*optpipe, "build", str(recipe), "--artifacts", str(check.folder / "artifacts"), "--json"]
    return dict(json.loads(check.finished(command, None, "optpipe build", fine=(0, 5, 7))))


STAGES: tuple[tuple[Callable[[Check], Json], float], ...] = (
    (environment, 0.0),
    (model, 30.0),
    (quality, 60.0),
    (generation, 40.0),
    (line, 150.0),
)
"""Each with the seconds that must be left for it to begin."""


def stages(check: Check) -> Json:
    """{stage: status, seconds, figures or why}; a stage after a failed `model` has nothing to work on."""
    done: Json = {}
    for stage, needed in STAGES:
        name, started = stage.__name__, time.monotonic()
        if check.left < needed + GRACE_S:
            done[name] = {"status": "skipped", "why": f"{check.left:.0f} s are left, {needed:.0f} are needed"}
            continue
        if done.get("model", {}).get("status") == "failed":
            done[name] = {"status": "skipped", "why": "there is no model"}
            continue
        say(f"{name} ({check.left:.0f} s left)")
        try:
            done[name] = {"status": "passed", "figures": stage(check)}
        except (Failed, OptpipeError) as error:
            done[name] = {"status": "failed", "why": str(error)}
            say(f"{name}: failed: {error}")
        done[name]["seconds"] = round(time.monotonic() - started, 1)
    return done


def document(check: Check, done: Json) -> Json:
    """The form of benchmarks' documents; a dry run says that it measured nothing."""
    figures = {name: stage["figures"] for name, stage in done.items() if "figures" in stage}
    kind = "dry run on a CPU with a tiny model: its figures mean nothing" if check.into is None else "measured"
    where = f"--into {check.into.name}" if check.into else "--dry-run"
    status = {name: {key: value for key, value in stage.items() if key != "figures"} for name, stage in done.items()}
    command = f"python -m gpu.check {where}"
    spread = "beside each figure: range of the runs, or its interval"
    head = {"name": "gpu", "kind": kind, "figures": figures, "n": "beside each figure", "spread": spread}
    versions = figures.get("environment", {}).get("versions", {})
    return {**head, "stages": status, "hardware": to_json(this_machine()), "versions": versions, "command": command}


def say(text: str) -> None:
    sys.stderr.write(f"gpu.check: {text}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.check")
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--into", type=Path, help="the folder that `gpu.pieces join` filled")
    where.add_argument("--dry-run", action="store_true", help="every step that a CPU can do, on a tiny model")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds for all stages (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of each job (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="write the document here too")
    args = parser.parse_args(arguments)
    deadline = time.monotonic() + args.budget
    with tempfile.TemporaryDirectory(prefix="optpipe-gpu-") as folder:
        check = Check(Path(folder), args.into.resolve() if args.into else None, deadline, args.threads)
        done = stages(check)
        made = document(check, done)
    text = json.dumps(made, indent=2) + "\n"
    if args.out:
        args.out.write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    found = {stage["status"] for stage in done.values()}
    return 1 if "failed" in found else 7 if "skipped" in found else 0


if __name__ == "__main__":
    sys.exit(main())
