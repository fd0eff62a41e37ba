"""inputs: digests of all that a build depends on beside the machine, so that a job can tell that nothing changed."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from optpipe import __version__
from optpipe.model import fetching, sources, texts
from optpipe.recipe.schema import Recipe, Text
from optpipe.records import Json, ModelFacts
from optpipe.rundir import DigestMemo, digest_json, optpipe_home
from optpipe.toolchains import Interpreter, Kind
from optpipe.toolchains.managed import LOCKS

WITHOUT = {"extends", "publish", "keep", "on_inconclusive", "toolchains"}
"""Keys of a recipe that change what becomes of a result, not the result; toolchains have a digest of their own."""


def inputs(recipe: Recipe, facts: ModelFacts, recipe_folder: Path) -> Json:
    """{what: sha256} of recipe, base, texts and toolchains; what is local is read, once for as long as it stays.

    A source that is not local is named by a version, commit or digest, and that name is taken for its content.
    """
    memo = DigestMemo(optpipe_home() / "digests.sqlite")
    source = sources.parse(recipe.model.source, recipe_folder)
    base: str | list[str] = [str(source), facts.revision]
    if isinstance(source, sources.Folder | sources.GgufFile):
        base = fetching.content_digest(source.path, memo)
    named = dict(recipe.texts)
    if recipe.calibration is not None:
        named["calibration:"] = recipe.calibration.text
    locks = {path.name: memo.file(path) for path in sorted(LOCKS.iterdir())}
    own = {name: placeless(kind) for name, kind in recipe.toolchains.items()}
    return {
        "recipe": digest_json(recipe.model_dump(mode="json", exclude=WITHOUT)),
        "base": digest_json(base),
        "texts": digest_json({name: content(text, recipe_folder, memo) for name, text in named.items()}),
        "toolchains": digest_json([__version__, locks, own]),
    }


def placeless(kind: Kind) -> Json:
    """A toolchain of one's own without where it lies: the path of an interpreter says nothing of what is in it."""
    return {"kind": kind.kind} if isinstance(kind, Interpreter) else asdict(kind)


def content(text: Text, recipe_folder: Path, memo: DigestMemo) -> str:
    source = texts.parse_text(text.source, recipe_folder)
    if not isinstance(source, texts.TextPath):
        return str(source)
    return memo.tree(source.path)[0] if source.path.is_dir() else memo.file(source.path)


def changed(now: Json, then: Json) -> tuple[str, ...]:
    """What is not as it was when a version was built; all of it where that version does not say."""
    return tuple(name for name in now if now[name] != then.get(name))
