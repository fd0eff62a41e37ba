"""challenge: may a new version take the champion's place? Judged anew for both, interleaved, on this machine.

Quality: both scored on the same tokens; the new one must not be worse than the champion by more than the
perplexity gate. Serving: champion and challenger by turns, each with its own configuration; goodput must not be
surely lower by more than SERVING_LOSS. A champion of another tokenizer or another base is not comparable by
tokens: that is an update, which a person promotes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from optpipe import gates, judge, serving, stats
from optpipe.backends.engines import vllm
from optpipe.backends.registries import Folder, connect
from optpipe.backends.registries.references import CHAMPION
from optpipe.errors import BackendFailed
from optpipe.outcome import Outcome
from optpipe.recipe.schema import Recipe
from optpipe.records import (
    Artifact,
    Challenge,
    Check,
    Checkpoint,
    EngineSpec,
    JobResult,
    Json,
    LoadFigures,
    Measured,
    Status,
)
from optpipe.run import Run

SERVING_LOSS = 0.10
"""A key figure that is worse by more than this blocks (the practitioners' rule for regressions)."""
ROUNDS = 2
SEED_STEP = 2000
"""Added to the recipe's seed: prompts that neither tuning nor confirmation has seen."""


class Scorer(Protocol):
    """What scores a model on the recipe's texts (stages/evaluate.py)."""

    @property
    def texts(self) -> Mapping[str, Artifact]: ...

    def rounds(self) -> tuple[tuple[int, int], ...]: ...

    def score(self, model: Checkpoint, texts: tuple[str, ...], first: int, rows: int) -> JobResult: ...


def challenge(run: Run, recipe: Recipe, scorer: Scorer, out: Outcome, settings: Folder) -> Challenge:
    """Compare the bundle with the present holder of the alias; the record is `11-challenge.json`."""
    assert out.bundle is not None and out.winner is not None, "only a packaged winner challenges"
    registry = connect(settings, run.folder.registry)
    champion = registry.alias(out.bundle.name, settings.promote or CHAMPION)
    if champion is None or champion == out.bundle.digest:
        return Challenge(champion, True, run.folder.ident)
    folder = registry.resolve(f"{out.bundle.name}@{champion}").path
    try:
        checks = compare(run, recipe, scorer, out, folder)
    except BackendFailed as error:
        checks = (Check("champion", "inconclusive", f"the champion could not be measured: {error.message}"),)
    passed = judge.combine(checks) == "passed"
    for check in checks:
        run.talk.say(f"against the champion: {check.reason}")
    return run.record("11-challenge.json", Challenge(champion, passed, run.folder.ident, checks))


def compare(run: Run, recipe: Recipe, scorer: Scorer, out: Outcome, folder: Path) -> tuple[Check, ...]:
    about = json.loads((folder / "optpipe.json").read_text(encoding="utf-8"))
    if about["base"]["digest"] != out.base.model_digest:
        reason = "the champion comes from another base: compare both and `optpipe promote` by hand"
        return (Check("same base", "inconclusive", reason),)
    champion = Checkpoint(
        "champion",
        folder,
        about["model_digest"],
        about["bytes"],
        about["bits_per_weight"],
        about["scheme"],
        0.0,
        0,
    )
    return (*quality(recipe, scorer, out, champion), *throughput(run, recipe, out, champion))


def quality(recipe: Recipe, scorer: Scorer, out: Outcome, champion: Checkpoint) -> tuple[Check, ...]:
    """Change of perplexity from champion to challenger on the first units of each text, paired."""
    winner = out.winner
    assert winner is not None and winner.checkpoint is not None
    if winner.checkpoint.model_digest == champion.model_digest:
        return (Check("same weights", "passed", "champion and challenger are the same model"),)
    texts, limit = tuple(sorted(scorer.texts)), gates.resolve(recipe.gates).perplexity_increase_pct
    first, rows = scorer.rounds()[0]
    theirs = scorer.score(champion, texts, first, rows).record["units"]
    mine = scorer.score(winner.checkpoint, texts, first, rows).record["units"]
    checks = []
    for number, text in enumerate(texts):
        part = slice(number * rows, (number + 1) * rows)
        change = stats.paired_change(theirs[part], mine[part])
        checks.append(judge.gate(f"perplexity on {text} against the champion's", change, limit, judge.per_cent))
    return tuple(checks)


def throughput(run: Run, recipe: Recipe, out: Outcome, champion: Checkpoint) -> tuple[Check, ...]:
    """Goodput of champion and challenger, measured by turns under loads that neither was tuned on."""
    winner = out.winner
    assert winner is not None
    mine = serving.spec_of(run, recipe, winner, winner.settings)
    both = {"champion": champion_spec(mine, champion), "challenger": mine}
    theirs = both["champion"]
    if (theirs.model.digest, theirs.config, theirs.environment) == (mine.model.digest, mine.config, mine.environment):
        return (Check("goodput", "passed", "champion and challenger are served the same way"),)
    rates: dict[str, list[float]] = {name: [] for name in both}
    for turn in range(ROUNDS):
        for name, spec in both.items():
            with run.executor.session(spec, park=True) as engine:
                title = f"{name}: load {turn + 1} of {ROUNDS}"
                loaded = serving.measure(recipe, out.base, engine, title, recipe.seed + SEED_STEP + turn)
                rates[name] += batches(loaded.figures)
    return (goodput_check(*(stats.rate(rates[name], "requests/s") for name in both)),)


def batches(figures: LoadFigures) -> list[float]:
    return list(figures.batches["goodput_per_s"])


def champion_spec(mine: EngineSpec, champion: Checkpoint) -> EngineSpec:
    """The challenger's engine with the champion's model and configuration."""
    flat: Json = read_yaml(champion.path / "engine" / "vllm.yaml")
    about = json.loads((champion.path / "optpipe.json").read_text(encoding="utf-8"))
    return replace(
        mine,
        title="champion",
        model=Artifact(champion.path, champion.model_digest),
        served_name="champion",
        config=flat,
        config_text=vllm.yaml_text(flat),
        argv=vllm.argv(str(champion.path), "champion"),
        environment=about["target"]["environment"],
    )


def read_yaml(path: Path) -> Json:
    import yaml

    return dict(yaml.safe_load(path.read_text(encoding="utf-8")) or {})


def goodput_check(champion: Measured, challenger: Measured) -> Check:
    """Passed unless goodput is surely lower by more than SERVING_LOSS, rejected where it surely is."""
    gap = stats.difference_of(challenger, champion)
    if gap is None or gap.bounds95 is None or champion.value <= 0.0:
        return Check("goodput", "inconclusive", "too few batches to compare goodput with the champion's")
    low, high = (100.0 * end / champion.value for end in gap.bounds95)
    limit = -100.0 * SERVING_LOSS
    status: Status = "passed" if low > limit else "rejected" if high < limit else "inconclusive"
    reason = (
        f"goodput {challenger.value:.3g} against the champion's {champion.value:.3g} requests/s "
        f"({100 * gap.value / champion.value:+.0f} % [{low:+.0f}, {high:+.0f}], at most {limit:.0f} % may be lost)"
    )
    return Check("goodput", status, reason, 100 * gap.value / champion.value, limit)
