"""Files of packages as a source, installed by uv from wheels in a local folder."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from optpipe.errors import EnvironmentMissing, InputError
from optpipe.model import wheel
from optpipe.model.fetching import fetch
from optpipe.model.sources import WheelMember
from optpipe.model.texts import resolve_text


def silent(text: str) -> None:
    """Nobody listens."""


def write_wheel(folder: Path, name: str, version: str, files: dict[str, bytes]) -> Path:
    info = f"{name}-{version}.dist-info"
    files = files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,"]).encode()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip, and so uv, is pointed at: nothing else is reachable."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    rows = {"A": {"extract": "one"}, "B": {"extract": "two"}}
    files = {
        "talky/__init__.py": b"raise SystemExit('imported')",
        "talky/data/model.gguf": b"GGUF...",
        "talky/data/rows.json": json.dumps(rows).encode(),
    }
    write_wheel(folder, "talky", "1.0", files)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL", "PIP_CONSTRAINT", "UV_DEFAULT_INDEX", "UV_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    return folder


def test_a_member_is_fetched_once_and_stays(shelf: Path, tmp_path: Path) -> None:
    said: list[str] = []
    source = WheelMember("talky==1.0", "talky/data/model.gguf")
    found = fetch(source, tmp_path / "home", said.append)
    assert found.path == tmp_path / "home/downloads/talky-1.0/talky/data/model.gguf"
    assert found.path.read_bytes() == b"GGUF..."
    assert (found.kind, found.revision, found.gguf) == ("wheel", "talky==1.0", True)
    assert found.digest == "sha256:" + hashlib.sha256(b"GGUF...").hexdigest()
    assert said[0] == "downloading talky==1.0"
    said.clear()
    (shelf / "talky-1.0-py3-none-any.whl").unlink()
    assert fetch(source, tmp_path / "home", said.append) == found
    assert said == []


def test_side_by_side_fetches_of_one_package_install_it_once(shelf: Path, tmp_path: Path) -> None:
    said: list[str] = []
    source = WheelMember("talky==1.0", "talky/data/model.gguf")
    threads = [threading.Thread(target=fetch, args=(source, tmp_path / "home", said.append)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said.count("downloading talky==1.0") == 1
    assert [p.name for p in (tmp_path / "home/downloads").iterdir()] == ["talky-1.0"], "no leftovers"


def test_a_member_that_is_not_there_names_the_nearest(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"did you mean 'talky/data/model.gguf'"):
        fetch(WheelMember("talky==1.0", "talky/data/modell.gguf"), tmp_path / "home", silent)


def test_a_download_that_was_tampered_with_is_refused(shelf: Path, tmp_path: Path) -> None:
    source = WheelMember("talky==1.0", "talky/data/model.gguf")
    path = fetch(source, tmp_path / "home", silent).path
    path.write_bytes(b"GGUF!!!")
    with pytest.raises(InputError, match=r"no longer what was downloaded(.|\n)*remove .*talky-1.0"):
        fetch(source, tmp_path / "home", silent)


def test_a_link_out_of_the_package_is_refused(shelf: Path, tmp_path: Path) -> None:
    folder = wheel.package("talky==1.0", tmp_path / "home", silent)
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    (folder / "out.gguf").symlink_to(tmp_path / "secret.gguf")
    with pytest.raises(InputError, match="leads out of the package"):
        fetch(WheelMember("talky==1.0", "out.gguf"), tmp_path / "home", silent)


def test_a_version_that_is_nowhere_is_the_users_error(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no wheel of talky==2.0"):
        fetch(WheelMember("talky==2.0", "x"), tmp_path / "home", silent)
    assert list((tmp_path / "home/downloads").iterdir()) == []


def test_an_index_that_does_not_answer_is_the_environments_error(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(EnvironmentMissing, match="could not be downloaded") as error:
        fetch(WheelMember("other==1.0", "x"), tmp_path / "home", silent)
    assert "secret" not in str(error.value)
    assert "127.0.0.1:9: Connection refused" in str(error.value), "found out before uv tries it for 12 s"
    assert "without a network" in str(error.value)


def test_without_a_network_what_lies_in_a_folder_of_wheels_is_still_found(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    assert wheel.package("talky==1.0", tmp_path / "home", silent).is_dir()


def test_a_source_package_is_not_built(shelf: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    setup = f"open({str(ran)!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='nasty', version='1.0')\n"
    with tarfile.open(shelf / "nasty-1.0.tar.gz", "w:gz") as archive:
        for name, data in {
            "setup.py": setup,
            "PKG-INFO": "Metadata-Version: 2.1\nName: nasty\nVersion: 1.0\n",
        }.items():
            entry = tarfile.TarInfo(f"nasty-1.0/{name}")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data.encode()))
    with pytest.raises(InputError, match=r"nasty==1.0"):
        fetch(WheelMember("nasty==1.0", "x"), tmp_path / "home", silent)
    assert not ran.exists()


def test_a_text_out_of_a_package(shelf: Path, tmp_path: Path) -> None:
    source = WheelMember("talky==1.0", "talky/data/rows.json")
    text = resolve_text(source, None, "extract", tmp_path / "home", silent)
    assert text.path.read_text() == '{"text": "one"}\n{"text": "two"}\n'
