"""inspect: what is known of the model from configuration and headers alone; no weights are fetched."""

from __future__ import annotations

from pathlib import Path

from optpipe.backends.registries.publishing import puller
from optpipe.model import sources
from optpipe.model.look import look
from optpipe.recipe.schema import Recipe
from optpipe.records import ModelFacts
from optpipe.rundir import optpipe_home

DEFAULT = Path("artifacts/registry")


def inspect(recipe: Recipe, recipe_folder: Path, say: sources.Say, registry: Path = DEFAULT) -> ModelFacts:
    """The model's facts; InputProblems with all of its faults but those in the values of its weights.

    `registry` is the folder of versions that `registry:` sources mean where they name no other.
    """
    source = sources.parse(recipe.model.source, recipe_folder)
    trusted = recipe.model.trust_remote_code
    pull = puller(registry, say)
    return look(source, recipe.model.source, optpipe_home(), say, trust_remote_code=trusted, pull=pull)
