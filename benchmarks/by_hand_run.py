"""Reads a finished build: what an engineer must do to have done the same, and where the build's time went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from optpipe.backends.engines.vllm import flags
from optpipe.backends.evaluators.canary import PROMPTS
from optpipe.backends.loads.load import Load
from optpipe.model import fetching, sources
from optpipe.recipe.load import Loaded
from optpipe.recipe.schema import Recipe
from optpipe.records import Json
from optpipe.rundir import optpipe_home, read_json
from optpipe.stages.confirm import SEED_STEP

Span = tuple[float, float]


@dataclass(frozen=True)
class Kept:
    """One job that ran: its kind, what it depended on, and when it ran (seconds of the epoch)."""

    kind: str
    parts: Json
    record: Json
    files: Path
    digest: str
    span: Span


def kept_jobs(artifacts: Path) -> list[Kept]:
    """Every job in a cache that one build filled, in the order of their ends."""
    found = []
    for path in (artifacts / "cache" / "jobs").glob("*/record.json"):
        kept, end = read_json(path), path.stat().st_mtime
        span = (end - kept["seconds"], end)
        parts, files = kept["parts"], path.parent / "files"
        found.append(Kept(parts["kind"], parts, kept["record"], files, kept["files"], span))
    return sorted(found, key=lambda job: job.span[1])


def engine_spans(run: Path) -> list[Span]:
    """When engines ran, from their start to their end, from what their supervisors left in the logs."""
    statuses = sorted(run.glob("logs/*-engine.json"))
    return [(path.stat().st_mtime - read_json(path)["seconds"], path.stat().st_mtime) for path in statuses]


# ---------------------------------------------------------------- the same work for the engineer


def same_work(artifacts: Path, loaded: Loaded, pythons: dict[str, str]) -> Json:
    """The plan for `by_hand_script.py`: candidates, token ids, loads and trials of a finished build."""
    recipe, run, jobs = loaded.recipe, artifacts / "latest", kept_jobs(artifacts)
    tokens = {job.digest: job.files / "tokens.npy" for job in jobs if job.kind == "tokens"}
    names = models(run)
    quantized = {job.digest: job for job in jobs if job.kind == "quantize"}
    schemes = {name: quantized[digest].parts["options"] for digest, name in names.items() if digest in quantized}
    calibrated = [job.parts["inputs"]["tokens"] for job in quantized.values() if "tokens" in job.parts["inputs"]]
    load = asked_load(recipe)
    return {
        "name": recipe.name,
        "pythons": pythons,
        "threads": recipe.threads,
        "engine_threads": recipe.engine_threads,
        "seed": recipe.seed,
        "source": source(loaded),
        "checkpoints": {name: schemes[name] for name in recipe.checkpoints if name in schemes},
        "calibration": str(tokens[calibrated[0]]) if calibrated else None,
        "scored": scored(jobs, names, tokens),
        "configs": configs(run, names.values()),
        "canary": {"prompts": list(PROMPTS), "max_tokens": recipe.scoring.canary_tokens},
        "served_rows": served_rows(jobs, tokens, recipe.scoring.parity_units),
        "load": load,
        "trials": trials(run),
        "confirm": confirmed(run, recipe.seed + SEED_STEP),
    }


def models(run: Path) -> dict[str, str]:
    """Names of base and checkpoints by the digest of their files."""
    records = [run / "03-resolve.json", *sorted(run.glob("04-quantize/*/record.json"))]
    return {record["model_digest"]: record["name"] for record in map(read_json, records)}


def source(loaded: Loaded) -> Json:
    """The model's file or folder, downloaded if it was not here."""
    parsed = sources.parse(loaded.recipe.model.source, loaded.path.parent)
    fetched = fetching.fetch(parsed, optpipe_home(), lambda text: None)
    return {"gguf" if fetched.gguf else "folder": str(fetched.path)}


def asked_load(recipe: Recipe) -> Json:
    load: Load = recipe.load
    assert load.scenario == "steady", f"the engineer's script drives a steady load, not {load.scenario!r}"
    numbers = {name: getattr(load, name) for name in ("concurrency", "input_tokens", "output_tokens", "requests")}
    return {**numbers, "warmup": load.warmup_requests}


def scored(jobs: list[Kept], names: dict[str, str], tokens: dict[str, Path]) -> dict[str, list[str]]:
    """For base and checkpoints the files of token ids that they were scored on."""
    found: dict[str, list[str]] = {name: [] for name in names.values()}
    for job in jobs:
        if job.kind == "score":
            inputs = job.parts["inputs"]
            rows = [str(tokens[inputs[key]]) for key in sorted(inputs) if key.startswith("tokens")]
            known = found[names[inputs["model"]]]
            known += [path for path in rows if path not in known]
    return found


def configs(run: Path, names: Iterable[str]) -> dict[str, Json]:
    """The engine configuration of each; a candidate that optpipe did not serve gets the base's."""
    served = {path.stem.partition("@")[0]: read_json(path)["config"] for path in run.glob("07-benchmark/*.json")}
    return {name: served.get(name, served["base"]) for name in names}


def served_rows(jobs: list[Kept], tokens: dict[str, Path], rows: int) -> list[list[int]]:
    import numpy

    first = next(job for job in jobs if job.kind == "parity")
    ids = numpy.load(tokens[first.parts["inputs"]["tokens"]])[:rows]
    return [[int(token) for token in row] for row in ids]


def trials(run: Path) -> list[Json]:
    """Each configuration that the tuner measured beside the default, as the engine was started with it."""
    found = []
    for path in sorted(run.glob("08-tune/*.json")):
        tuning = read_json(path)
        checkpoint, default = path.stem.partition("@")[0], read_json(run / "07-benchmark" / path.name)["config"]
        found += [
            {"checkpoint": checkpoint, "config": default | flags(settings), "environment": variables}
            for trial in tuning["trials"]
            if trial["config"]
            for settings, variables in [split(trial["config"])]
        ]
    return found


def split(config: Json) -> tuple[Json, Json]:
    """Settings of the engine's file, and variables of its environment, which are in capitals."""
    names = sorted(config, key=str.isupper)
    return {n: config[n] for n in names if not n.isupper()}, {n: config[n] for n in names if n.isupper()}


def confirmed(run: Path, seed: int) -> Json | None:
    path = run / "10-confirm.json"
    if not path.exists():
        return None
    record = read_json(path)
    checkpoint, kept = record["candidate"].partition("@")[0], ("config", "environment")
    return {"checkpoint": checkpoint, "seed": seed, **{name: record[name] for name in kept}}


# ---------------------------------------------------------------- where the build's time went


def timing(artifacts: Path, began: float, ended: float) -> Json:
    """A build in figures: seconds by kind of job, of engines and of load phases; what ran side by side."""
    run, jobs = artifacts / "latest", kept_jobs(artifacts)
    engines = engine_spans(run)
    spans = [job.span for job in jobs]
    busy, kinds = covered(spans), Counter(job.kind for job in jobs)
    seconds = {kind: total(job.span for job in jobs if job.kind == kind) for kind in kinds}
    phases: Counter[str] = Counter()
    for job in jobs:
        phases.update(job.record.get("seconds", {}) if job.kind == "load" else {})
    with_engines = covered([*spans, *engines])
    return {
        "wall_s": ended - began,
        "counts": {**kinds, "engine": len(engines)},
        "seconds": {**seconds, "engine": total(engines), "load_phases": dict(phases)},
        "side_by_side_s": total(spans) - busy,
        "engine_without_job_s": with_engines - busy,
        "nothing_runs_s": ended - began - with_engines,
        "before_first_job_s": min(span[0] for span in spans) - began,
        "after_last_job_s": ended - max(span[1] for span in [*spans, *engines]),
        "ready_s": ready(engines, spans),
        "jobs": [{"kind": job.kind, "start": job.span[0] - began, "end": job.span[1] - began} for job in jobs],
        "engines": [[start - began, end - began] for start, end in engines],
    }


def ready(engines: list[Span], spans: list[Span]) -> list[float]:
    """Seconds from each engine's start to the first job that used it."""
    return [min(job[0] for job in spans if job[0] > start) - start for start, _ in engines]


def total(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def covered(spans: list[Span]) -> float:
    """Length of the union of intervals."""
    length, reach = 0.0, float("-inf")
    for start, end in sorted(spans):
        length += max(0.0, end - max(start, reach))
        reach = max(reach, end)
    return length


# ---------------------------------------------------------------- what was not done twice

COUNTED = {"engine start": "engine", "engine stop": "engine", "canary": "canary", "rows": "parity", "load": "load"}
"""Kinds of the engineer's steps in an engine, and of the jobs that do the same in a build."""


def not_done_twice(steps: list[Json], counts: dict[str, int]) -> float:
    """Seconds of the engineer's that have no counterpart in the build: engines never started, checks whose
    result was there already. Counted by kind: the surplus, at the mean length of the engineer's step."""
    saved = 0.0
    for ending, kind in COUNTED.items():
        lengths = [step["end"] - step["start"] for step in steps if step["step"].endswith(f": {ending}")]
        surplus = max(0, len(lengths) - counts.get(kind, 0))
        saved += surplus * sum(lengths) / max(1, len(lengths))
    return saved
