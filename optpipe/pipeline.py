"""The straight line, one call per stage:

inspect -> plan -> resolve -> quantize -> compile -> evaluate -> benchmark -> tune -> select -> confirm
-> package -> publish (the champion's alias moves only past `challenge`)

Candidates go down the line side by side, each in a thread; the executor lets nothing run beside a
measurement. What a backend cannot do ends one candidate, not the build.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from optpipe import serving
from optpipe.outcome import Entry, Outcome
from optpipe.recipe.schema import Recipe
from optpipe.records import Plan, Selection
from optpipe.room import require_room
from optpipe.run import Run
from optpipe.stages.benchmark import benchmark, offline
from optpipe.stages.challenge import challenge
from optpipe.stages.compile import compile_
from optpipe.stages.confirm import confirm
from optpipe.stages.evaluate import Scorer, on_checkpoint, on_engine, shipping_checks
from optpipe.stages.inputs import inputs
from optpipe.stages.inspect import inspect
from optpipe.stages.package import package
from optpipe.stages.plan import plan as plan_
from optpipe.stages.plan import require_feasible
from optpipe.stages.publish import publish
from optpipe.stages.quantize import calibration_tokens, quantize
from optpipe.stages.resolve import check_inputs, resolve
from optpipe.stages.select import decide
from optpipe.stages.tasks import Battery, score_tasks, unscored
from optpipe.stages.tune import tune


def build(run: Run, recipe: Recipe) -> Outcome:
    """A recipe through the whole line; records are in the run's folder from when its inputs are known to be right."""
    facts = inspect(recipe, run.recipe_folder, run.talk.say, run.folder.registry)
    plan = plan_(recipe, facts, run.hardware, serving.releases(recipe, run.hardware))
    require_feasible(plan)
    require_room(plan, run.folder.artifacts, serving.toolchains(recipe, run.hardware), recipe.toolchains)
    texts = check_inputs(run, recipe)  # what is wrong with an input is told by now, with nothing begun
    run.record("01-inspect.json", facts)
    plan = replace(plan, inputs=inputs(recipe, facts, run.recipe_folder))
    run.record("02-plan.json", plan)
    run.folder.note(texts=texts.told(recipe))
    absent = serving.prepare(run, recipe)
    base = resolve(run, recipe, facts)
    out = Outcome(facts, plan, base)
    scorer = Scorer(run, recipe, base, texts.scored)
    scorer.check_texts()
    battery = Battery.of(run, recipe, facts, base)
    calibrated = calibration_tokens(run, recipe, base, texts.calibration, plan.feasible)

    out.entries = entries(run, recipe, plan, absent)

    def down_the_line(entry: Entry) -> None:
        with entry.until_judged(), run.attempt(entry):
            entry.checkpoint = quantize(run, recipe, facts, base, calibrated, entry.candidate)
            entry.compiled = compile_(run, recipe, entry.candidate, entry.checkpoint)
            entry.evaluation = on_checkpoint(scorer, entry)
            if not entry.passed:
                return
            reference = out.base_of(entry)
            with serving.session(run, recipe, entry, {}) as engine:
                entry.evaluation = on_engine(scorer, engine, entry, reference)
                entry.judged.set()
                if entry.passed:
                    entry.serving = benchmark(run, recipe, base, entry, engine)
            if entry.serving and entry.passed:
                entry.serving = offline(run, recipe, base, entry, entry.serving)

    run.side_by_side([entry for entry in out.entries if not entry.absent], down_the_line)

    for entry in out.leading(rank(recipe, out), recipe.tune.finalists if recipe.tune.finalists > 1 else 0):
        with run.attempt(entry):
            entry.tuning = tune(run, recipe, facts, base, entry)

    while winner := out.selected(run.record("09-select.json", choose(recipe, out))):
        if todo := unscored(recipe, out):
            score_tasks(run, recipe, out, battery, todo)
            continue
        with run.attempt(winner):
            winner.tuning = tune(run, recipe, facts, base, winner)
            checks = shipping_checks(scorer, winner, out.base_of(winner))
            out.confirmation = confirm(run, recipe, base, winner, checks, out.base_of(winner))
            if winner.goes_on(out.confirmation.status):
                run.executor.present(winner.weights)
                out.bundle = package(run.folder, run.records(out), serving.engine_of(run, recipe, winner))
                break
            run.record(f"06-evaluate/{winner.name}.json", winner.unconfirmed(out.confirmation))
    if out.bundle:
        release(run, recipe, scorer, out)
    return out


def release(run: Run, recipe: Recipe, scorer: Scorer, out: Outcome) -> None:
    """The bundle to each registry that the recipe names, once its champion there has been challenged."""
    for registry in recipe.publish:
        out.challenges.append(challenge(run, recipe, scorer, out, registry))
        run.record("11-challenge.json", out.challenges)
        against, default = out.challenges[-1], run.folder.registry
        out.published.append(publish(out.packaged, registry, default, against, run.notary, run.talk.transfer))
        run.record("publish.json", {"published": out.published})


def entries(run: Run, recipe: Recipe, plan: Plan, absent: Mapping[str, str]) -> list[Entry]:
    """Every feasible candidate; one whose engine is absent ({target: why}) is judged already: skipped."""
    lenient = recipe.on_inconclusive == "warn"
    found = [Entry(planned, lenient, absent.get(planned.candidate.target)) for planned in plan.feasible]
    for entry in found:
        if entry.absent:
            entry.judged.set()
            run.record(f"06-evaluate/{entry.name}.json", entry.verdict())
    return found


def rank(recipe: Recipe, out: Outcome) -> Selection:
    """The ranking on what is known now. Tuned figures count where all leading candidates were tuned;
    one candidate tuned alone keeps its default figures here, for the others have no more."""
    entries = out.entries
    return decide(
        recipe.on_inconclusive,
        recipe.select.objective,
        [entry.verdict() for entry in entries],
        [entry.serving for entry in entries if entry.serving],
        [entry.tuning for entry in entries if entry.tuning] if recipe.tune.finalists > 1 else [],
        {entry.name: entry.bytes for entry in entries},
    )


def choose(recipe: Recipe, out: Outcome) -> Selection:
    """The selection; a base that wins is nobody's choice where it shall not be published."""
    selection = rank(recipe, out)
    base = next((one for one in selection.ranks if one.candidate == selection.winner), None)
    if base is None or recipe.publish_base or not out.named(base.candidate).is_base:
        return selection
    refused = replace(base, status="rejected", reasons=("the base wins, and `publish_base` is false",))
    ranks = tuple(refused if one is base else one for one in selection.ranks)
    return replace(selection, winner=None, ranks=ranks, reason=f"{selection.reason}; `publish_base` is false")
