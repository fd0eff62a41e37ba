"""tasks: what the field reads, scored on the engine that serves; base and finalists, paired item by item."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from optpipe import judge, serving, stats
from optpipe.backends.evaluators import command
from optpipe.backends.executors.local import EngineSession
from optpipe.errors import BackendFailed, InputError
from optpipe.model import task_hub, task_work
from optpipe.model import tasks as files
from optpipe.outcome import Entry, Outcome
from optpipe.recipe.schema import Recipe
from optpipe.records import (
    Artifact,
    Check,
    Checkpoint,
    Evaluation,
    Job,
    JobResult,
    Json,
    ModelFacts,
    Needs,
    TaskQuality,
)
from optpipe.run import Run
from optpipe.rundir import DigestMemo, digest_json, optpipe_home

SECONDS_PER_REQUEST = 20.0
"""Time limit. Seen: 0.05 s for 32 tokens of a 135M model through vLLM on one thread, 0.1 s by transformers."""


def unscored(recipe: Recipe, out: Outcome) -> list[Entry]:
    """Who leads the selection, and the base of each of their targets, as far as tasks are still to be scored."""
    if not (recipe.tasks.names or recipe.tasks.commands) or out.selection is None:
        return []
    leaders = out.leading(out.selection, recipe.tune.finalists)
    targets = {entry.candidate.target for entry in leaders}
    wanted = [e for e in out.entries if e in leaders or (e.is_base and e.passed and e.candidate.target in targets)]
    return [e for e in wanted if e.evaluation and "tasks" not in e.evaluation.details]


def score_tasks(run: Run, recipe: Recipe, out: Outcome, battery: Battery, entries: Sequence[Entry]) -> None:
    """Each entry's answers from its engine, then its figures beside its base's; what fails is said in its record."""
    done = run.side_by_side(entries, battery.answered)
    for entry, record in sorted(zip(entries, done), key=lambda pair: not pair[0].is_base):
        assert entry.evaluation is not None, "only what passed its evaluation is scored"
        base = None if entry.is_base else out.base_of(entry)
        gate = None if entry.is_base else recipe.tasks.allowed_drop
        evaluation = with_tasks(entry.evaluation, record, base, gate)
        entry.evaluation = run.record(f"06-evaluate/{entry.name}.json", evaluation)


@dataclass(frozen=True)
class Battery:
    """The recipe's tasks as jobs over the base's tokenizer."""

    run: Run
    recipe: Recipe
    facts: ModelFacts
    base: Checkpoint
    options: Json
    inputs: dict[str, Artifact]
    twice: dict[str, int]
    """Task -> documents that transformers is asked too."""

    @classmethod
    def of(cls, run: Run, recipe: Recipe, facts: ModelFacts, base: Checkpoint) -> Battery:
        """Task files read again, their documents fetched and checked."""
        chosen: Json = {}
        metrics: Json = {}
        documents: dict[str, int] = {}
        twice: dict[str, int] = {}
        inputs: dict[str, Artifact] = {}
        for place, task in tasks_of(run, recipe):
            chosen[task.name], metrics[task.name] = task.config, task.metric
            documents[task.name] = twice[task.name] = recipe.tasks.documents_for(task.name)
            if task.generates:
                twice[task.name] = min(documents[task.name], task_work.WRITTEN_TWICE)
            inputs |= files.resolve(task, optpipe_home(), run.talk.say, place)
        options = {"tasks": chosen, "metrics": metrics, "documents": documents}
        return cls(run, recipe, facts, base, options, inputs, twice)

    def answered(self, entry: Entry) -> Json:
        """What the jobs of one candidate say of its tasks; `failures`: why some of them are not scored."""
        record: Json = {"tasks": {}, "jobs": [], "failures": []}
        with serving.session(self.run, self.recipe, entry, {}) as engine:
            if self.recipe.tasks.names:
                self.add(record, partial(self.by_harness, engine, entry))
            for name in self.recipe.tasks.commands:
                self.add(record, partial(self.by_command, engine, entry, name))
        if self.recipe.tasks.transformers and "lm_eval" in record:
            self.add(record, partial(self.by_transformers, entry))
        return record

    def add(self, record: Json, part: Callable[[], Json]) -> None:
        """Some more of a candidate's record, or why it is not there."""
        try:
            found = part()
        except BackendFailed as error:
            reason = f"{error.place}: {error.message}" if error.place else error.message
            self.run.talk.say(f"not scored: {reason}")
            record["failures"].append(reason)
            return
        record["tasks"] |= found.pop("tasks", {})
        record["jobs"] += found.pop("jobs")
        record |= found

    def by_command(self, engine: EngineSession, entry: Entry, name: str) -> Json:
        """What a command of the recipe's says of one candidate, in the form of a task's scores."""
        given, folder = self.recipe.tasks.commands[name], self.run.recipe_folder
        files = {command.name(n): artifact(path) for n, path in enumerate(command.files_of(given, folder))}
        options, needs = command.options_of(given, folder), Needs(timeout_s=given.timeout_s + 60.0)
        title = f"{entry.name}: {name}"
        done = engine.run(Job("command", title, "core", options, files, needs=needs, seed=self.recipe.tasks.seed))
        content = digest_json([options, {name: file.digest for name, file in files.items()}])
        told = {"version": given.version or content[:19], "metric": "score", "content": content}
        return {"tasks": {name: {**done.record, **told}}, "jobs": [done.key]}

    def by_harness(self, engine: EngineSession, entry: Entry) -> Json:
        """What lm-eval says of one candidate's answers."""
        requests = self.requests(entry)
        inputs, needs = {"requests": requests.files}, self.needs(requests)
        answers = engine.run(Job("tasks", f"{entry.name}: tasks", "core", {}, inputs, needs=needs))
        return self.scored(entry.name, requests, answers)

    def by_transformers(self, entry: Entry) -> Json:
        """What transformers answers to the same requests; generated text only to the first few."""
        assert entry.checkpoint is not None, "only a candidate with a checkpoint is served"
        fewer = replace(self, options={**self.options, "documents": self.twice})
        requests, threads = fewer.requests(entry), self.recipe.threads
        inputs = {"requests": requests.files, "model": entry.checkpoint.artifact}
        memory = 3 * entry.checkpoint.bytes + (2 << 30)
        needs = replace(self.needs(requests), cpus=threads, memory_bytes=memory)
        title = f"{entry.name}: tasks by transformers"
        job = Job("tasks-reference", title, "quantize", {}, inputs, needs=needs, threads=threads)
        scored = fewer.scored(entry.name, requests, self.run.executor.run(job))
        return {"transformers": scored["tasks"], "jobs": scored["jobs"]}

    def requests(self, entry: Entry) -> JobResult:
        """The token ids to score: one job for all candidates of a target."""
        longest = self.recipe.targets[entry.candidate.target].max_model_len or self.facts.max_positions
        options = {**self.options, "longest": longest - 1}
        inputs = {**self.inputs, "model": self.base.artifact}
        return self.run.executor.run(
            Job("task-requests", "tasks: requests", "tasks", options, inputs, seed=self.recipe.tasks.seed)
        )

    def scored(self, name: str, requests: JobResult, answers: JobResult) -> Json:
        """lm-eval's verdict on answers, with the jobs that led to it."""
        inputs = {**self.inputs, "answers": answers.files}
        seed = self.recipe.tasks.seed
        done = self.run.executor.run(
            Job("task-scores", f"{name}: task scores", "tasks", self.options, inputs, seed=seed)
        )
        found = {task: {**value, "content": self.content(task)} for task, value in done.record["tasks"].items()}
        jobs = [requests.key, answers.key, done.key]
        return {"tasks": found, "lm_eval": done.record["lm_eval"], "jobs": jobs, "cut": requests.record["cut"]}

    def content(self, task: str) -> str:
        """The digest of a task's keys, documents and code."""
        starts = (f"data.{task}.", f"code.{task}.")
        files_ = {name: file.digest for name, file in self.inputs.items() if name.startswith(starts)}
        return digest_json([self.options["tasks"][task], files_])

    def needs(self, requests: JobResult) -> Needs:
        return Needs(timeout_s=max(7200.0, SECONDS_PER_REQUEST * float(requests.record["requests"])))


def tasks_of(run: Run, recipe: Recipe) -> Iterator[tuple[str, files.Task]]:
    """(place in the recipe, task) of each name; the keys of lm-eval's own come from the installed lm-eval."""
    named, allow = enumerate(recipe.tasks.names), tuple(recipe.tasks.allow)
    places = {f"tasks.names.{number}": (name, task_hub.parse(name)) for number, name in named}
    theirs = [parsed[0] for _, parsed in places.values() if parsed]
    job = Job("task-library", "tasks: lm-eval's own", "tasks", {"names": theirs})
    library = run.executor.run(job) if theirs else None
    for place, (name, parsed) in places.items():
        if library is None or parsed is None:
            yield place, files.read(name, run.recipe_folder, allow, place)
            continue
        own, commit = parsed
        if own in library.record["unknown"]:
            near = ", ".join(library.record["unknown"][own]) or "none"
            raise InputError(f"lm-eval has no task {own!r}", place=place, hint=f"close names: {near}")
        code = run.executor.present(library.files).path / own
        yield place, task_hub.of_hub(library.record["tasks"][own], commit, code, allow, place)


def artifact(path: Path) -> Artifact:
    return Artifact(path, DigestMemo(optpipe_home() / "digests.sqlite").file(path))


# ---------------------------------------------------------------- figures


def with_tasks(evaluation: Evaluation, record: Json, base: Evaluation | None, gate: float | None) -> Evaluation:
    """An evaluation with the tasks that `record` scores, and the verdict on them where there is a gate.

    `base`: the evaluation of the base on the same target; None for the base itself, and where it has none.
    `gate`: per cent points that may be lost.
    """
    told: Json = {key: record[key] for key in ("lm_eval", "cut", "failures") if record.get(key) not in (None, [])}
    theirs = {task.task: task for task in base.tasks} if base else {}
    found = tuple(quality(name, value, theirs.get(name)) for name, value in record["tasks"].items())
    if "transformers" in record:
        told["transformers"] = {name: agreement(record["tasks"][name], v) for name, v in record["transformers"].items()}
    checks = evaluation.checks
    status = evaluation.status
    if gate is not None:
        checks = (*checks, drop_check(found, base, gate, record["failures"]))
        status = judge.combine(checks)
    details = {**evaluation.details, "tasks": told}
    every = tuple(dict.fromkeys((*evaluation.jobs, *record["jobs"])))
    return replace(evaluation, checks=checks, status=status, jobs=every, details=details, tasks=found)


def quality(name: str, record: Json, base: TaskQuality | None) -> TaskQuality:
    """One task's figures; paired with the base's where the same items were asked."""
    items = tuple(item["id"] for item in record["items"])
    correct = tuple(item["correct"] for item in record["items"])
    own = TaskQuality(
        task=name,
        version=record["version"],
        metric=record["metric"],
        accuracy=stats.proportion(sum(correct), len(correct)),
        items=items,
        correct=correct,
        figures=record["metrics"],
        content=record.get("content", ""),
    )
    if base is None or base.items != items or base.content != own.content:
        return own
    lost, won = stats.flips(base.correct, correct)
    return replace(
        own,
        base_accuracy=base.accuracy.value,
        change_points=stats.paired_accuracy([(base.correct, correct)]),
        lost=tuple(items[at] for at in lost),
        won=tuple(items[at] for at in won),
        p_different=stats.mcnemar(len(lost), len(won)),
    )


def agreement(engine: Json, transformers: Json) -> Json:
    """How far the engine's answers are from those of transformers to the same requests; log-likelihoods in nats,
    generated text by how many are the same to the last character."""
    own = {item["id"]: item for item in engine["items"]}
    pairs = [(own[theirs["id"]], theirs) for theirs in transformers["items"]]
    found = {
        "accuracy": transformers["correct"] / transformers["n"],
        "items": len(pairs),
        "items_that_differ": [mine["id"] for mine, theirs in pairs if mine["correct"] != theirs["correct"]],
    }
    if "text" in pairs[0][0]:
        return {**found, "same_texts": sum(mine["text"] == theirs["text"] for mine, theirs in pairs)}
    off = [abs(a - b) for mine, theirs in pairs for a, b in zip(mine["logprobs"], theirs["logprobs"], strict=True)]
    return {**found, "mean_abs": sum(off) / len(off), "max_abs": max(off)}


def drop_check(found: Sequence[TaskQuality], base: Evaluation | None, allowed: float, failures: Sequence[str]) -> Check:
    """The gate on the mean of the tasks' differences; open where a task of one side is not scored."""
    name = "accuracy on tasks"
    theirs = {task.task: task for task in base.tasks} if base else {}
    pairs = [(theirs[t.task].correct, t.correct) for t in found if t.change_points is not None]
    alone = [task.task for task in found if task.change_points is None]
    if failures or alone or not pairs:
        why = "; ".join(failures) or f"nothing of the base to pair {' and '.join(alone) or 'with'}"
        return Check(name, "inconclusive", f"{name} is not known: {why}", None, -allowed)
    return judge.gate(name, stats.paired_accuracy(pairs), -allowed, judge.points, at_most=False)
