"""tune: engine settings that carry the most load inside the SLO; none of them changes the model's numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from optpipe import search, serving
from optpipe.backends.engines import ENGINES
from optpipe.errors import BackendFailed
from optpipe.model import machine
from optpipe.model.memory import width
from optpipe.outcome import Entry
from optpipe.recipe.schema import Recipe
from optpipe.records import Candidate, Checkpoint, Hardware, Json, ModelFacts, Trial, Tuning
from optpipe.run import Run


def tune(run: Run, recipe: Recipe, facts: ModelFacts, base: Checkpoint, entry: Entry) -> Tuning | None:
    """A seeded search over the engine's own settings; the default's figures are those of the benchmark.

    None where the recipe asks for no trials; one that is tuned already is not tuned again.
    """
    if entry.tuning or not recipe.tune.trials:
        return entry.tuning
    target = recipe.targets[entry.planned.candidate.target]
    longest = target.max_model_len or facts.max_positions
    engine = ENGINES[target.engine]

    def measure(settings: Json) -> Trial:
        return trial(run, recipe, base, entry, settings) if settings else default_trial(entry)

    found = search.tune(
        search.Search(
            candidate=entry.name,
            space=engine.search_space(run.hardware, other_widths(facts, entry.planned.candidate, run.hardware)),
            default={},
            trials=recipe.tune.trials,
            seed=recipe.tune.seed,
            ceiling=recipe.load.request_rate,
            refuse=lambda settings: engine.infeasible(settings, longest),
            first=engine.promising(run.hardware),
        ),
        measure,
    )
    run.talk.say(f"{entry.name}: {search.summary(found)}")
    return run.record(f"08-tune/{entry.name}.json", found)


def other_widths(facts: ModelFacts, candidate: Candidate, hardware: Hardware) -> tuple[int, ...]:
    """Tensor parallelism that could be tried beside the target's own."""
    target, scheme = candidate.engine, candidate.scheme
    fitting = machine.widths_that_fit(facts, scheme, target, hardware, machine.length_of(facts, target))
    return tuple(n for n in fitting if n != width(target, "tensor"))


def trial(run: Run, recipe: Recipe, base: Checkpoint, entry: Entry, settings: Json) -> Trial:
    """One configuration under the recipe's load; an engine that fails with it makes it infeasible."""
    title = f"{entry.name}: trial {shown(settings)}"
    try:
        with serving.session(run, recipe, entry, settings) as engine:
            loaded = serving.measure(recipe, base, engine, title, recipe.seed, recipe.tune.requests)
    except BackendFailed as error:
        run.talk.say(f"{title}: infeasible: {error.message}")
        return Trial(0, settings, "infeasible", error.message, None)
    goodput, tokens = loaded.figures.goodput_per_s, loaded.figures.output_tokens_per_s
    run.talk.say(f"{title}: {goodput.value:.3g} requests/s inside the SLO, {tokens.value:.3g} tokens/s")
    return Trial(0, settings, "measured", "", goodput, loaded.job, tokens)


def default_trial(entry: Entry) -> Trial:
    served = entry.serving
    assert served is not None and served.figures is not None, "only candidates with figures are tuned"
    goodput, tokens = served.figures.goodput_per_s, served.figures.output_tokens_per_s
    return Trial(0, {}, "measured", "the engine's default", goodput, served.job, tokens)


def shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in settings.items())
