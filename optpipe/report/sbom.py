"""The bill of materials of a bundle: CycloneDX 1.6 with the model, its base, its texts and every toolchain.

A function of the records: no time of day, and a serial number that is made from the content.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Mapping
from urllib.parse import quote

from optpipe.bundle import Entry
from optpipe.records import Json, canonical
from optpipe.report.data import ReportData, Row, rows

FILE = "sbom.cdx.json"
SCHEMA = "http://cyclonedx.org/schema/bom-1.6.schema.json"
SPDX = {name.lower(): name for name in ("Apache-2.0", "MIT", "BSD-3-Clause", "CC-BY-4.0", "CC-BY-SA-4.0", "GPL-3.0")}
"""Licences whose names on model hubs are SPDX's but for their capitals."""


def sbom(data: ReportData, artifact: Json, model: Iterable[Entry], locks: Mapping[str, str]) -> Json:
    """The document. `artifact` is optpipe.json, `model` its files, `locks` the texts of the toolchains' locks."""
    winner = next(row for row in rows(data) if row.winner)
    parts = [base(data, artifact), *(text(name, known) for name, known in sorted(data.texts.items()))]
    parts += [toolchain(name, used, locks) for name, used in sorted(data.toolchains.items())]
    document = {
        "$schema": SCHEMA,
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "optpipe", "version": data.versions["optpipe"]}]},
            "component": product(data, artifact, winner, model),
        },
        "components": parts,
        "dependencies": [{"ref": "model", "dependsOn": [part["bom-ref"] for part in parts]}, *map(needs, parts)],
    }
    return document | {"serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, canonical(document).decode())}"}


def product(data: ReportData, artifact: Json, winner: Row, model: Iterable[Entry]) -> Json:
    """The model in the bundle, each of its files with its hash, and what was measured of it."""
    facts = data.facts
    parameters: Json = {
        "task": "text-generation",
        "architectureFamily": facts.model_type,
        "modelArchitecture": facts.architecture,
        "inputs": [{"format": "string"}],
        "outputs": [{"format": "string"}],
    }
    if "calibration.text" in data.texts:
        parameters["datasets"] = [{"ref": "text:calibration.text"}]
    said = {key: artifact[key] for key in ("candidate", "model_digest", "method", "format", "group_size")}
    return {
        "type": "machine-learning-model",
        "bom-ref": "model",
        "name": data.name,
        "version": artifact["model_digest"],
        **licences(artifact),
        "components": [
            {"type": "file", "bom-ref": f"file:{one.path}", "name": one.path, "hashes": [sha256(one.sha256)]}
            for one in model
        ],
        "pedigree": {"ancestors": [ancestor(data)], "notes": f"made by optpipe as {artifact['candidate']}"},
        "modelCard": {
            "modelParameters": parameters,
            "quantitativeAnalysis": {"performanceMetrics": list(metrics(winner))},
            "considerations": {"technicalLimitations": list(facts.notes)},
        },
        "properties": [{"name": f"optpipe:{key}", "value": str(value)} for key, value in said.items() if value],
    }


def metrics(winner: Row) -> Iterable[Json]:
    """Perplexity by text, with the interval of its change against the base."""
    for one in winner.evaluation.texts if winner.evaluation else ():
        yield {"type": "perplexity", "slice": one.text, "value": f"{one.perplexity:.6g}"}
        low, high = one.change_pct.ci95 or (one.change_pct.value,) * 2
        yield {
            "type": "change of perplexity against the base in per cent",
            "slice": one.text,
            "value": f"{one.change_pct.value:.6g}",
            "confidenceInterval": {"lowerBound": f"{low:.6g}", "upperBound": f"{high:.6g}"},
        }


def ancestor(data: ReportData) -> Json:
    found: Json = {"type": "machine-learning-model", "name": data.facts.source, "version": data.facts.revision}
    purl = {"hub": _hub(data), "wheel": _wheel(data)}.get(data.facts.kind)
    return found | ({"purl": purl} if purl else {})


def base(data: ReportData, artifact: Json) -> Json:
    """The base model as it was resolved."""
    digest = {"name": "optpipe:model_digest", "value": artifact["base"]["digest"]}
    return ancestor(data) | {"bom-ref": "base", **licences(artifact), "properties": [digest]}


def licences(artifact: Json) -> Json:
    """The base's licence, where it is known: it goes wherever the weights go."""
    name = artifact["licence"]["name"]
    if not name:
        return {}
    spdx = SPDX.get(name.lower())
    return {"licenses": [{"license": {"id": spdx} if spdx else {"name": name}}]}


def text(name: str, known: Json) -> Json:
    """A text that was scored or calibrated on; the hash is that of its documents as JSON Lines."""
    found = {"type": "data", "bom-ref": f"text:{name}", "name": known["source"], "hashes": [sha256(known["digest"])]}
    return found | {"data": [{"type": "dataset", "name": name}]}


def toolchain(name: str, used: Json, locks: Mapping[str, str]) -> Json:
    """An environment with each package that was really installed in it, and the hashes that its lock allows."""
    allowed = hashes(locks.get(used["lock"] or "", ""))
    packages = [package(name, one, version, allowed) for one, version in sorted(used["packages"].items())]
    found = {"type": "application", "bom-ref": f"toolchain:{name}", "name": f"toolchain {name}"}
    return found | {"version": used["fingerprint"], "components": packages}


def package(chain: str, name: str, version: str, allowed: Mapping[tuple[str, str], list[str]]) -> Json:
    purl = f"pkg:pypi/{name}@{quote(version)}"
    kind = {"python": "platform", "image": "container"}.get(name, "library")
    found: Json = {"type": kind, "bom-ref": f"toolchain:{chain}/{name}", "name": name, "version": version}
    if kind != "library":
        return found
    known = allowed.get((re.sub(r"[._-]+", "-", name), version), [])
    files: Json = {"type": "distribution", "url": purl, "comment": "any file that the lock allows"}
    files |= {"hashes": [sha256(one) for one in known]}
    return found | {"purl": purl} | ({"externalReferences": [files]} if known else {})


def hashes(lock: str) -> dict[tuple[str, str], list[str]]:
    """(package, version) to the SHA-256 of its files, from a lock's text."""
    found: dict[tuple[str, str], list[str]] = {}
    pin = ("", "")
    for line in lock.splitlines():
        if match := re.match(r"([a-z0-9.-]+)==([^\s;\\]+)", line):
            pin = (match[1], match[2])
        found.setdefault(pin, []).extend(re.findall(r"--hash=sha256:([0-9a-f]{64})", line))
    return found


def needs(part: Json) -> Json:
    """What a part consists of."""
    return {"ref": part["bom-ref"], "dependsOn": [one["bom-ref"] for one in part.get("components", ())]}


def sha256(digest: str) -> Json:
    return {"alg": "SHA-256", "content": digest.removeprefix("sha256:")}


def _hub(data: ReportData) -> str:
    return f"pkg:huggingface/{data.facts.source.removeprefix('hf:').split('@')[0]}@{data.facts.revision}"


def _wheel(data: ReportData) -> str:
    name, _, version = data.facts.revision.partition("==")
    return f"pkg:pypi/{name}@{quote(version)}"
