"""package: records in, one bundle out; packaging the same records again gives the same digest.

Nothing of one machine or moment goes in: no times of day, no absolute paths, no host names.
"""

from __future__ import annotations

import fnmatch
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from optpipe import bundle as bundles
from optpipe import gates
from optpipe.backends.engines import ENGINES, file_of, tensorrt_llm_bundle
from optpipe.backends.engines.files import env_text, yaml_text
from optpipe.errors import BackendFailed, InputError
from optpipe.proofs import provenance
from optpipe.records import Bundle, Checkpoint, Engine, Json, Scored, from_json, to_json
from optpipe.report import sbom
from optpipe.report.card import model_card
from optpipe.report.data import ReportData, Row, layout, rows
from optpipe.report.markdown import markdown
from optpipe.report.page import html
from optpipe.report.portable import portable
from optpipe.rundir import LICENCES, LOCKS, RunFolder, digest_bytes, read_json, remove_tree, sync_folder, sync_tree

WEIGHTS = (".safetensors", ".onnx", ".engine")
TOKENIZER = ("*.jinja", "*.model", "*.tiktoken", "vocab.txt", "merges.txt")
MODEL_FILES = ("*.safetensors", "*.onnx", "*.onnx.data", "*.engine", "*.json", *TOKENIZER)
OWN_FILES = ("optpipe.json", sbom.FILE, provenance.FILE, *bundles.OUTSIDE)
"""What a base that was once a bundle holds and its successor writes anew."""
SECRETS = ("api-key", "hf-token")
NO_LICENCE: Json = {"name": None, "said_by": None, "attribution": {}, "files": []}
OF_ONE_RUN = ("host", "port", "model", "served-model-name", "uds", "root-path")
"""Engine settings that belong to whoever serves, not to the bundle."""


def package(run: RunFolder, data: ReportData, engine: Engine) -> Bundle:
    """The bundle of the selection's winner in `run`'s package/; weights are linked, not moved."""
    row = next(row for row in rows(data) if row.winner)
    assert row.checkpoint is not None, f"{row.name} won without a checkpoint"
    base = next(checkpoint for checkpoint in data.checkpoints if checkpoint.scheme is None)
    clean = from_json(ReportData, portable(data, run.artifacts)).for_bundle()
    folder = run.path / f".package.{os.getpid()}"
    remove_tree(folder)
    try:
        link_model(served(row).path, folder)
        model = bundles.list_files(folder).files
        copy_licences(run.path / LICENCES, folder)
        artifact = portable(describe(row, clean, engine, base), run.artifacts)
        write_records(folder, clean, artifact)
        settings = portable(engine_settings(engine), run.artifacts)
        for name, text in engine_files(row, clean, engine, settings).items():
            _write(folder / name, text)
        locks = copy_locks(run.path / LOCKS, folder)
        known = write_proofs(folder, clean, artifact, model, locks)
        manifest = bundles.write_manifest(folder, known)
        sync_tree(folder)
        remove_tree(run.path / "package")
        folder.rename(run.path / "package")
    finally:
        remove_tree(folder)
    sync_folder(run.path)
    target = run.path / "package"
    return Bundle(data.name, target, manifest.digest, served(row).model_digest, manifest.bytes)


# ---------------------------------------------------------------- the model


def served(row: Row) -> Scored:
    """What ships: what was compiled, or the checkpoint."""
    assert row.checkpoint is not None, f"{row.name} has no checkpoint"
    return row.compiled if row.compiled and row.compiled.built else row.checkpoint


def link_model(model: Path, folder: Path) -> None:
    """Weights, tokenizer and configuration; the model's own code only where its configuration names it."""
    names = {path.name for path in model.iterdir() if path.is_file()}
    ship = {name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in MODEL_FILES)}
    if "auto_map" in _json(model / "config.json"):
        ship |= {name for name in names if name.endswith(".py")}
    if not any(name.endswith(WEIGHTS) for name in ship):
        raise BackendFailed(f"no {' or '.join(WEIGHTS)} file to package", place=str(model), transient=False)
    for name in sorted(ship - set(OWN_FILES)):
        bundles.link_file(model / name, folder / name)
    templates = model / "additional_chat_templates"
    for path in sorted(templates.glob("*.jinja")):
        bundles.link_file(path, folder / templates.name / path.name)


def copy_licences(kept: Path, folder: Path) -> None:
    """Licence and attribution of the base go wherever its weights go."""
    for path in sorted(kept.iterdir()) if kept.is_dir() else ():
        if not (folder / path.name).exists():
            bundles.copy_file(path, folder / path.name)


def copy_locks(kept: Path, folder: Path) -> dict[str, str]:
    """The locks that the toolchains were installed from, by file name; they go along."""
    for path in sorted(kept.glob("*.txt")):
        bundles.copy_file(path, folder / LOCKS / path.name)
    return {path.name: path.read_text(encoding="utf-8") for path in sorted(kept.glob("*.txt"))}


# ---------------------------------------------------------------- what is written about it


def describe(row: Row, data: ReportData, engine: Engine, base: Checkpoint) -> Json:
    """optpipe.json: what the artifact is, what it needs, and what it was measured on."""
    assert row.checkpoint is not None and row.candidate is not None and row.plan is not None
    scheme = quantization(row.checkpoint.path)
    return {
        "version": 1,
        "name": data.name,
        "candidate": row.name,
        "model_digest": served(row).model_digest,
        "bytes": served(row).bytes,
        "bits_per_weight": row.bits_per_weight,
        "method": (row.checkpoint.scheme or {}).get("method"),
        "scheme": row.checkpoint.scheme,
        **scheme,
        "kv_cache_dtype": row.candidate.engine.get("kv_cache_dtype"),
        "base": {
            "source": data.facts.source,
            "repository": repository(data),
            "revision": data.facts.revision,
            "digest": base.model_digest,
            "notes": data.facts.notes,
        },
        "compiled": compiled(row),
        "target": {
            "engine": engine.name,
            "version": engine.version,
            "environment": engine.environment,
            "compiles": engine.compiles,
        },
        "notes": row.plan.notes,
        "requirements": {
            "platform": "cuda" if data.hardware.gpus else "cpu",
            "instruction_set": None if data.hardware.gpus else data.hardware.instruction_set,
            "compute_capability": data.hardware.compute_capability,
            "memory_bytes_estimated": row.plan.memory_bytes,
            "parallelism": parallelism(engine),
        },
        "gates": gates_of(row, data),
        "inputs": data.plan.inputs,
        "measured_on": {"hardware": data.hardware, "versions": data.versions},
        "licence": base.details.get("licence") or NO_LICENCE,
    }


def repository(data: ReportData) -> str | None:
    """Where the base came from without its revision; None for a folder or file of one machine."""
    kinds = {"hub": data.facts.source.split("@")[0], "wheel": data.facts.source.split("==")[0]}
    return kinds.get(data.facts.kind)


def gates_of(row: Row, data: ReportData) -> gates.Gates:
    """The numbers that the candidate was judged by: a recipe may leave them to its preset."""
    settings = from_json(gates.GateSettings, data.recipe.get("gates") or {})
    return gates.for_scheme(settings, row.checkpoint.scheme if row.checkpoint else None)


def parallelism(engine: Engine) -> Json:
    """Devices that the configuration needs, and how the model is laid over them."""
    flat = ENGINES[engine.name].flags(engine.config)
    spelt = {name.replace("_", "-"): value for name, value in flat.items()}
    sizes = {kind: int(spelt.get(f"{kind}-parallel-size") or 1) for kind in ("tensor", "pipeline", "data")}
    return sizes | {"devices": sizes["tensor"] * sizes["pipeline"] * sizes["data"]}


def write_proofs(
    folder: Path, data: ReportData, artifact: Json, model: Iterable[bundles.Entry], locks: dict[str, str]
) -> tuple[bundles.Entry, ...]:
    """The bill of materials, then the provenance of all that is there by then: its entries."""
    _write(folder / sbom.FILE, _pretty(sbom.sbom(data, artifact, model, locks)))
    known = bundles.list_files(folder, model).files
    others = [entry for entry in known if entry not in model]
    builder = {name: version for name, version in data.versions.items() if isinstance(version, str)}
    inputs = materials(data, artifact, locks)
    told = provenance.statement(model, others, data.recipe, artifact["candidate"], inputs, builder)
    (folder / provenance.FILE).write_bytes(told)
    return known


def materials(data: ReportData, artifact: Json, locks: dict[str, str]) -> list[provenance.Material]:
    """What went in: the base, each text, each toolchain by its lock or by what is in it."""
    base = artifact["base"]
    found = [provenance.Material("base", base["digest"], base["source"], {"revision": base["revision"]})]
    found += [
        provenance.Material(place, text["digest"], text["source"], {"documents": text["documents"]})
        for place, text in sorted(data.texts.items())
    ]
    for name, used in sorted(data.toolchains.items()):
        lock = locks.get(used["lock"] or "")
        digest = digest_bytes(lock.encode()) if lock else used["fingerprint"]
        found.append(provenance.Material(f"toolchain {name}", digest, None, {"installed": used["fingerprint"]}))
    return found


def compiled(row: Row) -> Json | None:
    """What was built for the engine, and what it is bound to; null where the checkpoint itself is served."""
    found = row.compiled
    if found is None or not found.built:
        return None
    keys = ("engine", "engine_version", "how", "bound_to", "limits", "options", "score", "toolchain", "made_from")
    return {key: getattr(found, key) for key in keys}


def quantization(checkpoint: Path) -> Json:
    """Format, group size and what was left alone, as the checkpoint's own configuration says it."""
    found = _json(checkpoint / "config.json").get("quantization_config") or {}
    groups = found.get("config_groups") or {}
    sizes = [((group or {}).get("weights") or {}).get("group_size") or 0 for group in groups.values()]
    return {
        "format": found.get("format") or found.get("quant_method"),
        "group_size": found.get("group_size") or max(sizes, default=0) or None,
        "ignored_modules": sorted(found.get("ignore") or found.get("modules_to_not_convert") or ()),
    }


def write_records(folder: Path, data: ReportData, artifact: Json) -> None:
    """Records, recipe, reports and model card."""
    import yaml

    for name, record in layout(data).items():
        _write(folder / "records" / name, _pretty(record))
    recipe = yaml.safe_dump(data.recipe, sort_keys=False, allow_unicode=True)
    texts = {
        "recipe.resolved.yaml": recipe,
        "report.html": html(data),
        "report.md": markdown(data),
        "README.md": model_card(data, artifact),
    }
    for name, text in texts.items():
        _write(folder / name, text)
    _write(folder / "optpipe.json", _pretty(artifact))


def engine_files(row: Row, data: ReportData, engine: Engine, settings: Json) -> dict[str, str]:
    """Of the engine that was measured; where TensorRT-LLM loads what ships, an unmeasured configuration for it."""
    files = {file_of(engine.name): yaml_text(settings, ENGINES[engine.name].NOTES)}
    files[f"engine/{engine.name}.env"] = env_text(engine.environment)
    if served(row) is row.checkpoint and file_of("tensorrt_llm") not in files:
        files |= tensorrt_llm_bundle.unmeasured(data.facts, row.checkpoint.scheme, data.recipe["load"])
    return files


def engine_settings(engine: Engine) -> Json:
    """Flat keys that any machine can serve with; a secret among them is an error, not a bundle."""
    flat = ENGINES[engine.name].flags(engine.config)
    for key in SECRETS:
        if key in flat:
            hint = "give it to the server by its environment, e.g. VLLM_API_KEY"
            raise InputError(f"{key} is a secret and bundles are read by many", place=f"engine_args.{key}", hint=hint)
    return {key: value for key, value in sorted(flat.items()) if key not in OF_ONE_RUN}


def _pretty(record: Any) -> str:
    return json.dumps(to_json(record), indent=2, ensure_ascii=False) + "\n"


def _write(path: Path, text: str) -> None:
    """Into the folder that is renamed when whole, so neither atomic nor synced here."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _json(path: Path) -> Json:
    return dict(read_json(path)) if path.is_file() else {}
