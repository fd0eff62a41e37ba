"""Whose work a base is and under which licence: from cards, GGUF files, packages; else that nobody said."""

from __future__ import annotations

import shutil
from pathlib import Path

from optpipe.model.fetching import content_digest
from optpipe.model.licence import licence_of
from optpipe.rundir import DigestMemo
from tests import models
from tests.unit.gguf_files import llama, write_gguf


def test_nobody_said_anything(tmp_path: Path) -> None:
    assert licence_of(tmp_path) == ({"name": None, "said_by": None, "attribution": {}}, {})


def test_a_card_says_it_and_texts_are_found(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("---\nlicense: other\nlicense_name: gemma\nlicense_link: https://x/y\n---\n")
    for name in ("LICENSE.txt", "Notice", "USE_POLICY.md", "model.txt"):
        (tmp_path / name).write_text(name)
    known, texts = licence_of(tmp_path)
    assert (known["name"], known["said_by"]) == ("other", "its model card")
    assert known["attribution"] == {"license_name": "gemma", "license_link": "https://x/y"}
    assert sorted(texts) == ["LICENSE.txt", "Notice", "USE_POLICY.md"]


def test_cards_that_cannot_be_read_say_nothing(tmp_path: Path) -> None:
    for text in ("---\nlicense: [\n---\n", "---\n- a\n---\n", "no front matter", "---\nlicense: {a: 1}\n---\n"):
        (tmp_path / "README.md").write_text(text)
        assert licence_of(tmp_path)[0]["name"] is None


def package(folder: Path) -> Path:
    """What model/wheel.py leaves of a package with a GGUF file in it."""
    info = folder / "tiny_model-1.0.dist-info"
    (info / "licenses").mkdir(parents=True)
    (folder / ".digests.json").write_text("{}")
    (info / "METADATA").write_text("Name: tiny-model\nVersion: 1.0\nAuthor: Somebody\nLicense: MIT\n\nLicense: no\n")
    (info / "licenses" / "LICENSE").write_text("text of the package")
    (folder / "data").mkdir()
    return folder / "data" / "tiny.gguf"


def test_the_models_own_word_goes_before_its_packages(tmp_path: Path) -> None:
    path = package(tmp_path / "tiny-model-1.0")
    write_gguf(path, llama() | {"general.license": "apache-2.0", "general.organization": "Makers"})
    known, texts = licence_of(path)
    assert (known["name"], known["said_by"]) == ("apache-2.0", "its GGUF file")
    assert known["attribution"]["organization"] == "Makers" and known["attribution"]["package"] == "tiny-model 1.0"
    assert texts["LICENSE"].read_text() == "text of the package"


def test_the_packages_word_is_taken_where_the_model_says_nothing(tmp_path: Path) -> None:
    path = package(tmp_path / "tiny-model-1.0")
    write_gguf(path, llama())
    known, _ = licence_of(path)
    assert (known["name"], known["said_by"]) == ("MIT", "the package that it came in")


def test_a_licence_or_card_does_not_change_what_a_model_is(tmp_path: Path) -> None:
    models.tiny_llama(tmp_path / "model")
    memo = DigestMemo(tmp_path / "memo.sqlite")
    before = content_digest(tmp_path / "model", memo)
    (tmp_path / "model" / "LICENSE").write_text("text")
    (tmp_path / "model" / "README.md").write_text("card")
    assert content_digest(tmp_path / "model", memo) == before
    shutil.copy(tmp_path / "model" / "LICENSE", tmp_path / "model" / "other.json")
    assert content_digest(tmp_path / "model", memo) != before
