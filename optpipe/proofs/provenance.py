"""How a version was made, as an in-toto statement with SLSA's provenance (v1), and whether it fits its bundle.

Its subject are the model's files; all else in the bundle is a by-product, by digest, so that the statement of
another run of the same recipe does not fit. It holds no time of day and is not signed by itself: it is one of
the files that the bundle's signature covers, and the same records give the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from optpipe import bundle as bundles
from optpipe.errors import Problem
from optpipe.records import Json, canonical

FILE = "provenance.json"
RECIPE = "recipe.resolved.yaml"
ABOUT = "optpipe.json"
STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
HOME = "https://github.com/optpipe/optpipe"
BUILD_TYPE = f"{HOME}/blob/main/docs/signing.md#build-type-v1"


@dataclass(frozen=True)
class Material:
    """What went into a version: the base, a text, a toolchain's lock; `digest` begins with `sha256:`."""

    name: str
    digest: str
    uri: str | None = None
    annotations: Json | None = None


def statement(
    model: Iterable[bundles.Entry],
    others: Iterable[bundles.Entry],
    recipe: Json,
    candidate: str,
    materials: Iterable[Material],
    versions: Mapping[str, str],
) -> bytes:
    """The statement as canonical JSON. `versions` are those of the builder."""
    definition = {
        "buildType": BUILD_TYPE,
        "externalParameters": {"recipe": recipe},
        "internalParameters": {"candidate": candidate},
        "resolvedDependencies": [_material(one) for one in materials],
    }
    details = {
        "builder": {"id": HOME, "version": dict(versions)},
        "byproducts": [_described(entry) for entry in others],
    }
    predicate = {"buildDefinition": definition, "runDetails": details}
    subject = [_described(entry) for entry in model]
    return canonical({"_type": STATEMENT, "subject": subject, "predicateType": PREDICATE, "predicate": predicate})


def _described(entry: bundles.Entry) -> Json:
    return {"name": entry.path, "digest": {"sha256": entry.sha256}}


def _material(one: Material) -> Json:
    found: Json = {"name": one.name, "digest": {"sha256": one.digest.removeprefix("sha256:")}}
    if one.uri:
        found["uri"] = one.uri
    if one.annotations:
        found["annotations"] = one.annotations
    return found


Read = Callable[[str], bytes]
"""The content of a file of a bundle, by its path in it."""


def problems(manifest: bundles.Manifest, read: Read) -> list[Problem]:
    """What the statement in a bundle says otherwise than the bundle; its small files are read."""
    import yaml

    listed = {entry.path for entry in manifest.files}
    if missing := [name for name in (FILE, ABOUT, RECIPE) if name not in listed]:
        hint = "package it again from its run"
        return [Problem(missing[0], "missing: how this version was made is not told", hint)]
    try:
        told, about = json.loads(read(FILE)), json.loads(read(ABOUT))
        return list(_differences(told, manifest, about, yaml.safe_load(read(RECIPE))))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, yaml.YAMLError) as error:
        return [Problem(FILE, f"does not have its form: {type(error).__name__}: {error}")]


def _differences(told: Any, manifest: bundles.Manifest, about: Any, recipe: Any) -> Iterable[Problem]:
    if (told["_type"], told["predicateType"]) != (STATEMENT, PREDICATE):
        yield Problem(FILE, f"is {told['predicateType']!r}, not {PREDICATE!r}")
    definition, details = told["predicate"]["buildDefinition"], told["predicate"]["runDetails"]
    described = [*told["subject"], *details["byproducts"]]
    said = {one["name"]: one["digest"]["sha256"] for one in described}
    files = {entry.path: entry.sha256 for entry in manifest.files if entry.path != FILE}
    wrong = sorted(name for name in said.keys() | files.keys() if said.get(name) != files.get(name))
    if wrong or len(said) != len(described):
        shown = ", ".join(wrong[:3]) + (f" and {len(wrong) - 3} more" if len(wrong) > 3 else "")
        yield Problem(FILE, f"is of another run: it says otherwise of {shown or 'one file twice'}")
    if definition["externalParameters"]["recipe"] != recipe:
        yield Problem(FILE, f"is of another recipe than {RECIPE}")
    if definition["internalParameters"]["candidate"] != about["candidate"]:
        yield Problem(FILE, f"is of {definition['internalParameters']['candidate']!r}, not {about['candidate']!r}")
    materials = {one["name"]: one["digest"]["sha256"] for one in definition["resolvedDependencies"]}
    base = str(about["base"]["digest"]).removeprefix("sha256:")
    if materials.get("base") != base:
        yield Problem(FILE, f"is of the base sha256:{materials.get('base')}, not sha256:{base}")
