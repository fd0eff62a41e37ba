"""Pieces for a machine without network: cut, carried one by one, joined; damaged and missing ones; installed."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from gpu import pieces, wheels
from optpipe.toolchains.metadata_wheel import write_metadata_wheel


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files that end within a piece, at its end, and span several; one is empty."""
    made = tmp_path / "staged"
    noise = random.Random(1)
    for name, size in (("a/one.whl", 700), ("a/two.whl", 300), ("b/three.whl", 2500), ("b/zero.whl", 0)):
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(noise.randbytes(size))
    return made


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("*/*")}


def test_pieces_are_no_larger_than_the_limit_and_join_to_the_same_files(folder: Path, tmp_path: Path) -> None:
    manifest = pieces.cut(folder, tmp_path / "cut", limit=1000)
    assert [part.bytes for part in manifest.pieces] == [1000, 1000, 1000, 500]
    assert pieces.Manifest.read(tmp_path / "cut" / "manifest.json") == manifest
    assert pieces.collect(manifest, tmp_path / "cut", tmp_path / "kept") == []
    pieces.join(manifest, tmp_path / "kept", tmp_path / "joined")
    assert contents(tmp_path / "joined") == contents(folder)


def test_pieces_may_arrive_one_by_one_and_go_again(folder: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    manifest = pieces.cut(folder, cut, limit=1000)
    names = [part.name for part in manifest.pieces]
    for number, name in enumerate(names, 1):
        arrived = tmp_path / "arrived"
        arrived.mkdir()
        (cut / name).rename(arrived / name)
        (arrived / "manifest.json").write_bytes((cut / "manifest.json").read_bytes())
        assert pieces.collect(manifest, arrived, tmp_path / "kept") == names[number:]
        for path in arrived.iterdir():
            path.unlink()
        arrived.rmdir()


def test_a_missing_piece_is_named_and_nothing_is_joined(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces.cut(folder, tmp_path / "cut", limit=1000)
    (tmp_path / "cut" / "piece-002").unlink()
    into = tmp_path / "into"
    assert pieces.main(["join", "--pieces", str(tmp_path / "cut"), "--into", str(into)]) == 3
    assert "missing: ['piece-002']" in capsys.readouterr().err
    assert sorted(path.name for path in into.iterdir()) == ["pieces"]


@pytest.mark.parametrize("damage", ["a byte", "its end"])
def test_a_damaged_piece_is_refused_and_named(
    damage: str, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pieces.cut(folder, tmp_path / "cut", limit=1000)
    piece = tmp_path / "cut" / "piece-003"
    data = bytearray(piece.read_bytes())
    data[500] ^= 1
    piece.write_bytes(data if damage == "a byte" else data[:-1])
    into = tmp_path / "into"
    assert pieces.main(["join", "--pieces", str(tmp_path / "cut"), "--into", str(into)]) == 1
    told = capsys.readouterr().err
    assert "piece-003 is damaged" in told and "carry it again" in told
    assert not (into / "pieces" / "piece-003").exists()


def test_a_piece_that_is_damaged_later_is_found_in_the_file_that_it_makes(folder: Path, tmp_path: Path) -> None:
    manifest = pieces.cut(folder, tmp_path / "cut", limit=1000)
    pieces.collect(manifest, tmp_path / "cut", tmp_path / "kept")
    piece = tmp_path / "kept" / "piece-001"
    piece.write_bytes(piece.read_bytes()[:-1] + b"\0\0")
    with pytest.raises(pieces.Wrong, match=r"a/two\.whl is not the file that was cut"):
        pieces.join(manifest, tmp_path / "kept", tmp_path / "joined")


@pytest.mark.parametrize("name", ["../a.whl", "a/../../b", "/etc/passwd", "a/b/c.whl", "a\\b"])
def test_a_manifest_that_leads_out_of_its_folder_is_refused(name: str, folder: Path, tmp_path: Path) -> None:
    pieces.cut(folder, tmp_path / "cut", limit=1000)
    path = tmp_path / "cut" / "manifest.json"
    value = json.loads(path.read_text())
    value["files"][0]["name"] = name
    path.write_text(json.dumps(value))
    with pytest.raises(pieces.Wrong, match="names"):
        pieces.Manifest.read(path)


def test_joined_wheels_are_installed_before_the_machines_own_and_what_they_lack_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    staged = tmp_path / "staged" / "tool"
    staged.mkdir(parents=True)
    write_metadata_wheel(staged, "carried", "1.5", requires="no-such-package>=2")
    pieces.cut(tmp_path / "staged", tmp_path / "cut", limit=200)
    arguments = ["join", "--pieces", str(tmp_path / "cut"), "--into", str(tmp_path / "into")]
    assert pieces.main(arguments) == 0
    assert "carried wants no-such-package>=2, here is none" in capsys.readouterr().err
    python = tmp_path / "into" / "envs" / "tool" / "bin" / "python"
    code = "from importlib.metadata import version; import pydantic; print(version('carried'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=False, env={})
    assert done.stdout == "1.5\n", done.stderr
    assert pieces.main(arguments) == 0
    assert "joined and installed" in capsys.readouterr().err


def test_locks_hold_nothing_that_the_machine_has() -> None:
    have = wheels.on_machine(wheels.MACHINE.read_text(encoding="utf-8"))
    locks = sorted(wheels.LOCKS.glob("*.txt"))
    assert [lock.stem for lock in locks] == ["core", "load", "quantize", "vllm"]
    for lock in locks:
        named = {line.split("==")[0] for line in lock.read_text().splitlines() if "==" in line}
        assert named and not named & have.keys(), lock.name
        assert "://" not in lock.read_text()
