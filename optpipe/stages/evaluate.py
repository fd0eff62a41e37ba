"""evaluate: a candidate's quality against its base; checks on the checkpoint come before any engine starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from optpipe import drift, gates, judge
from optpipe.backends.evaluators.canary import PROMPTS
from optpipe.backends.executors.local import EngineSession
from optpipe.model.texts import check_rows
from optpipe.outcome import Entry, reference_of
from optpipe.recipe.schema import Recipe
from optpipe.records import (
    Artifact,
    Check,
    Checkpoint,
    Compiled,
    Evaluation,
    Job,
    JobResult,
    Json,
    Needs,
    Scored,
    TextQuality,
)
from optpipe.run import Run

BYTES_PER_TOKEN = 4
"""About what a token of English text has: pieces of text are then about as long as units of tokens."""

Pair = tuple[str, list[Json], list[Json], tuple[str, str]]
"""A text, its units as two models score them, and the keys of the two jobs."""


class Scorer:
    """Scores models on the recipe's texts, round by round; the base's logits are computed once for all."""

    def __init__(self, run: Run, recipe: Recipe, base: Scored, texts: Mapping[str, Artifact]) -> None:
        self.run, self.recipe, self.base, self.texts = run, recipe, base, texts

    def check_texts(self) -> None:
        """Refuse a text that has fewer units than the recipe asks for: InputError with how many there are."""
        scoring = self.recipe.scoring

        def check(text: str) -> None:
            record = self.token_job(text, *self.rounds()[0]).record
            check_rows(record, f"texts.{text}", scoring.units, scoring.unit_tokens)

        self.run.side_by_side(sorted(self.texts), check)

    def token_job(self, text: str, first: int, rows: int) -> JobResult:
        """Units [first, first + rows) of a text, or as many of them as it has."""
        scoring = self.recipe.scoring
        options = {"length": scoring.unit_tokens, "first_row": first, "rows": rows, "template": False, "min_rows": 0}
        inputs = {"model": self.base.artifact, "text": self.texts[text]}
        job = Job("tokens", f"{text}: tokens", "quantize", options, inputs, seed=scoring.seed)
        return self.run.executor.run(job)

    def tokens(self, text: str, first: int, rows: int) -> Artifact:
        """The fixed token ids of units [first, first + rows) of a text: int32 [rows, unit_tokens]."""
        return self.token_job(text, first, rows).files

    def shares(self, texts: tuple[str, ...], first: int, rows: int) -> list[tuple[tuple[str, ...], int]]:
        """(texts, units) of one look: a text that ends within it gives what it still has, one that ended nothing."""
        counts = {text: int(self.token_job(text, first, rows).record["rows"]) for text in texts}
        return [
            (tuple(text for text in texts if counts[text] == count), count)
            for count in sorted(set(counts.values()) - {0}, reverse=True)
        ]

    def score(self, model: Scored, texts: tuple[str, ...], first: int, rows: int) -> JobResult:
        """One job: `model` on the same units of each text; the base keeps its logits for the others."""
        inputs = {f"tokens.{text}": self.tokens(text, first, rows) for text in texts}
        is_base = model.model_digest == self.base.model_digest
        if not is_base and isinstance(self.base, Checkpoint):
            inputs["base"] = self.score(self.base, texts, first, rows).files
        return self.score_job(model, inputs, keep_logits=is_base)

    def score_job(self, model: Scored, inputs: Mapping[str, Artifact], keep_logits: bool = False) -> JobResult:
        """`model` on the tokens among `inputs`."""
        kind, toolchain, options = "score", "quantize", {"dtype": "bfloat16", "keep_logits": keep_logits}
        if isinstance(model, Compiled) and model.score:
            kind, toolchain, options = model.score, model.toolchain, {}
        needs = Needs(
            cpus=self.recipe.threads, gpus=min(1, self.run.hardware.gpus), memory_bytes=3 * model.bytes + (2 << 30)
        )
        texts = sorted(name.partition(".")[2] for name in inputs if name.startswith("tokens."))
        title, inputs = f"{model.name}: score {' and '.join(texts)}", {"model": model.artifact, **inputs}
        return self.run.executor.run(
            Job(kind, title, toolchain, options, inputs, needs=needs, threads=self.recipe.threads)
        )

    def pairs(self, one: Scored, other: Scored, texts: tuple[str, ...], first: int, rows: int) -> Iterator[Pair]:
        """Both models on units [first, first + rows) of each text, or as many of them as it has."""
        for together, units in self.shares(texts, first, rows):
            done = [self.score(model, together, first, units) for model in (one, other)]
            for number, text in enumerate(together):
                part = slice(number * units, (number + 1) * units)
                mine, theirs = (result.record["units"][part] for result in done)
                yield text, mine, theirs, (done[0].key, done[1].key)

    def pieces(
        self, one: Scored, other: Scored, texts: tuple[str, ...], first: int, rows: int
    ) -> Iterator[tuple[str, list[Json], list[Json], list[int]]]:
        """Both models, each with its own tokenizer, on the same pieces of each text, and the pieces' bytes."""
        size = BYTES_PER_TOKEN * self.recipe.scoring.unit_tokens
        options = {"bytes": size, "first_row": first, "rows": rows}
        for text in texts:
            found = []
            for model in (one, other):
                inputs = {"model": model.artifact, "text": self.texts[text]}
                title, seed = f"{model.name}: pieces of {text}", self.recipe.scoring.seed
                cut = self.run.executor.run(Job("excerpts", title, "quantize", options, inputs, seed=seed))
                found.append((cut.record["bytes"], self.score_job(model, {f"tokens.{text}": cut.files}).record))
            (sizes, mine), (_, theirs) = found
            yield text, mine["units"], theirs["units"], sizes

    def rounds(self) -> tuple[tuple[int, int], ...]:
        """(first unit, units) of each look: the recipe's number, then doubled up to its budget."""
        scoring, looks, done, goal = self.recipe.scoring, [], 0, self.recipe.scoring.units
        while done < goal:
            looks.append((done, goal - done))
            done, goal = goal, min(2 * goal, max(scoring.max_units, goal))
        return tuple(looks) if self.recipe.on_inconclusive == "extend" else tuple(looks[:1])

    @property
    def sample(self) -> tuple[str, int, int]:
        """(text, first unit, units) of what the engine is compared on; the text whose rows come first."""
        first, rows = self.rounds()[0]
        return min(self.texts), first, rows


@dataclass
class Tally:
    """One text while it is measured: units of base and candidate so far, figures and checks."""

    base: tuple[Json, ...] = ()
    mine: tuple[Json, ...] = ()
    sample: tuple[str, ...] = ()
    figures: TextQuality | None = None
    checks: tuple[Check, ...] = ()

    def add(self, text: str, pair: tuple[list[Json], list[Json]], sample: str, limits: gates.Gates, looks: int) -> None:
        base, mine = pair
        self.base, self.mine, self.sample = (*self.base, *base), (*self.mine, *mine), (*self.sample, sample)
        figures = drift.text_quality(text, self.base, self.mine, looks=looks)
        self.figures = replace(figures, sample=self.sample)
        self.checks = judge.text_checks(self.figures, limits)


def on_checkpoint(scorer: Scorer, entry: Entry) -> Evaluation:
    """Artifact checks, then perplexity, divergence and agreement; measuring goes on where a verdict is open.

    What was compiled and can be scored is scored itself, and once compared with its checkpoint.
    """
    checkpoint, limits = entry.checkpoint, gates.for_scheme(scorer.recipe.gates, entry.bits)
    assert checkpoint is not None, "quantized first"
    planned = entry.planned.bits_per_weight.value
    not_finite = checkpoint.details.get("not_finite", ())
    checks = judge.artifact_checks(checkpoint, scorer.base.bytes, planned, limits, not_finite)
    if checkpoint.scheme is not None:
        checks += (judge.coverage_check(checkpoint.details["asked"], checkpoint.details["left"]),)
    digest = entry.scored.model_digest
    if judge.combine(checks) == "passed" and entry.scored is not checkpoint:
        checks += compiled_checks(scorer, entry)
    if judge.combine(checks) != "passed":
        return recorded(scorer.run, Evaluation(entry.name, digest, judge.combine(checks), checks, ()))
    tallies = {text: Tally() for text in sorted(scorer.texts)}
    jobs: list[str] = []
    looks = scorer.rounds()
    for first, rows in looks:
        undecided = tuple(text for text, tally in tallies.items() if judge.combine(tally.checks) in OPEN)
        if not undecided or any(judge.combine(tally.checks) == "rejected" for tally in tallies.values()):
            break
        for text, base, mine, keys in scorer.pairs(scorer.base, entry.scored, undecided, first, rows):
            sample = scorer.tokens(text, first, rows).digest
            tallies[text].add(text, (base, mine), sample, limits, len(looks))
            jobs += keys
    every = (*checks, *(check for tally in tallies.values() for check in tally.checks))
    figures = tuple(tally.figures for tally in tallies.values() if tally.figures)
    status, once = judge.combine(every), tuple(dict.fromkeys(jobs))
    return recorded(scorer.run, Evaluation(entry.name, digest, status, every, figures, once))


def compiled_checks(scorer: Scorer, entry: Entry) -> tuple[Check, ...]:
    """Perplexity of the compiled artifact against its checkpoint's by transformers, on the first look's units."""
    assert entry.checkpoint is not None and entry.compiled is not None
    texts, (first, rows) = tuple(sorted(scorer.texts)), scorer.rounds()[0]
    return tuple(
        judge.compiled_check(text, drift.paired_change(theirs, mine, 1), entry.compiled.changes)
        for text, theirs, mine, _ in scorer.pairs(entry.checkpoint, entry.compiled, texts, first, rows)
    )


def recorded(run: Run, evaluation: Evaluation) -> Evaluation:
    return run.record(f"06-evaluate/{evaluation.candidate}.json", evaluation)


OPEN = ("skipped", "inconclusive")
"""What a text's checks combine to while more units may still decide."""


def on_engine(scorer: Scorer, engine: EngineSession, entry: Entry, base: Evaluation | None) -> Evaluation:
    """Canary and agreement with transformers on the engine that serves, added to what is known.

    `base`: the base's own evaluation on an engine, against which both are read; None for the base itself.
    """
    assert entry.evaluation is not None and entry.checkpoint is not None, "judged on its checkpoint first"
    limits = gates.for_scheme(scorer.recipe.gates, entry.bits)
    known = base.details if base else {}
    canary = engine.run(canary_job(scorer.recipe, entry.name, known.get("canary")))
    details, jobs = {"canary": canary.record}, [canary.key]
    checks = [judge.canary_check(canary.record)]
    if checks[0].status == "passed":
        parity = engine.run(parity_job(scorer, entry.name, entry.scored))
        checks += judge.parity_check(parity.record, known.get("parity"), limits, entry.reference)
        details["parity"] = parity.record
        jobs.append(parity.key)
    every = (*entry.evaluation.checks, *checks)
    every_job = (*entry.evaluation.jobs, *jobs)
    status = judge.combine(every)
    done = replace(entry.evaluation, checks=every, status=status, jobs=every_job, details=details)
    return recorded(scorer.run, done)


def canary_job(recipe: Recipe, name: str, base: Json | None) -> Job:
    options = {"prompts": list(PROMPTS), "max_tokens": recipe.scoring.canary_tokens, "base": base}
    return Job("canary", f"{name}: canary", "core", options)


def shipping_checks(scorer: Scorer, entry: Entry, base: Evaluation | None) -> tuple[Job, Job]:
    """Canary and agreement with transformers, to be run again on the configuration that ships."""
    assert entry.checkpoint is not None, "only a candidate with a checkpoint ships"
    canary = canary_job(scorer.recipe, entry.name, base.details.get("canary") if base else None)
    return canary, parity_job(scorer, entry.name, entry.scored)


def parity_job(scorer: Scorer, name: str, model: Scored) -> Job:
    """The engine against what scored the model, on the first units of the first text, the same ids."""
    text, first, rows = scorer.sample
    score = scorer.score(model, tuple(sorted(scorer.texts)), first, rows)
    inputs = {"tokens": scorer.tokens(text, first, rows), "score": score.files}
    options = {"rows": scorer.recipe.scoring.parity_units}
    return Job("parity", f"{name}: agreement with {reference_of(model)}", "core", options, inputs)
