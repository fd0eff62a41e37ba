"""confirm: the chosen one with exactly the configuration that ships, on what it was not tuned on."""

from __future__ import annotations

from optpipe import gates, judge, serving
from optpipe.errors import BackendFailed
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import Check, Checkpoint, Confirmation, Evaluation, Job, Json
from optpipe.run import Run

SEED_STEP = 1000
"""Added to the recipe's seed: prompts and arrivals that no trial has seen."""
PERPLEXITY_TOLERANCE_PCT = 3.0
"""The engine's perplexity against transformers' on the same tokens: what the mean gate of parity lets pass too.
Seen: 0.05 % in bf16, 1.3 % in W8A8 on a model cut to three layers."""


def confirm(
    run: Run,
    recipe: Recipe,
    base: Checkpoint,
    entry: Entry,
    checks_on: tuple[Job, Job],
    reference: Evaluation | None,
) -> Confirmation:
    """Canary and perplexity on the shipping configuration (`checks_on`), then the load on a fresh seed.

    `reference`: the base's evaluation, None where the base itself is confirmed.
    """
    canary, parity = checks_on
    limits = gates.for_scheme(recipe.gates, entry.bits)
    checks: list[Check] = []
    jobs: list[str] = []
    config: Json = {}
    environment: Json = {}
    figures = perplexity = None
    try:
        with serving.session(run, recipe, entry, entry.settings) as engine:
            config, environment = engine.spec.config, dict(engine.spec.environment)
            answers, agreement = engine.run(canary), engine.run(parity)
            known = reference.details.get("parity") if reference else None
            perplexity = agreement.record["perplexity"]
            checks = [
                judge.canary_check(answers.record),
                *judge.parity_check(agreement.record, known, limits, entry.reference),
                perplexity_check(agreement.record, entry.reference),
            ]
            jobs = [answers.key, agreement.key]
            if judge.combine(checks) == "passed":
                title = f"{entry.name}: confirming load"
                loaded = serving.measure(recipe, base, engine, title, recipe.seed + SEED_STEP)
                figures = loaded.figures
                checks += loaded.checks
                jobs.append(loaded.job)
    except BackendFailed as error:
        checks.append(Check("engine", "failed", error.message))
    status = judge.combine(checks)
    return run.record(
        "10-confirm.json",
        Confirmation(entry.name, config, status, tuple(checks), figures, perplexity, tuple(jobs), environment),
    )


def perplexity_check(record: Json, reference: str = "transformers") -> Check:
    """The perplexity that the engine gives on a fixed sample, and whether it is the reference's."""
    value, expected = record["perplexity"], record["reference_perplexity"]
    off = 100 * abs(value / expected - 1)
    status = "passed" if off <= PERPLEXITY_TOLERANCE_PCT else "rejected"
    reason = (
        f"perplexity as served {value:.4g}, by {reference} {expected:.4g} on {record['n_tokens']} tokens: "
        f"{off:.2f} % apart, {PERPLEXITY_TOLERANCE_PCT:g} % allowed"
    )
    return Check("perplexity as served", status, reason, value, expected)  # type: ignore[arg-type]
