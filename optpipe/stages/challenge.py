"""challenge: may a new version take the champion's place? Judged anew for both, interleaved, on this machine.

What is compared, and how, is in versus.py. What stays open leaves the champion where it is.
"""

from __future__ import annotations

import yaml

from optpipe import judge, serving
from optpipe.backends.registries import Settings, connect
from optpipe.backends.registries.publishing import reaching
from optpipe.backends.registries.references import CHAMPION
from optpipe.errors import OptpipeError
from optpipe.outcome import Outcome
from optpipe.recipe.schema import Recipe
from optpipe.records import Challenge, Check
from optpipe.run import Run
from optpipe.versus import Challenger, Champion, Scorer, versus


def challenge(run: Run, recipe: Recipe, scorer: Scorer, out: Outcome, settings: Settings) -> Challenge:
    """Compare the bundle with the present holder of the alias, where there is one and it may be moved."""
    winner, bundle, alias = out.winner, out.packaged, settings.promote or CHAMPION
    assert winner is not None and winner.checkpoint is not None, "only a winner is packaged"
    registry = connect(settings, run.folder.registry, notary=run.notary)
    with reaching(registry):
        holder = registry.alias(bundle.name, alias)
    if out.open_checks:
        return told(run, alias, Challenge(holder, False, run.folder.ident, out.open_checks))
    if holder is None or holder == bundle.digest:
        return Challenge(holder, True, run.folder.ident)
    if settings.promote is None:
        reason = f"the recipe's `publish:` names no alias to promote, so {alias} stays"
        return Challenge(holder, False, run.folder.ident, (Check("promote", "skipped", reason),))
    try:
        version = registry.resolve(f"{bundle.name}@{alias}")
        registry.examine(version, contents=False).demand(str(version))
        champion = Champion.read(version.digest, registry.local(version))
    except (OptpipeError, OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        checks: tuple[Check, ...] = (Check("champion", "inconclusive", f"the champion cannot be read: {error}"),)
    else:
        checks = versus(run, recipe, scorer, challenger(run, recipe, out), champion)
    found = told(run, alias, Challenge(holder, judge.combine(checks) == "passed", run.folder.ident, checks))
    if judge.combine(checks) == "inconclusive":
        option = "" if alias == CHAMPION else f" --alias {alias}"
        run.talk.say(f"if you know better: optpipe promote {bundle.name}@{bundle.digest[:19]}{option}")
    return found


def told(run: Run, alias: str, found: Challenge) -> Challenge:
    """Say how it went."""
    for check in found.checks:
        run.talk.say(f"against the {alias}: {check.reason}")
    stays = f"stays at {found.champion[:19]}" if found.champion else "stays free: nobody has passed yet"
    run.talk.say(f"{alias} {'moves to the new version' if found.passed else stays}")
    return found


def challenger(run: Run, recipe: Recipe, out: Outcome) -> Challenger:
    """The winner as it was packaged."""
    winner = out.winner
    assert winner is not None and winner.checkpoint is not None, "only a winner is packaged"
    tasks = winner.evaluation.tasks if winner.evaluation else ()
    spec = serving.spec_of(run, recipe, winner, winner.settings)
    return Challenger(out.packaged.digest, winner.scored, out.base.model_digest, spec, tasks=tasks)
