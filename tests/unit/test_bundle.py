"""A bundle says what is in it, and whatever differs is named."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from optpipe import bundle
from optpipe.records import canonical


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "made"
    (made / "engine").mkdir(parents=True)
    (made / "config.json").write_text("{}")
    (made / "model.safetensors").write_bytes(bytes(range(256)))
    (made / "engine" / "vllm.yaml").write_text("max-num-seqs: 8\n")
    bundle.write_manifest(made)
    return made


def places(folder: Path, expected: str | None = None) -> list[str]:
    return [problem.place for problem in bundle.verify(folder, expected)]


def listing(folder: Path, *paths: str) -> None:
    """Write a manifest of one's own that lists `paths`, as somebody with bad intent could."""
    files = [{"path": path, "sha256": hashlib.sha256(b"").hexdigest(), "size": 0} for path in paths]
    (folder / "manifest.json").write_bytes(canonical({"version": 1, "files": files}))


def test_a_whole_bundle_has_no_problems(folder: Path) -> None:
    assert bundle.verify(folder) == ()


def test_the_digest_is_the_checksum_of_the_manifest_file(folder: Path) -> None:
    manifest, problems = bundle.read_manifest(folder)
    assert manifest is not None and not problems
    assert manifest.digest == "sha256:" + hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()


def test_the_digest_depends_on_content_alone(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    for name in ("model.safetensors", "engine/vllm.yaml", "config.json"):
        bundle.copy_file(folder / name, other / name)
        os.utime(other / name, (1, 1))
    first, _ = bundle.read_manifest(folder)
    assert first == bundle.write_manifest(other)


def test_the_signature_is_not_part_of_the_digest(folder: Path) -> None:
    before = (folder / "manifest.json").read_bytes()
    (folder / "model.sig").write_text("signed")
    bundle.write_manifest(folder)
    assert (folder / "manifest.json").read_bytes() == before
    assert bundle.verify(folder) == ()


def test_a_changed_byte_is_named(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(bytes(reversed(range(256))))
    assert places(folder) == ["model.safetensors"]


def test_a_changed_size_is_named_without_reading_contents(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"short")
    assert [problem.place for problem in bundle.verify(folder, contents=False)] == ["model.safetensors"]


@pytest.mark.parametrize("name", ["extra.bin", "engine/extra.yaml", "deep/er/x"])
def test_an_added_file_is_named(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("added")
    assert places(folder) == [name]


def test_an_added_empty_folder_is_named(folder: Path) -> None:
    (folder / "cache").mkdir()
    assert places(folder) == ["cache"]


def test_a_missing_file_is_named(folder: Path) -> None:
    (folder / "engine" / "vllm.yaml").unlink()
    (folder / "engine").rmdir()
    assert places(folder) == ["engine/vllm.yaml"]


def test_a_link_in_place_of_a_file_is_refused_even_with_the_same_content(
    folder: Path, tmp_path: Path
) -> None:
    (folder / "config.json").rename(tmp_path / "elsewhere.json")
    (folder / "config.json").symlink_to(tmp_path / "elsewhere.json")
    assert places(folder) == ["config.json"]
    assert "link" in str(bundle.verify(folder)[0])


def test_a_link_in_place_of_a_folder_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "engine").rename(tmp_path / "engine")
    (folder / "engine").symlink_to(tmp_path / "engine")
    assert places(folder) == ["engine", "engine/vllm.yaml"]


def test_a_pipe_is_refused_and_not_waited_for(folder: Path) -> None:
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    assert places(folder) == ["config.json"]


def test_a_manifest_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "manifest.json").rename(tmp_path / "m.json")
    (folder / "manifest.json").symlink_to(tmp_path / "m.json")
    assert places(folder) == ["manifest.json"]


@pytest.mark.parametrize(
    "path",
    [
        *("../outside", "a/../../outside", "/etc/passwd", "C:/windows", "a\\b", "./config", "a//b", ""),
        *("manifest.json", "model.sig", "Manifest.JSON", "name ", "name.", "a\u0000b", "e\u0301", "\ud800"),
    ],
)
def test_a_listed_name_that_travels_badly_is_refused(folder: Path, path: str) -> None:
    files = [{"path": path, "sha256": hashlib.sha256(b"").hexdigest(), "size": 0}]
    text = json.dumps({"version": 1, "files": files}, sort_keys=True, separators=(",", ":"))
    if "\ud800" not in path:
        text = canonical(json.loads(text)).decode()
    (folder / "manifest.json").write_text(text)
    _, problems = bundle.read_manifest(folder)
    assert problems


@pytest.mark.parametrize(
    "pair", [("Config.json", "config.json"), ("Engine/a", "engine/b"), ("a", "a/b"), ("x", "x"), ("ß", "ss")]
)
def test_two_names_that_one_file_system_takes_for_the_same_are_refused(
    folder: Path, pair: tuple[str, str]
) -> None:
    listing(folder, *pair)
    _, problems = bundle.read_manifest(folder)
    assert len(problems) == 1


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "{}", '{"version":2,"files":[]}', '{"version":1,"files":[{"path":"a"}]}', "{", "\xff"),
        '{"files":[{"path":"a","sha256":"00","size":0}],"version":1}',
        '{"files":[],"files":[],"version":1}',
        '{"files": [], "version": 1}',
    ],
)
def test_what_is_not_a_canonical_manifest_is_refused(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_text(text)
    assert places(folder) == ["manifest.json"]


def test_a_folder_without_a_manifest_is_not_a_bundle(tmp_path: Path) -> None:
    assert places(tmp_path) == ["manifest.json"]


def test_another_version_is_not_the_expected_one(folder: Path) -> None:
    assert places(folder, "sha256:" + "0" * 64) == ["manifest.json"]


def test_write_manifest_refuses_links(folder: Path) -> None:
    (folder / "link").symlink_to("config.json")
    with pytest.raises(ValueError, match="link"):
        bundle.write_manifest(folder)


def test_a_copy_has_its_own_content(folder: Path, tmp_path: Path) -> None:
    bundle.copy_file(folder / "config.json", tmp_path / "copy.json")
    (tmp_path / "copy.json").write_text("changed")
    assert bundle.verify(folder) == ()


def test_link_file_follows_a_link_to_the_content(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "blob").write_text("blob")
    (tmp_path / "snapshot").symlink_to("blob")
    bundle.link_file(tmp_path / "snapshot", tmp_path / "out" / "file")
    assert (tmp_path / "out" / "file").read_text() == "blob"
    assert not (tmp_path / "out" / "file").is_symlink()
