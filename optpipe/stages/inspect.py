"""inspect: what is known of the model from configuration and headers alone; no weights are fetched."""

from __future__ import annotations

from pathlib import Path

from optpipe.model import sources
from optpipe.model.look import look
from optpipe.recipe.schema import Recipe
from optpipe.records import ModelFacts
from optpipe.rundir import optpipe_home


def inspect(recipe: Recipe, recipe_folder: Path, say: sources.Say) -> ModelFacts:
    """The model's facts; InputProblems with all of its faults but those in the values of its weights."""
    source = sources.parse(recipe.model.source, recipe_folder)
    trusted = recipe.model.trust_remote_code
    return look(source, recipe.model.source, optpipe_home(), say, trust_remote_code=trusted)
