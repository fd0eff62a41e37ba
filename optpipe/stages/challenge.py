"""challenge: may a new version take the champion's place? Judged anew for both, interleaved, on this machine.

Quality first: both scored on the same tokens, and perplexity must not rise over the champion's by more than the
perplexity gate. Then serving: champion and challenger by turns, each with its own configuration and environment,
and goodput must not be lower by more than SERVING_LOSS. What stays open leaves the champion where it is. A
champion of another base is not comparable by tokens: that is an update, which a person promotes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import yaml

from optpipe import gates, judge, serving, stats
from optpipe.backends.engines import ENGINES
from optpipe.backends.engines.files import yaml_text
from optpipe.backends.registries import Settings, connect
from optpipe.backends.registries.references import CHAMPION
from optpipe.errors import BackendFailed, OptpipeError
from optpipe.outcome import Entry, Outcome
from optpipe.recipe.schema import Recipe
from optpipe.records import Artifact, Challenge, Check, Checkpoint, EngineSpec, Json, Measured, Status
from optpipe.run import Run
from optpipe.rundir import digest_json, read_json

SERVING_LOSS = 0.10
"""A key figure that is worse by more than this blocks (the practitioners' rule for regressions)."""
ROUNDS = 2
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
        self, one: Checkpoint, other: Checkpoint, texts: tuple[str, ...], first: int, rows: int
    ) -> Iterator[tuple[str, list[Json], list[Json], tuple[str, str]]]: ...


@dataclass(frozen=True)
class Champion:
    """The version that holds the alias: its model, where it came from, and how it is served."""

    digest: str
    checkpoint: Checkpoint
    base_digest: str
    engine: str
    config: Json
    environment: dict[str, str]

    @classmethod
    def read(cls, digest: str, folder: Path) -> Champion:
        """What a published bundle says of itself."""
        about = read_json(folder / "optpipe.json")
        target, digits = about["target"], (about["bytes"], about["bits_per_weight"])
        model = Checkpoint("champion", folder, about["model_digest"], *digits, about["scheme"], 0.0, 0)
        settings = (folder / "engine" / f"{target['engine']}.yaml").read_text(encoding="utf-8")
        environment = {name: str(value) for name, value in target["environment"].items()}
        config = dict(yaml.safe_load(settings) or {})
        return cls(digest, model, about["base"]["digest"], target["engine"], config, environment)


def challenge(run: Run, recipe: Recipe, scorer: Scorer, out: Outcome, settings: Settings) -> Challenge:
    """Compare the bundle with the present holder of the alias, where there is one and it may be moved."""
    winner, bundle, alias = out.winner, out.packaged, settings.promote or CHAMPION
    assert winner is not None and winner.checkpoint is not None, "only a winner is packaged"
    registry = connect(settings, run.folder.registry)
    holder = registry.alias(bundle.name, alias)
    if out.open_checks:
        return told(run, alias, Challenge(holder, False, run.folder.ident, out.open_checks))
    if holder is None or holder == bundle.digest:
        return Challenge(holder, True, run.folder.ident)
    if settings.promote is None:
        reason = f"the recipe's `publish:` names no alias to promote, so {alias} stays"
        return Challenge(holder, False, run.folder.ident, (Check("promote", "skipped", reason),))
    try:
        champion = Champion.read(holder, registry.local(registry.resolve(f"{bundle.name}@{holder}")))
    except (OptpipeError, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        checks: tuple[Check, ...] = (Check("champion", "inconclusive", f"the champion cannot be read: {error}"),)
    else:
        by_hand = f"optpipe promote {bundle.name}@{bundle.digest[:19]}"
        by_hand += "" if alias == CHAMPION else f" --alias {alias}"
        checks = compare(run, recipe, scorer, out, champion, by_hand)
    return told(run, alias, Challenge(holder, judge.combine(checks) == "passed", run.folder.ident, checks))


def told(run: Run, alias: str, found: Challenge) -> Challenge:
    """Say how it went."""
    for check in found.checks:
        run.talk.say(f"against the {alias}: {check.reason}")
    stays = f"stays at {found.champion[:19]}" if found.champion else "stays free: nobody has passed yet"
    run.talk.say(f"{alias} {'moves to the new version' if found.passed else stays}")
    return found


def compare(
    run: Run, recipe: Recipe, scorer: Scorer, out: Outcome, champion: Champion, by_hand: str
) -> tuple[Check, ...]:
    """Every check in its order; what comes after one that was not passed would change nothing."""
    winner = out.winner
    assert winner is not None and winner.checkpoint is not None
    if champion.base_digest != out.base.model_digest:
        reason = f"the champion comes from another base: look at both, then `{by_hand}`"
        return (Check("same base", "inconclusive", reason),)
    mine = serving.spec_of(run, recipe, winner, winner.settings)
    if champion.engine != mine.engine:
        reason = f"the champion is served by {champion.engine}, not {mine.engine}: look at both, then `{by_hand}`"
        return (Check("same engine", "inconclusive", reason),)
    theirs, new = champion.checkpoint, winner.checkpoint
    checks = tried("quality", lambda: quality(recipe, scorer, theirs, new))
    if judge.combine(checks) != "passed":
        return checks
    both = {"champion": champion_spec(mine, champion, winner), "challenger": mine}
    pair = int(digest_json([champion.digest, out.packaged.digest]).removeprefix("sha256:"), 16) % PAIRS
    seed = recipe.seed + SEED_STEP + pair
    return (*checks, *tried("goodput", lambda: throughput(run, recipe, out.base, both, seed)))


def tried(what: str, measure: Callable[[], tuple[Check, ...]]) -> tuple[Check, ...]:
    """The checks, or that they could not be made: the new version is published whatever a champion does."""
    try:
        return measure()
    except BackendFailed as error:
        place = f"{error.place}: " if error.place else ""
        return (Check(what, "inconclusive", f"{what} could not be compared: {place}{error.message}"),)


# ---------------------------------------------------------------- quality


def quality(recipe: Recipe, scorer: Scorer, champion: Checkpoint, challenger: Checkpoint) -> tuple[Check, ...]:
    """Change of perplexity from champion to challenger on each text, paired; on while a text's verdict is open."""
    if challenger.model_digest == champion.model_digest:
        return (Check("same weights", "passed", "champion and challenger are the same model"),)
    limit, looks = gates.resolve(recipe.gates).perplexity_increase_pct, scorer.rounds()
    units: dict[str, tuple[list[Json], list[Json]]] = {text: ([], []) for text in sorted(scorer.texts)}
    checks: dict[str, Check] = {}
    for first, rows in looks:
        undecided = tuple(text for text in units if text not in checks or checks[text].status == "inconclusive")
        if not undecided or any(check.status == "rejected" for check in checks.values()):
            break
        for text, theirs, mine, _ in scorer.pairs(champion, challenger, undecided, first, rows):
            units[text] = (units[text][0] + theirs, units[text][1] + mine)
            change = stats.paired_change(*units[text], len(looks))
            name = f"perplexity on {text} against the champion's"
            checks[text] = judge.gate(name, change, limit, judge.per_cent)
    return tuple(checks.values())


# ---------------------------------------------------------------- serving


def throughput(
    run: Run, recipe: Recipe, base: Checkpoint, both: Mapping[str, EngineSpec], seed: int
) -> tuple[Check, ...]:
    """Goodput of champion and challenger, by turns under loads that neither was tuned on."""
    if len({(spec.model.digest, digest_json([spec.config, spec.environment])) for spec in both.values()}) == 1:
        return (Check("goodput", "passed", "champion and challenger are served the same way"),)
    rates: dict[str, list[float]] = {name: [] for name in both}
    for turn in range(ROUNDS):
        for name, spec in both.items():
            with run.executor.session(spec, park=True) as engine:
                title = f"{name}: load {turn + 1} of {ROUNDS}"
                loaded = serving.measure(recipe, base, engine, title, seed + turn)
            if judge.combine(loaded.checks) != "passed":
                return tuple(no_result(name, check) for check in loaded.checks if check.status != "passed")
            rates[name] += loaded.figures.batches["goodput_per_s"]
    return (goodput_check(*(stats.rate(rates[name], "requests/s") for name in both)),)


def no_result(name: str, check: Check) -> Check:
    """A load that is no result: of the challenger it speaks against it, of the champion it says nothing."""
    status: Status = check.status if name == "challenger" else "inconclusive"
    return replace(check, status=status, reason=f"under the {name}'s load, {check.reason}")


def champion_spec(mine: EngineSpec, champion: Champion, winner: Entry) -> EngineSpec:
    """The challenger's engine with the champion's model, configuration and environment."""
    model = champion.checkpoint
    assert winner.checkpoint is not None, "only a candidate with a checkpoint wins"
    memory = mine.needs.memory_bytes + max(0, model.bytes - winner.checkpoint.bytes)
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
        needs=replace(mine.needs, memory_bytes=memory, gpus=gpus),
    )


def goodput_check(champion: Measured, challenger: Measured) -> Check:
    """Passed where goodput is surely not lower by more than SERVING_LOSS, rejected where it surely is."""
    if champion.value <= 0.0:
        return Check("goodput", "passed", "the champion serves no request inside the SLO", challenger.value)
    gap = stats.difference_of(challenger, champion)
    if gap is None or gap.bounds95 is None:
        return Check("goodput", "inconclusive", "too few requests to compare goodput with the champion's")
    low, high = (100.0 * end / champion.value for end in gap.bounds95)
    limit = -100.0 * SERVING_LOSS
    status: Status = "passed" if low > limit else "rejected" if high < limit else "inconclusive"
    change = 100 * gap.value / champion.value
    reason = (
        f"goodput {challenger.value:.3g} against the champion's {champion.value:.3g} requests/s "
        f"({change:+.0f} % [{low:+.0f}, {high:+.0f}], at most {-limit:.0f} % may be lost)"
    )
    if status == "inconclusive":
        reason += ": a load of more requests would decide"
    return Check("goodput", status, reason, change, limit)
