"""Packaging: one bundle from records, the same each time, with nothing of this machine in it."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from optpipe import bundle as bundles
from optpipe.errors import BackendFailed, InputError
from optpipe.records import Bundle
from optpipe.report.data import ReportData
from optpipe.report.portable import portable
from optpipe.rundir import LICENCES, LOCKS, RunFolder
from optpipe.stages.package import Engine, package
from tests.report_data import checkpoint, report_data, tuning

ENGINE = Engine(
    "vllm", "0.32.0", tuning().config | {"host": "127.0.0.1", "port": 8123}, {"OMP_NUM_THREADS": "1"}
)


LOCK = f"""\
llmcompressor==0.14.0.1 \\
    --hash=sha256:{"c0" * 32} \\
    --hash=sha256:{"c1" * 32}
torch==2.13.0+cpu ; sys_platform == 'linux' \\
    --hash=sha256:{"70" * 32}
"""


def model(folder: Path, quantized: bool) -> Path:
    """A folder as a quantizer leaves it; nothing here could be loaded."""
    folder.mkdir(parents=True)
    config: dict[str, object] = {"architectures": ["LlamaForCausalLM"]}
    if quantized:
        groups = {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 8, "group_size": 64}}}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": "int-quantized",
            "config_groups": groups, "ignore": ["lm_head"],
        }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text('{"test": true}')
    (folder / "chat_template.jinja").write_bytes(b"{{ bos }}\r\n")
    (folder / "model.safetensors").write_bytes(b"weights" * 100)
    return folder


def records(run: RunFolder) -> ReportData:
    """The build of tests/report_data.py with checkpoints in this run's cache."""
    paths = {name: run.store.root / "jobs" / name / "files" for name in ("base", "sq-w8a8")}
    for name, path in paths.items():
        if not path.exists():
            model(path, quantized=name != "base")
    for name, text in {f"{LICENCES}/LICENSE": "Test licence", f"{LOCKS}/quantize-test.txt": LOCK}.items():
        (run.path / name).parent.mkdir(exist_ok=True)
        (run.path / name).write_text(text)
    licence = {"name": "apache-2.0", "said_by": "its model card", "attribution": {"organization": "Test"}}
    data = report_data()
    served = [
        replace(s, command=f"aiperf --tokenizer {paths['base']} --out /scratch/x") for s in data.servings
    ]
    return replace(
        data,
        checkpoints=tuple(
            replace(checkpoint(name, path), details={"licence": licence | {"files": ["LICENSE"]}})
            for name, path in paths.items()
        ),
        servings=tuple(served),
        hardware=replace(data.hardware, name=platform.node()),
    )


def begun(artifacts: Path, name: str) -> RunFolder:
    run = RunFolder(artifacts, name, {"started": "elsewhere"})
    run.begin()
    return run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return begun(tmp_path / "artifacts", "imaginary-135m")


@pytest.fixture
def bundle(run: RunFolder) -> Bundle:
    return package(run, records(run), ENGINE)


def test_a_bundle_is_a_model_folder_with_its_evidence(bundle: Bundle, run: RunFolder) -> None:
    assert bundle.path == run.path / "package"
    assert bundles.verify(bundle.path, bundle.digest) == ()
    files, _ = bundles.walk(bundle.path)
    assert sorted(files) == sorted(
        [
            *(
                "LICENSE",
                "README.md",
                "chat_template.jinja",
                "config.json",
                "engine/vllm.env",
                "engine/vllm.yaml",
                "manifest.json",
                "provenance.json",
                "sbom.cdx.json",
                "toolchains/quantize-test.txt",
            ),
            *("model.safetensors", "optpipe.json", "recipe.resolved.yaml", "report.html", "report.md"),
            *("tokenizer.json", "records/01-inspect.json", "records/02-plan.json", "records/03-resolve.json"),
            *("records/04-quantize/sq-w8a8/record.json", "records/08-tune/sq-w8a8@vllm.json"),
            *(f"records/06-evaluate/{n}@vllm.json" for n in ("base", "gptq-w4", "sq-w8a8", "awq-w4", "int8")),
            *(f"records/07-benchmark/{n}@vllm.json" for n in ("base", "gptq-w4", "sq-w8a8")),
            *("records/09-select.json", "records/10-confirm.json"),
        ]
    )
    assert (bundle.path / "chat_template.jinja").read_bytes() == b"{{ bos }}\r\n"


def test_the_same_records_give_the_same_digest_in_another_run_and_place(
    bundle: Bundle, tmp_path: Path
) -> None:
    other = begun(tmp_path / "elsewhere" / "artifacts", "again")
    again = package(other, replace(records(other), seconds={"build": 3.0}, published=()), ENGINE)
    assert again.digest == bundle.digest


def test_packaging_again_in_the_same_run_replaces_the_bundle(bundle: Bundle, run: RunFolder) -> None:
    (bundle.path / "stray").write_text("stray")
    assert package(run, records(run), ENGINE) == bundle
    assert bundles.verify(bundle.path, bundle.digest) == ()
    assert "stray" not in {path.name for path in bundle.path.iterdir()}
    assert not list(run.path.glob(".package.*"))


def test_nothing_of_this_machine_or_moment_goes_in(bundle: Bundle, run: RunFolder, tmp_path: Path) -> None:
    for path in bundles.walk(bundle.path)[0]:
        text = (bundle.path / path).read_text(encoding="utf-8")
        for forbidden in (str(tmp_path), "/scratch", run.ident, report_data().run or ""):
            assert forbidden not in text, f"{forbidden} in {path}"
        assert not re.search(r"20\d\d-\d\d-\d\dT", text)
    hardware = json.loads((bundle.path / "optpipe.json").read_text())["measured_on"]["hardware"]
    assert hardware["name"] == "this machine"


def test_weights_are_linked_and_the_cache_keeps_its_own(bundle: Bundle, run: RunFolder) -> None:
    kept = run.store.root / "jobs" / "sq-w8a8" / "files" / "model.safetensors"
    assert kept.stat().st_ino == (bundle.path / "model.safetensors").stat().st_ino


def test_the_engine_file_is_flat_and_belongs_to_no_run(bundle: Bundle) -> None:
    settings = yaml.safe_load((bundle.path / "engine" / "vllm.yaml").read_text())
    assert settings == {"max-model-len": 1024, "max-num-seqs": 16}


def test_a_secret_among_the_engine_settings_is_refused(run: RunFolder) -> None:
    with pytest.raises(InputError, match="api-key is a secret") as error:
        package(run, records(run), replace(ENGINE, config={"api_key": "hunter2"}))
    assert "hunter2" not in str(error.value)
    assert "package" not in " ".join(path.name for path in run.path.iterdir())


def test_optpipe_json_tells_what_the_artifact_is(bundle: Bundle) -> None:
    told = json.loads((bundle.path / "optpipe.json").read_text())
    expected = {"method": "smoothquant", "format": "int-quantized", "group_size": 64, "kv_cache_dtype": "auto"}
    assert {key: told[key] for key in expected} == expected
    assert told["base"]["repository"] == "hf:test/imaginary-135m" and len(told["base"]["revision"]) == 40
    assert told["requirements"]["parallelism"] == {"tensor": 1, "pipeline": 1, "data": 1, "devices": 1}
    assert {"memory_bytes_estimated", "compute_capability", "platform"} < told["requirements"].keys()
    assert told["licence"]["name"] == "apache-2.0" and told["licence"]["files"] == ["LICENSE"]
    assert told["gates"]["preset"] == "default" and told["gates"]["perplexity_increase_pct"] == 5.0
    assert set(told["measured_on"]) == {"hardware", "versions"}
    assert told["ignored_modules"] == ["lm_head"]
    assert told["base"]["digest"] == report_data().checkpoints[0].model_digest
    assert told["target"]["version"] == "0.32.0"


def test_the_card_has_front_matter_and_says_unsigned(
    bundle: Bundle, golden: Callable[[str, str], None]
) -> None:
    card = (bundle.path / "README.md").read_text()
    head = yaml.safe_load(card.split("---\n")[1])
    assert head["license"] == "apache-2.0" and head["base_model"] == "test/imaginary-135m"
    assert "**unsigned**" in card and "[LICENSE](LICENSE)" in card
    golden("report/card.md", card)


def test_devices_are_the_product_of_all_parallel_sizes(run: RunFolder) -> None:
    config = tuning().config | {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    told = json.loads((package(run, records(run), replace(ENGINE, config=config)).path / "optpipe.json").read_text())
    assert told["requirements"]["parallelism"] == {"tensor": 4, "pipeline": 2, "data": 1, "devices": 8}


def test_a_base_that_says_no_licence_is_said_to_say_none(run: RunFolder) -> None:
    data = records(run)
    (run.path / LICENCES / "LICENSE").unlink()
    bare = tuple(replace(one, details={}) for one in data.checkpoints)
    made = package(run, replace(data, checkpoints=bare), ENGINE)
    card = (made.path / "README.md").read_text()
    assert "does not say under which licence" in card and "without the text of a licence" in card
    assert "license" not in yaml.safe_load(card.split("---\n")[1])


def test_the_recipe_in_the_bundle_is_the_resolved_one(bundle: Bundle) -> None:
    assert yaml.safe_load((bundle.path / "recipe.resolved.yaml").read_text()) == report_data().recipe


def test_what_is_no_part_of_a_model_stays_behind(run: RunFolder) -> None:
    data = records(run)
    files = data.checkpoints[1].path
    for name in ("notes.txt", "pytorch_model.bin", "modeling_test.py", "manifest.json", "optpipe.json"):
        (files / name).write_text("{}")
    assert {"notes.txt", "pytorch_model.bin", "modeling_test.py"}.isdisjoint(
        bundles.walk(package(run, data, ENGINE).path)[0]
    )


def test_code_that_the_configuration_names_goes_along(run: RunFolder) -> None:
    data = records(run)
    files = data.checkpoints[1].path
    config = json.loads((files / "config.json").read_text())
    (files / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "modeling_test.M"}}))
    (files / "modeling_test.py").write_text("class M: ...")
    assert (package(run, data, ENGINE).path / "modeling_test.py").exists()


def test_a_checkpoint_whose_weights_were_dropped_is_not_packaged(run: RunFolder) -> None:
    data = records(run)
    (data.checkpoints[1].path / "model.safetensors").unlink()
    with pytest.raises(BackendFailed, match=r"no \.safetensors"):
        package(run, data, ENGINE)
    assert "package" not in " ".join(path.name for path in run.path.iterdir())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/x/artifacts/cache/jobs/1", "artifacts/cache/jobs/1"),
        ("--tokenizer /data/models/tiny --isl 8", "--tokenizer <path>/tiny --isl 8"),
        ("http://127.0.0.1:8000/v1/completions", "http://127.0.0.1:8000/v1/completions"),
        ("posts to /v1/completions", "posts to /v1/completions"),
        ("12 tok/s", "12 tok/s"),
        ("<path>/tiny", "<path>/tiny"),
        ("wheel:a==1/b/c.gguf", "wheel:a==1/b/c.gguf"),
    ],
)
def test_only_paths_of_the_machine_are_rewritten(text: str, expected: str) -> None:
    assert portable({"a": [text]}, Path("/x/artifacts")) == {"a": [expected]}
