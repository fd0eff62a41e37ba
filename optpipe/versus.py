"""Two versions held against each other on this machine: quality on the same text, then serving by turns.

Quality first: both scored on the same tokens, and perplexity must not rise over the champion's by more than the
perplexity gate. Where the two come from different bases their tokens may differ, so both are scored on the same
pieces of text, and the rise is told per token of the champion's: the same gate on what does not depend on a
tokenizer. Tasks that both were scored on are told, and decide where the recipe gates them. Then serving: champion
and challenger by turns, each with its own configuration and environment, and neither goodput nor output tokens per
second may be lower by more than the limit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from optpipe import drift, gates, judge, serving, stats
from optpipe.backends.engines import ENGINES, file_of
from optpipe.backends.engines.files import yaml_text
from optpipe.errors import BackendFailed
from optpipe.recipe.schema import Recipe
from optpipe.records import (
    Artifact,
    Check,
    Checkpoint,
    Compiled,
    EngineSpec,
    Evaluation,
    Json,
    Measured,
    Scored,
    Status,
    TaskQuality,
    foreign,
    from_json,
)
from optpipe.run import Run
from optpipe.rundir import digest_json, read_json, read_yaml

SERVING_LOSS_PCT = 10.0
"""A key figure that is worse by more than this blocks (the practitioners' rule for regressions)."""
KEY_FIGURES = {"goodput_per_s": ("goodput", "requests/s"), "output_tokens_per_s": ("output", "tokens/s")}
"""Of a load, what must not fall: what is served inside the SLO, and what is served at all."""
ROUNDS, MAX_ROUNDS = 2, 4
"""Loads of each version, by turns: so many at first, and up to so many while a verdict is open."""
SEED_STEP = 2000
"""Added to the recipe's seed: prompts that neither tuning nor confirmation has seen."""
PAIRS = 1 << 24
"""Each pair of versions has one of so many seeds of its own: figures of another day, kept for another pair or
from when the champion was itself a challenger, are no figures of this comparison."""


class Scorer(Protocol):
    """What scores two models on the same units of the recipe's texts (stages/evaluate.py)."""

    @property
    def texts(self) -> Mapping[str, Artifact]: ...

    def rounds(self) -> tuple[tuple[int, int], ...]: ...

    def pairs(
        self, one: Scored, other: Scored, texts: tuple[str, ...], first: int, rows: int
    ) -> Iterator[tuple[str, list[Json], list[Json], tuple[str, str]]]: ...

    def pieces(
        self, one: Scored, other: Scored, texts: tuple[str, ...], first: int, rows: int
    ) -> Iterator[tuple[str, list[Json], list[Json], list[int]]]: ...


@dataclass(frozen=True)
class Champion:
    """The version that holds the alias: its model, where it came from, and how it is served."""

    digest: str
    checkpoint: Scored
    base_digest: str
    engine: str
    config: Json
    environment: dict[str, str]
    compiles: Json | None = None
    tasks: tuple[TaskQuality, ...] = ()
    """With every item, from when it was built."""

    @classmethod
    def read(cls, digest: str, folder: Path) -> Champion:
        """What a published bundle says of itself."""
        about = read_json(folder / "optpipe.json")
        target, digits = about["target"], (about["bytes"], about["bits_per_weight"])
        model: Scored = Checkpoint("champion", folder, about["model_digest"], *digits, about["scheme"], 0.0, 0)
        if made := about.get("compiled"):
            model = Compiled("champion", built=True, path=folder, digest=model.model_digest, bytes=model.bytes, **made)
        environment = {name: str(value) for name, value in target["environment"].items()}
        config = dict(read_yaml(folder / file_of(target["engine"])) or {})
        tasks = tasks_of(folder, about)
        served = (target["engine"], config, environment, target.get("compiles"))
        return cls(digest, model, about["base"]["digest"], *served, tasks)


def tasks_of(folder: Path, about: Json) -> tuple[TaskQuality, ...]:
    """What a published bundle's own records say of tasks; `about`: its optpipe.json."""
    judged = folder / "records" / "06-evaluate" / f"{about['candidate']}.json"
    return from_json(Evaluation, read_json(judged)).tasks if judged.is_file() else ()


@dataclass(frozen=True)
class Challenger:
    """The new version: its model, where it came from, and the engine that serves it here."""

    digest: str
    checkpoint: Scored
    base_digest: str
    spec: EngineSpec
    loss_pct: float = SERVING_LOSS_PCT
    """How much of each key figure of the champion's it may lose, in per cent."""
    tasks: tuple[TaskQuality, ...] = ()


def versus(run: Run, recipe: Recipe, scorer: Scorer, new: Challenger, champion: Champion) -> tuple[Check, ...]:
    """Every check in its order; what comes after one that was not passed would change nothing."""
    if champion.engine != new.spec.engine:
        reason = f"the champion is served by {champion.engine}, not by {new.spec.engine}: no load compares the two"
        return (Check("same engine", "inconclusive", reason),)
    theirs, mine = (getattr(one.checkpoint, "bound_to", {}) for one in (champion, new))
    if theirs and (elsewhere := foreign(theirs, mine)):
        reason = f"the champion cannot be served here: {elsewhere}; build its recipe anew to compare"
        return (Check("same binding", "inconclusive", reason),)
    on_tasks = judge.tasks_against(champion.tasks, new.tasks, recipe.tasks.allowed_drop)
    checks = (*tried("quality", lambda: quality(recipe, scorer, new, champion)), *on_tasks)
    if judge.combine(checks) != "passed":
        return checks
    return (*checks, *tried("serving", lambda: throughput(run, recipe, new, champion)))


def tried(what: str, measure: Callable[[], tuple[Check, ...]]) -> tuple[Check, ...]:
    """The checks, or that they could not be made: the new version is published whatever a champion does."""
    try:
        return measure()
    except BackendFailed as error:
        place = f"{error.place}: " if error.place else ""
        return (Check(what, "inconclusive", f"{what} could not be compared: {place}{error.message}"),)


# ---------------------------------------------------------------- quality


@dataclass
class Seen:
    """One text so far: units of the champion and of the challenger, and the bytes of each, where they count."""

    theirs: list[Json]
    mine: list[Json]
    sizes: list[int]

    def check(self, text: str, limit: float, looks: int) -> Check:
        """The change of perplexity on all units so far."""
        if not self.sizes:
            change = drift.paired_change(self.theirs, self.mine, looks)
            return judge.gate(f"perplexity on {text} against the champion's", change, limit, judge.per_cent)
        change = drift.change_per_byte(self.theirs, self.mine, looks)
        name = f"perplexity on {text} per token of the champion's"
        check = judge.gate(name, change, limit, judge.per_cent)
        mine, theirs = (drift.bits_per_byte(units, self.sizes) for units in (self.mine, self.theirs))
        told = f"{check.reason}; bits per byte {mine:.3f} against {theirs:.3f} ({len(self.sizes)} pieces)"
        return replace(check, reason=told)


def quality(recipe: Recipe, scorer: Scorer, new: Challenger, champion: Champion) -> tuple[Check, ...]:
    """Change of perplexity from champion to challenger on each text, paired; on while a text's verdict is open."""
    theirs, mine = champion.checkpoint, new.checkpoint
    if mine.model_digest == theirs.model_digest:
        return (Check("same weights", "passed", "champion and challenger are the same model"),)
    score = same_tokens if new.base_digest == champion.base_digest else same_text
    limit, looks = gates.resolve(recipe.gates).perplexity_increase_pct, scorer.rounds()
    seen = {text: Seen([], [], []) for text in sorted(scorer.texts)}
    checks: dict[str, Check] = {}
    for first, rows in looks:
        undecided = tuple(text for text in seen if text not in checks or checks[text].status == "inconclusive")
        if not undecided or any(check.status == "rejected" for check in checks.values()):
            break
        for text, one, other, sizes in score(scorer, (theirs, mine), undecided, first, rows):
            seen[text].theirs += one
            seen[text].mine += other
            seen[text].sizes += sizes
            checks[text] = seen[text].check(text, limit, len(looks))
    return tuple(checks.values())


Units = Iterator[tuple[str, list[Json], list[Json], list[int]]]


def same_tokens(
    scorer: Scorer, both: tuple[Scored, Scored], texts: tuple[str, ...], first: int, rows: int
) -> Units:
    """Both models on the same token ids."""
    for text, one, other, _ in scorer.pairs(*both, texts, first, rows):
        yield text, one, other, []


def same_text(
    scorer: Scorer, both: tuple[Scored, Scored], texts: tuple[str, ...], first: int, rows: int
) -> Units:
    """Each model on its own tokens of the same pieces of text."""
    yield from scorer.pieces(*both, texts, first, rows)


# ---------------------------------------------------------------- serving


def throughput(run: Run, recipe: Recipe, new: Challenger, champion: Champion) -> tuple[Check, ...]:
    """Key figures of both, by turns under loads that neither was tuned on; on while one is open."""
    both = {"champion": champion_spec(new, champion), "challenger": new.spec}
    if len({(spec.model.digest, digest_json([spec.config, spec.environment])) for spec in both.values()}) == 1:
        return (Check("goodput", "passed", "champion and challenger are served the same way"),)
    pair = int(digest_json([champion.digest, new.digest]).removeprefix("sha256:"), 16) % PAIRS
    rates: dict[str, dict[str, list[float]]] = {name: {key: [] for key in KEY_FIGURES} for name in both}
    looks = MAX_ROUNDS - ROUNDS + 1 if recipe.on_inconclusive == "extend" else 1
    for turn in range(ROUNDS + looks - 1):
        for name, spec in both.items():
            with run.executor.session(spec, park=True) as engine:
                title, seed = f"{name}: load {turn + 1}", recipe.seed + SEED_STEP + pair + turn
                loaded = serving.measure(recipe, new.checkpoint, engine, title, seed)
            if judge.combine(loaded.checks) != "passed":
                return tuple(no_result(name, check) for check in loaded.checks if check.status != "passed")
            for key in KEY_FIGURES:
                rates[name][key] += loaded.figures.batches[key]
        if turn < ROUNDS - 1:
            continue
        checks = tuple(key_check(key, rates, new.loss_pct, looks) for key in KEY_FIGURES)
        if judge.combine(checks) != "inconclusive":
            break
    return checks


def key_check(key: str, rates: Mapping[str, Mapping[str, list[float]]], loss_pct: float, looks: int) -> Check:
    word, unit = KEY_FIGURES[key]
    theirs, mine = (stats.rate(rates[name][key], unit) for name in ("champion", "challenger"))
    return rate_check(word, theirs, mine, loss_pct, looks)


def no_result(name: str, check: Check) -> Check:
    """A load that is no result: of the challenger it speaks against it, of the champion it says nothing."""
    status: Status = check.status if name == "challenger" else "inconclusive"
    return replace(check, status=status, reason=f"under the {name}'s load, {check.reason}")


def champion_spec(new: Challenger, champion: Champion) -> EngineSpec:
    """The challenger's engine with the champion's model, configuration and environment."""
    model, mine = champion.checkpoint, new.spec
    memory = mine.needs.memory_bytes + max(0, model.bytes - new.checkpoint.bytes)
    engine = ENGINES[mine.engine]
    gpus = engine.devices(champion.config) if mine.needs.gpus else 0
    return replace(
        mine,
        title="champion",
        model=model.artifact,
        served_name="champion",
        config=champion.config,
        config_text=yaml_text(champion.config),
        argv=engine.argv(str(model.path), "champion"),
        environment=champion.environment,
        compiles=champion.compiles,
        needs=replace(mine.needs, memory_bytes=memory, gpus=gpus),
    )


def rate_check(word: str, champion: Measured, challenger: Measured, loss_pct: float, looks: int = 1) -> Check:
    """Passed where a rate is surely not lower by more than `loss_pct`, rejected where it surely is.

    `looks`: how many times at most the verdict is taken while measuring goes on.
    """
    if champion.value <= 0.0:
        return Check(word, "passed", f"the champion's {word} is 0", challenger.value)
    level = 1.0 - stats.ALPHA_PER_LOOK[looks] if looks > 1 else 0.95
    gap = stats.difference_of(challenger, champion, level)
    if gap is None or gap.bounds95 is None:
        return Check(word, "inconclusive", f"too few requests to compare {word} with the champion's")
    low, high = (100.0 * end / champion.value for end in gap.bounds95)
    limit = -loss_pct
    status: Status = "passed" if low > limit else "rejected" if high < limit else "inconclusive"
    change = 100 * gap.value / champion.value
    reason = (
        f"{word} {challenger.value:.3g} against the champion's {champion.value:.3g} {champion.unit} "
        f"({change:+.0f} % [{low:+.0f}, {high:+.0f}], n = {challenger.n} and {champion.n} batches; "
        f"at most {loss_pct:g} % may be lost)"
    )
    if status == "inconclusive":
        width = max(high - low, 1e-9) / 2
        gap_pct = max(abs(change - limit), 1e-9)
        times = math.ceil((width / gap_pct) ** 2) if width < 10 * gap_pct else 100
        reason += f": a load of about {times} times as many requests would decide" if times < 100 else (
            ": the difference lies at the limit, and no load of a sensible length decides that"
        )
    return Check(word, status, reason, change, limit)
