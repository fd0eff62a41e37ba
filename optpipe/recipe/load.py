"""YAML -> Recipe. Every error has file:line:column, the key's path, the value and what to do next."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from yaml.nodes import MappingNode

from optpipe.errors import InputProblems, OptpipeError
from optpipe.recipe.tree import compose, construct, merge, override

if TYPE_CHECKING:
    from optpipe.recipe.schema import Recipe

SCHEMES = ("hf", "hf-dataset", "wheel", "registry")
"""What sources begin with whose errors are told with the source as their place."""


@dataclass(frozen=True)
class Loaded:
    """A recipe with the file it came from and the node tree that knows each key's line."""

    recipe: Recipe
    path: Path
    tree: MappingNode

    @contextmanager
    def places(self) -> Iterator[None]:
        """Errors from within that name a key (`texts.wiki.source`) get its file:line:column."""
        with errors_in(self.tree):
            yield


def load(path: Path, overrides: tuple[str, ...] = (), *, sources: bool = True) -> Loaded:
    """Read, compose and check a recipe; `overrides` are `dotted.key=yaml value`.

    Raises InputProblems with all that is wrong; `sources=False` leaves unasked whether its files are there.
    """
    from pydantic import ValidationError

    from optpipe.recipe.check import source_problems, value_problems
    from optpipe.recipe.places import problem_of
    from optpipe.recipe.schema import Recipe

    tree = compose(path)
    for text in overrides:
        tree = merge(tree, override(text))
    try:  # as JSON: in strict mode that takes lists for tuples, and nothing else for something else
        recipe = Recipe.model_validate_json(json.dumps(construct(tree)), strict=True)
    except ValidationError as error:
        raise InputProblems(tuple(problem_of(tree, e) for e in error.errors())) from None
    problems = list(value_problems(recipe))
    problems += source_problems(recipe, path.parent) if sources else []
    if problems:
        with errors_in(tree):
            raise InputProblems(tuple(problems))
    return Loaded(recipe, path, tree)


@contextmanager
def errors_in(tree: MappingNode) -> Iterator[None]:
    """Give errors that name a key of the recipe its place in the file."""
    try:
        yield
    except InputProblems as error:
        found = (replace(problem, place=placed(tree, problem.place)) for problem in error.problems)
        raise InputProblems(tuple(found)) from None
    except OptpipeError as error:
        error.place = placed(tree, error.place) if error.place else error.place
        raise


def placed(tree: MappingNode, place: str) -> str:
    """A dotted path of the recipe, or a source that it names, with file, line and column; any other place as it is."""
    from optpipe.recipe.places import dotted_place, source_place
    from optpipe.recipe.schema import Recipe

    if place.partition(".")[0] in Recipe.model_fields:
        return dotted_place(tree, place)
    scheme, colon, _ = place.partition(":")
    return (colon and scheme in SCHEMES and source_place(tree, place)) or place
