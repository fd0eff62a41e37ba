"""Installing a toolchain: a tiny lock, really installed by uv into an empty OPTPIPE_HOME, without network."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from optpipe.errors import EnvironmentMissing
from optpipe.rundir import read_json
from optpipe.toolchains import managed
from optpipe.toolchains.fingerprint import scan
from optpipe.toolchains.managed import Lock
from optpipe.toolchains.uv import need_uv

REPOSITORY = Path(__file__).parents[2]
INSTALL = """
import sys
from pathlib import Path
from optpipe.toolchains.managed import Lock, install
install(Lock.read(Path(sys.argv[1])), lambda text: print(text, flush=True))
"""


def write_wheel(folder: Path, version: str, source: str = "VALUE = 1\n") -> Path:
    """A package named tiny with one module and one command."""
    info = f"tiny-{version}.dist-info"
    files = {
        "tiny.py": source + "def main():\n    print(VALUE)\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntiny = tiny:main\n",
    }
    record = []
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record.append(f"{path},sha256={digest},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""])
    folder.mkdir(parents=True, exist_ok=True)
    wheel = folder / f"tiny-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def write_lock(folder: Path, wheel: Path, version: str = "1.0") -> Path:
    file = folder / "tiny.txt"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    file.write_text(f"tiny=={version} \\\n    --hash=sha256:{digest}\n")
    return file


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels that pip's configuration names as the only source, and an empty OPTPIPE_HOME."""
    for name in [key for key in os.environ if key.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    folder = tmp_path / "wheels"
    folder.mkdir()
    (tmp_path / "pip.conf").write_text(f"[global]\nfind-links = {folder}\nno-index = true\n")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "none"))
    for name in ("XDG_CONFIG_DIRS", "XDG_CONFIG_HOME", "HOME"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    return folder


def start_install(lock: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-c", INSTALL, str(lock)]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_first_use_installs_byte_compiles_and_marks_last(shelf: Path, tmp_path: Path) -> None:
    lock = Lock.read(write_lock(tmp_path, write_wheel(shelf, "1.0")))
    assert not lock.complete
    said: list[str] = []
    folder = managed.install(lock, said.append)
    assert folder == lock.folder and lock.complete
    assert subprocess.run([folder / "bin/tiny"], capture_output=True, text=True, check=True).stdout == "1\n"
    assert list(folder.glob("lib/python*/site-packages/__pycache__/tiny.*.pyc"))
    marker = read_json(folder / managed.MARKER)
    assert marker["lock"] == lock.digest and marker["versions"]["tiny"] == "1.0" and marker["bytes"] > 0
    assert said[0] == "installing tiny (1 packages)" and said[-1].startswith("installed tiny in ")


def test_second_use_installs_nothing(shelf: Path, tmp_path: Path) -> None:
    wheel = write_wheel(shelf, "1.0")
    lock = Lock.read(write_lock(tmp_path, wheel))
    managed.install(lock)
    wheel.unlink()
    said: list[str] = []
    assert managed.install(lock, said.append) == lock.folder
    assert said == []


def test_folder_without_marker_is_removed_and_made_again(shelf: Path, tmp_path: Path) -> None:
    lock = Lock.read(write_lock(tmp_path, write_wheel(shelf, "1.0")))
    (lock.folder / "bin").mkdir(parents=True)
    (lock.folder / "bin" / "leftover").write_text("half")
    managed.install(lock)
    assert lock.complete and not (lock.folder / "bin" / "leftover").exists()


def test_changed_lock_has_its_own_folder(shelf: Path, tmp_path: Path) -> None:
    old = Lock.read(write_lock(tmp_path, write_wheel(shelf, "1.0")))
    new = Lock.read(write_lock(tmp_path, write_wheel(shelf, "1.1"), "1.1"))
    managed.install(old)
    assert old.folder != new.folder and not new.complete


def test_two_processes_install_once(shelf: Path, tmp_path: Path) -> None:
    lock = write_lock(tmp_path, write_wheel(shelf, "1.0"))
    texts = [process.communicate(timeout=120)[0] for process in [start_install(lock) for _ in range(3)]]
    assert sum("installed tiny" in text for text in texts) == 1, texts
    assert Lock.read(lock).complete


# ---------------------------------------------------------------- killed in the middle


@contextlib.contextmanager
def stalling_index(wheel: Path) -> Iterator[tuple[str, threading.Event, threading.Event]]:
    """An index on loopback that holds the wheel back until told: its address, `asked`, `release`."""
    asked, release = threading.Event(), threading.Event()
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    page = f'<!DOCTYPE html><html><body><a href="/{wheel.name}#sha256={digest}">{wheel.name}</a></body></html>'

    class Index(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.endswith(".whl"):
                asked.set()
                release.wait(60)
                self.answer(wheel.read_bytes(), "application/octet-stream")
            else:
                self.answer(page.encode(), "text/html")

        def answer(self, body: bytes, kind: str) -> None:
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/simple", asked, release
    finally:
        release.set()
        server.shutdown()
        server.server_close()


def test_killed_install_is_not_taken_for_done_and_next_waits_for_its_uv(shelf: Path, tmp_path: Path) -> None:
    wheel = write_wheel(tmp_path / "remote", "1.0")
    file = write_lock(tmp_path, wheel)
    lock = Lock.read(file)
    with stalling_index(wheel) as (url, asked, release):
        (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {url}\n")
        first = start_install(file)
        assert asked.wait(60), "uv never asked for the wheel"
        first.send_signal(signal.SIGKILL)
        first.wait()
        assert lock.folder.is_dir() and not lock.complete

        second = start_install(file)
        assert second.stdout is not None
        assert "waiting for another install of tiny" in second.stdout.readline()
        time.sleep(0.2)
        assert second.poll() is None, "it did not wait for the uv that the killed build left"
        release.set()
        text = second.communicate(timeout=60)[0]
    assert second.returncode == 0 and "installed tiny" in text
    assert lock.complete


# ---------------------------------------------------------------- what goes wrong


def test_missing_package_ends_with_uvs_words_and_a_hint(shelf: Path, tmp_path: Path) -> None:
    lock = Lock.read(write_lock(tmp_path, write_wheel(tmp_path / "elsewhere", "1.0")))
    with pytest.raises(EnvironmentMissing) as caught:
        managed.install(lock)
    text = str(caught.value)
    assert "tiny" in text and "uv ended with" in text and "optpipe toolchain install tiny" in text
    assert not lock.complete


def test_other_bytes_than_the_lock_names_are_refused(shelf: Path, tmp_path: Path) -> None:
    file = write_lock(tmp_path, write_wheel(shelf, "1.0"))
    write_wheel(shelf, "1.0", "VALUE = 666\n")
    with pytest.raises(EnvironmentMissing, match="Hash mismatch"):
        managed.install(Lock.read(file))


def test_constraint_of_pip_that_contradicts_the_lock_is_told(shelf: Path, tmp_path: Path) -> None:
    file = write_lock(tmp_path, write_wheel(shelf, "1.0"))
    (tmp_path / "constraints.txt").write_text("tiny<1\n")
    with (tmp_path / "pip.conf").open("a") as config:
        config.write(f"constraint = {tmp_path / 'constraints.txt'}\n")
    with pytest.raises(EnvironmentMissing, match="tiny<1") as caught:
        managed.install(Lock.read(file))
    assert "constraint" in str(caught.value.hint)


def test_full_disk_is_seen_before_the_download(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(managed.SIZES, "tiny", 1e9)
    with pytest.raises(EnvironmentMissing, match="are free, tiny needs"):
        managed.install(Lock.read(write_lock(shelf.parent, write_wheel(shelf, "1.0"))))


def test_unwritable_home_names_optpipe_home(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shelf.parent / "file").write_text("")
    monkeypatch.setenv("OPTPIPE_HOME", str(shelf.parent / "file" / "home"))
    with pytest.raises(EnvironmentMissing, match="OPTPIPE_HOME"):
        managed.install(Lock.read(write_lock(shelf.parent, write_wheel(shelf, "1.0"))))


# ---------------------------------------------------------------- fingerprint


def test_fingerprint_is_that_of_the_content_not_of_the_place(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock.read(write_lock(tmp_path, write_wheel(shelf, "1.0")))
    managed.install(lock)
    here = scan(lock.python, place="here").fingerprint
    monkeypatch.setenv("OPTPIPE_HOME", str(tmp_path / "another home"))
    managed.install(lock)
    assert "another home" in str(lock.python)
    assert scan(lock.python, place="there").fingerprint == here


@pytest.mark.parametrize(("version", "source"), [("1.1", "VALUE = 1\n"), ("1.0", "VALUE = 2\n")])
def test_fingerprint_changes_with_a_package(shelf: Path, tmp_path: Path, version: str, source: str) -> None:
    lock = Lock.read(write_lock(tmp_path, write_wheel(shelf, "1.0")))
    managed.install(lock)
    settle(lock)
    before = scan(lock.python, place="before")
    changed = write_wheel(tmp_path / "changed", version, source)
    uv = need_uv()
    arguments = [
        "pip",
        "install",
        "-q",
        "--no-index",
        "--reinstall",
        "--python",
        str(lock.python),
        str(changed),
    ]
    subprocess.run([uv, *arguments], check=True)
    after = scan(lock.python, place="after")
    assert after.fingerprint != before.fingerprint
    assert after.versions["tiny"] == version


def settle(lock: Lock) -> None:
    """As if the environment had been made a minute ago, so that its fingerprint is kept."""
    then = time.time() - 60
    for path in [lock.folder / "pyvenv.cfg", *lock.folder.glob("lib/python*/site-packages")]:
        os.utime(path, (then, then))


def test_kept_fingerprint_starts_no_interpreter(shelf: Path, tmp_path: Path) -> None:
    counter = tmp_path / "bin" / "python"
    counter.parent.mkdir()
    counter.write_text(f'#!/bin/sh\necho started >> {tmp_path}/starts\nexec {sys.executable} "$@"\n')
    counter.chmod(0o755)
    os.utime(counter, (time.time() - 60, time.time() - 60))
    first = scan(counter, place="first")
    assert scan(counter, place="second") == first
    assert (tmp_path / "starts").read_text() == "started\n"
    os.utime(counter, (time.time() - 30, time.time() - 30))
    scan(counter, place="third")
    assert (tmp_path / "starts").read_text() == "started\nstarted\n"
