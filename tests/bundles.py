"""The smallest bundle that is whole: weights, what they are, the recipe, and provenance that fits."""

from __future__ import annotations

import json
from pathlib import Path

from optpipe import bundle as bundles
from optpipe.proofs import provenance
from optpipe.records import Bundle, Json

BASE = "sha256:" + "ba5e" * 16


def small_bundle(folder: Path, text: str, name: str = "tiny") -> Bundle:
    """A bundle in `folder`, whose weights are `text`; nothing in it could be loaded."""
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_text(text)
    return told_about(folder, name)


def told_about(folder: Path, name: str) -> Bundle:
    """The bundle of the files in `folder`, with what it is, the recipe, and provenance that fits."""
    model = bundles.list_files(folder).files
    recipe: Json = {"version": 1, "name": name}
    about = {"name": name, "candidate": "int8@vllm", "base": {"digest": BASE}}
    (folder / "optpipe.json").write_text(json.dumps(about))
    (folder / "recipe.resolved.yaml").write_text(json.dumps(recipe))
    others = [entry for entry in bundles.list_files(folder).files if entry not in model]
    base = provenance.Material("base", BASE)
    told = provenance.statement(model, others, recipe, "int8@vllm", [base], {"optpipe": "0"})
    (folder / provenance.FILE).write_bytes(told)
    manifest = bundles.write_manifest(folder)
    return Bundle(name, folder, manifest.digest, "sha256:00", manifest.bytes)
