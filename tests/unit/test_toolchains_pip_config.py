"""What pip is configured with reaches uv."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from optpipe.toolchains.pip_config import config_files, has_sources, read_pip_config, uv_environment
from optpipe.toolchains.uv import without_credentials

CONFIG = """
[global]
index-url = https://mirror.example/simple
extra-index-url =
    https://one.example/simple
    https://two.example/simple
find-links = /wheels
    /more/wheels
constraint = /c.txt
cert = /ca.pem
timeout = 60

[install]
find-links = /install/wheels
no_index = false

[list]
find-links = /not/these
"""


def test_every_option_that_matters_is_handed_on(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(CONFIG)
    mapped = uv_environment(read_pip_config({}, [file]))
    assert mapped == {
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "UV_INDEX": "https://one.example/simple https://two.example/simple",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_FIND_LINKS": "/install/wheels",
        "UV_CONSTRAINT": "/c.txt",
        "UV_HTTP_TIMEOUT": "60",
        "SSL_CERT_FILE": "/ca.pem",
    }


def test_several_folders_are_separated_as_uv_reads_them(tmp_path: Path) -> None:
    assert uv_environment({"find-links": "/a\n/b"})["UV_FIND_LINKS"] == "/a,/b"


def test_variables_win_over_files(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(CONFIG)
    env = {"PIP_FIND_LINKS": "/from/variable", "PIP_NO_INDEX": "1", "PIP_EXTRA_INDEX_URL": ""}
    mapped = uv_environment(read_pip_config(env, [file]))
    assert mapped["UV_FIND_LINKS"] == "/from/variable"
    assert mapped["UV_NO_INDEX"] == "1"
    assert "one.example" in mapped["UV_INDEX"]


def test_later_files_win(tmp_path: Path) -> None:
    system, user = tmp_path / "system.conf", tmp_path / "user.conf"
    system.write_text("[global]\ncert = /system.pem\nfind-links = /system\n")
    user.write_text("[global]\nfind-links = /user\n")
    assert read_pip_config({}, [system, user]) == {"cert": "/system.pem", "find-links": "/user"}


def test_null_device_means_no_files() -> None:
    assert config_files({"PIP_CONFIG_FILE": os.devnull}) == []


def test_machine_without_configuration_takes_torch_from_pytorchs_index() -> None:
    assert not has_sources({"cert": "/ca.pem"})
    assert uv_environment({}, torch_cpu=True) == {"UV_TORCH_BACKEND": "cpu"}


def test_same_as_pip_itself_reads(tmp_path: Path) -> None:
    pytest.importorskip("pip", reason="environments made by uv have no pip to compare with")
    named = tmp_path / "named.conf"
    named.write_text("[global]\nextra-index-url = https://named.example/simple\n[install]\ntimeout = 7\n")
    env = {**os.environ, "PIP_CONFIG_FILE": str(named), "PIP_RETRIES": "3"}
    command = [sys.executable, "-m", "pip", "config", "list"]
    shown = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    theirs: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in shown.splitlines():
        key, _, value = line.partition("=")
        section, _, option = key.rpartition(".")
        theirs.setdefault(section, {})[option] = value.strip("'").replace("\\n", "\n")
    theirs[":env:"].pop("config-file", None)
    expected = {**theirs["global"], **theirs["install"], **theirs[":env:"]}
    assert expected["timeout"] == "7" and expected["retries"] == "3"
    assert read_pip_config(env) == expected


def test_credentials_are_blanked_in_what_is_shown() -> None:
    shown = without_credentials("error: https://user:secret@mirror.example/simple failed")
    assert shown == "error: https://***@mirror.example/simple failed"
