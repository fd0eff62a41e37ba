"""tasks: what the field reads, scored on the engine that serves; base and finalists, paired item by item."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from optpipe import judge, serving, stats
from optpipe.errors import BackendFailed
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
from optpipe.rundir import optpipe_home

SECONDS_PER_REQUEST = 20.0
"""Time limit. Seen: 0.05 s for 32 tokens of a 135M model through vLLM on one thread, 0.1 s by transformers."""


WRITTEN_TWICE = 8
"""Documents of a task with generated text that transformers is asked too: it writes them one by one."""


def unscored(recipe: Recipe, out: Outcome) -> list[Entry]:
    """Who leads the selection, and the base of each of their targets, as far as tasks are still to be scored."""
    if not recipe.tasks.names or out.selection is None:
        return []
    leaders = out.leading(out.selection, recipe.tune.finalists)
    targets = {entry.candidate.target for entry in leaders}
    wanted = [e for e in out.entries if e in leaders or (e.is_base and e.passed and e.candidate.target in targets)]
    return [e for e in wanted if e.evaluation and "tasks" not in e.evaluation.details]


def score_tasks(run: Run, recipe: Recipe, out: Outcome, entries: Sequence[Entry]) -> None:
    """Each entry's answers from its engine, then its figures beside its base's; what fails is said in its record."""
    battery = Battery.of(run, recipe, out.facts, out.base)
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
    by_transformers: dict[str, int]
    """Task -> documents that transformers is asked too."""

    @classmethod
    def of(cls, run: Run, recipe: Recipe, facts: ModelFacts, base: Checkpoint) -> Battery:
        """Task files read again, their documents fetched and checked."""
        chosen: Json = {}
        metrics: Json = {}
        documents: dict[str, int] = {}
        by_transformers: dict[str, int] = {}
        inputs: dict[str, Artifact] = {}
        for number, name in enumerate(recipe.tasks.names):
            place = f"tasks.names.{number}"
            task = files.read(name, run.recipe_folder, tuple(recipe.tasks.allow), place)
            chosen[task.name], metrics[task.name] = task.config, task.metric
            documents[task.name] = by_transformers[task.name] = recipe.tasks.documents
            if task.generates:
                by_transformers[task.name] = min(recipe.tasks.documents, WRITTEN_TWICE)
            inputs |= files.resolve(task, optpipe_home(), run.talk.say, place)
        options = {"tasks": chosen, "metrics": metrics, "documents": documents}
        return cls(run, recipe, facts, base, options, inputs, by_transformers)

    def answered(self, entry: Entry) -> Json:
        """What the jobs of one candidate say of its tasks; {"failure": reason} where one of them failed."""
        try:
            return self._answered(entry)
        except BackendFailed as error:
            self.run.talk.say(f"{entry.name}: tasks were not scored: {error.message}")
            return {"failure": error.message}

    def _answered(self, entry: Entry) -> Json:
        requests = self.requests(entry)
        inputs, needs = {"requests": requests.files}, self.needs(requests)
        with serving.session(self.run, self.recipe, entry, {}) as engine:
            answers = engine.run(Job("tasks", f"{entry.name}: tasks", "core", {}, inputs, needs=needs))
        record = self.scored(entry.name, requests, answers)
        if not self.recipe.tasks.transformers:
            return record
        fewer = replace(self, options={**self.options, "documents": self.by_transformers})
        return record | {"transformers": fewer.reference(entry)["tasks"]}

    def reference(self, entry: Entry) -> Json:
        """What transformers answers to the same requests; generated text only to the first few."""
        assert entry.checkpoint is not None, "only a candidate with a checkpoint is served"
        requests, threads = self.requests(entry), self.recipe.threads
        inputs = {"requests": requests.files, "model": entry.checkpoint.artifact}
        memory = 3 * entry.checkpoint.bytes + (2 << 30)
        needs = replace(self.needs(requests), cpus=threads, memory_bytes=memory)
        title = f"{entry.name}: tasks by transformers"
        job = Job("tasks-reference", title, "quantize", {}, inputs, needs=needs, threads=threads)
        return self.scored(entry.name, requests, self.run.executor.run(job))

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
        return {**done.record, "jobs": [requests.key, answers.key, done.key], "cut": requests.record["cut"]}

    def needs(self, requests: JobResult) -> Needs:
        return Needs(timeout_s=max(7200.0, SECONDS_PER_REQUEST * float(requests.record["requests"])))


# ---------------------------------------------------------------- figures


def with_tasks(evaluation: Evaluation, record: Json, base: Evaluation | None, gate: float | None) -> Evaluation:
    """An evaluation with the tasks that `record` scores, and the verdict on them where there is a gate.

    `base`: the evaluation of the base on the same target; None for the base itself, and where it has none.
    `gate`: per cent points that may be lost.
    """
    if "failure" in record:
        told: Json = {"failure": record["failure"]}
        found: tuple[TaskQuality, ...] = ()
        jobs: tuple[str, ...] = ()
    else:
        told = {"lm_eval": record["lm_eval"], "cut": record["cut"]}
        theirs = {task.task: task for task in base.tasks} if base else {}
        found = tuple(quality(name, value, theirs.get(name)) for name, value in record["tasks"].items())
        jobs = tuple(record["jobs"])
        if "transformers" in record:
            told["transformers"] = {
                name: agreement(record["tasks"][name], v) for name, v in record["transformers"].items()
            }
    checks = evaluation.checks
    status = evaluation.status
    if gate is not None:
        checks = (*checks, drop_check(found, base, gate, record.get("failure")))
        status = judge.combine(checks)
    details = {**evaluation.details, "tasks": told}
    every = tuple(dict.fromkeys((*evaluation.jobs, *jobs)))
    return replace(evaluation, checks=checks, status=status, jobs=every, details=details, tasks=found)


def quality(name: str, record: Json, base: TaskQuality | None) -> TaskQuality:
    """One task's figures; paired with the base's where the same items were asked."""
    items = tuple(int(item["id"]) for item in record["items"])
    correct = tuple(int(item["correct"]) for item in record["items"])
    own = TaskQuality(
        task=name,
        version=record["version"],
        metric=record["metric"],
        accuracy=stats.proportion(sum(correct), len(correct)),
        items=items,
        correct=correct,
        figures=record["metrics"],
    )
    if base is None or base.items != items:
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


def drop_check(found: Sequence[TaskQuality], base: Evaluation | None, allowed: float, failure: str | None) -> Check:
    """The gate on the mean of the tasks' differences; open where the tasks of one side are not scored."""
    name = "accuracy on tasks"
    theirs = {task.task: task for task in base.tasks} if base else {}
    pairs = [(theirs[t.task].correct, t.correct) for t in found if t.change_points is not None]
    if failure or not pairs:
        reason = f"{name} is not known: {failure or 'the tasks of the base were not scored'}"
        return Check(name, "inconclusive", reason, None, -allowed)
    return judge.gate(name, stats.paired_accuracy(pairs), -allowed, points, at_most=False)


def points(value: float) -> str:
    return f"{value:+.1f} points"
