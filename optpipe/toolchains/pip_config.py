"""What pip is configured with on this machine, handed on to uv, which reads none of it.

pip itself may be absent (a uv environment has none), so its files and variables are read directly, in its own
order: [global], then [install], then PIP_*; within each, global, user, environment, PIP_CONFIG_FILE.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from pathlib import Path


def config_files(env: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, least important first; PIP_CONFIG_FILE=/dev/null means none."""
    named = env.get("PIP_CONFIG_FILE")
    if named == os.devnull:
        return []
    home = Path(env.get("HOME") or Path.home())
    system = [Path(d) / "pip/pip.conf" for d in env.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if d]
    user = Path(env.get("XDG_CONFIG_HOME") or home / ".config") / "pip/pip.conf"
    files = [*system, Path("/etc/pip.conf"), home / ".pip/pip.conf", user, Path(sys.prefix) / "pip.conf"]
    return [*files, Path(named).expanduser()] if named else files


def read_pip_config(env: Mapping[str, str] = os.environ, files: list[Path] | None = None) -> dict[str, str]:
    """Option name to value, as `pip install` would see it."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in config_files(env) if files is None else files:
        parser = configparser.RawConfigParser()
        parser.read(file, encoding="utf-8")
        for name, options in sections.items():
            if parser.has_section(name):
                options.update((key.lstrip("-").replace("_", "-"), v) for key, v in parser.items(name))
    variables = {
        key[4:].lower().replace("_", "-"): value
        for key, value in env.items()
        if key.startswith("PIP_") and value and key != "PIP_CONFIG_FILE"
    }
    return {**sections["global"], **sections["install"], **variables}


def has_sources(config: Mapping[str, str]) -> bool:
    """Whether pip is told of any place for packages other than PyPI."""
    return any(config.get(key, "").split() for key in ("find-links", "index-url", "extra-index-url"))


def uv_environment(config: Mapping[str, str], *, torch_cpu: bool = False) -> dict[str, str]:
    """uv's variables for a pip configuration: variables, not options, keep credentials in URLs out of `ps`.

    `torch_cpu` takes torch, and nothing else, from PyTorch's own index of CPU builds.
    """
    indexes = config.get("extra-index-url", "").split()
    mapped = {
        "UV_DEFAULT_INDEX": config.get("index-url", "").strip(),
        "UV_INDEX": " ".join(indexes),
        "UV_TORCH_BACKEND": "cpu" if torch_cpu else "",
        # uv's own strategy stops at the first index that knows a name, which breaks beside a partial mirror.
        "UV_INDEX_STRATEGY": "unsafe-best-match" if indexes else "",
        "UV_FIND_LINKS": ",".join(config.get("find-links", "").split()),
        "UV_CONSTRAINT": " ".join(config.get("constraint", "").split()),
        "UV_INSECURE_HOST": " ".join(config.get("trusted-host", "").split()),
        "UV_NO_INDEX": "1" if config.get("no-index", "").lower() in ("1", "true", "yes", "on") else "",
        "UV_HTTP_TIMEOUT": config.get("timeout") or config.get("default-timeout", ""),
        "SSL_CERT_FILE": config.get("cert", "").strip(),
        "SSL_CLIENT_CERT": config.get("client-cert", "").strip(),
        "ALL_PROXY": config.get("proxy", "").strip(),
    }
    return {key: value for key, value in mapped.items() if value}
