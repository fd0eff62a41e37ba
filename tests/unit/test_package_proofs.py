"""The bill of materials and the provenance in a bundle: valid by their own schemas, true to the records."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from optpipe import bundle as bundles
from optpipe.proofs import provenance
from optpipe.records import Bundle
from optpipe.stages.package import package
from tests.report_data import DIGEST, report_data
from tests.unit.test_package import ENGINE, begun, records


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    run = begun(tmp_path / "artifacts", "imaginary-135m")
    return package(run, records(run), ENGINE)


def read(bundle: Bundle, name: str) -> Any:
    return json.loads((bundle.path / name).read_text())


def test_the_bill_of_materials_is_valid_cyclonedx_1_6(bundle: Bundle) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    text = (bundle.path / "sbom.cdx.json").read_text()
    assert validator.validate_str(text) is None
    wrong = json.loads(text)
    wrong["metadata"]["component"]["type"] = "machine-learning"
    assert validator.validate_str(json.dumps(wrong)) is not None, "the validator does not look"


def test_the_bill_of_materials_names_model_texts_and_every_package(bundle: Bundle) -> None:
    told = read(bundle, "sbom.cdx.json")
    model = told["metadata"]["component"]
    assert (model["type"], model["licenses"]) == ("machine-learning-model", [{"license": {"id": "Apache-2.0"}}])
    files = {one["name"]: one["hashes"][0]["content"] for one in model["components"]}
    assert files["model.safetensors"] == bundles.hash_file(bundle.path / "model.safetensors")[0]
    metrics = model["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert {one["slice"] for one in metrics} == {"wiki", "python"}
    parts = {one["bom-ref"]: one for one in told["components"]}
    assert parts["base"]["purl"] == f"pkg:huggingface/test/imaginary-135m@{report_data().facts.revision}"
    assert parts["text:calibration.text"]["hashes"][0]["content"] == DIGEST.removeprefix("sha256:")
    packages = {one["name"]: one for one in parts["toolchain:quantize"]["components"]}
    assert packages["torch"]["purl"] == "pkg:pypi/torch@2.13.0%2Bcpu"
    (files_of,) = packages["llmcompressor"]["externalReferences"]
    assert [one["content"] for one in files_of["hashes"]] == ["c0" * 32, "c1" * 32]
    assert packages["python"]["type"] == "platform" and "purl" not in packages["python"]
    references = [one["bom-ref"] for one in (model, *parts.values(), *packages.values())]
    assert len(references) == len(set(references))
    assert set(told["dependencies"][0]["dependsOn"]) == set(parts)


def test_the_serial_number_follows_from_the_content(bundle: Bundle, tmp_path: Path) -> None:
    run = begun(tmp_path / "other", "imaginary-135m")
    data = records(run)
    other = package(run, replace(data, texts={}), ENGINE)
    assert read(bundle, "sbom.cdx.json")["serialNumber"] != read(other, "sbom.cdx.json")["serialNumber"]
    again = package(run, data, ENGINE)
    assert read(bundle, "sbom.cdx.json") == read(again, "sbom.cdx.json")


def test_the_provenance_is_an_in_toto_statement_in_slsas_form(bundle: Bundle) -> None:
    from google.protobuf import json_format
    from in_toto_attestation.v1 import statement_pb2

    told = read(bundle, provenance.FILE)
    json_format.ParseDict(told, statement_pb2.Statement())  # type: ignore[attr-defined]
    assert told["predicateType"] == "https://slsa.dev/provenance/v1"
    assert "model.safetensors" in {one["name"] for one in told["subject"]}
    build = told["predicate"]["buildDefinition"]
    assert build["externalParameters"]["recipe"] == report_data().recipe
    names = {one["name"]: one for one in build["resolvedDependencies"]}
    assert set(names) == {"base", "texts.wiki", "calibration.text", "toolchain quantize", "toolchain vllm"}
    assert names["base"]["digest"] == {"sha256": report_data().checkpoints[0].model_digest.removeprefix("sha256:")}
    lock = bundles.hash_file(bundle.path / "toolchains" / "quantize-test.txt")[0]
    assert names["toolchain quantize"]["digest"] == {"sha256": lock}
    assert all(isinstance(value, str) for value in told["predicate"]["runDetails"]["builder"]["version"].values())


def problems(bundle: Bundle) -> list[str]:
    manifest = bundles.write_manifest(bundle.path)
    return [str(problem) for problem in provenance.problems(manifest, lambda path: (bundle.path / path).read_bytes())]


def test_the_provenance_fits_its_bundle(bundle: Bundle) -> None:
    assert problems(bundle) == []


def test_the_provenance_of_another_run_of_the_same_recipe_does_not_fit(bundle: Bundle, tmp_path: Path) -> None:
    run = begun(tmp_path / "other", "imaginary-135m")
    data = records(run)
    slower = tuple(replace(one, command="aiperf again") for one in data.servings)
    other = package(run, replace(data, servings=slower), ENGINE)
    assert read(other, provenance.FILE)["subject"] == read(bundle, provenance.FILE)["subject"]
    shutil.copy(other.path / provenance.FILE, bundle.path / provenance.FILE)
    (told,) = problems(bundle)
    assert "of another run" in told and "records/07-benchmark" in told


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        (("subject", 0, "digest", "sha256"), "00" * 32, "another run"),
        (("predicate", "buildDefinition", "externalParameters", "recipe", "name"), "other", "another recipe"),
        (("predicate", "buildDefinition", "internalParameters", "candidate"), "int8@vllm", "int8@vllm"),
        (("predicate", "buildDefinition", "resolvedDependencies", 0, "digest", "sha256"), "11" * 32, "of the base"),
        (("predicateType",), "https://slsa.dev/provenance/v0.2", "v0.2"),
        (("predicate", "runDetails"), [], "does not have its form"),
        (("subject",), [], "another run"),
    ],
)
def test_a_provenance_that_says_otherwise_is_named(
    path: tuple[Any, ...], value: Any, told: str, bundle: Bundle
) -> None:
    document = read(bundle, provenance.FILE)
    place = document
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    (bundle.path / provenance.FILE).write_text(json.dumps(document))
    assert told in " ".join(problems(bundle))


def test_a_bundle_without_provenance_says_so(bundle: Bundle) -> None:
    (bundle.path / provenance.FILE).unlink()
    (told,) = problems(bundle)
    assert told.startswith("provenance.json: missing")
