"""Real registry servers on loopback: Debian's docker-registry, MLflow, and two that speak S3 (rclone, moto).

They come from an environment of their own (servers.lock), made once below OPTPIPE_HOME; docker-registry from PATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import httpx2

from optpipe.rundir import locked, optpipe_home

LOCK = Path(__file__).with_name("servers.lock")
READY_S = 240
ACCESS, SECRET = "testaccesskey123", "testsecretkey123456"


def environment() -> Path:
    """The bin folder of the servers' environment."""
    root = optpipe_home() / "test-servers" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    with locked(root.with_suffix(".lock")):
        if not (root / "ready").exists():
            subprocess.run([sys.executable, "-m", "uv", "venv", "-q", "--clear", str(root)], check=True)
            words = ["pip", "sync", "-q", "--compile-bytecode", "--python", str(root / "bin" / "python"), str(LOCK)]
            subprocess.run([sys.executable, "-m", "uv", *words], check=True)
            (root / "ready").touch()
    return root / "bin"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Server:
    """One server in its own process group; `limit` is the largest file in bytes that it may write."""

    folder: Path
    port: int = field(default_factory=free_port)
    limit: int | None = None
    process: subprocess.Popen[bytes] | None = None
    health: str = "/"

    def words(self) -> list[str]:
        raise NotImplementedError

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        words = self.words()
        if self.limit is not None:
            words = ["prlimit", f"--fsize={self.limit}", *words]
        env = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1"}
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                words, cwd=self.folder, stdout=log, stderr=log, env=env, start_new_session=True
            )
        self.wait_ready()

    def wait_ready(self) -> None:
        began = time.monotonic()
        while True:
            assert self.process and self.process.poll() is None, (self.folder / "log").read_text()[-2000:]
            try:
                if httpx2.get(self.url + self.health, timeout=5, trust_env=False).status_code < 500:
                    return
            except httpx2.TransportError:
                assert time.monotonic() - began < READY_S, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def stop(self) -> None:
        """The whole group, at once."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def restart(self) -> None:
        self.stop()
        self.start()


@dataclass
class DockerRegistry(Server):
    health: str = "/v2/"
    users: str = ""
    """Lines of an htpasswd file (bcrypt); without, everybody may."""

    def words(self) -> list[str]:
        config = self.folder / "config.yml"
        (self.folder / "users").write_text(self.users)
        users = f"auth: {{htpasswd: {{realm: test, path: {self.folder}/users}}}}\n" if self.users else ""
        config.write_text(
            f"version: 0.1\nlog: {{level: error}}\n{users}"
            f"storage: {{filesystem: {{rootdirectory: {self.folder}/data}}}}\n"
            f'http: {{addr: "127.0.0.1:{self.port}"}}\n'
        )
        found = shutil.which("docker-registry")
        assert found, "apt-get install docker-registry"
        return [found, "serve", str(config)]


@dataclass
class MlflowServer(Server):
    health: str = "/health"

    def words(self) -> list[str]:
        store = ["--backend-store-uri", "sqlite:///mlflow.db", "--artifacts-destination", "./artifacts"]
        at = ["--host", "127.0.0.1", "--port", str(self.port), "--workers", "1"]
        return [str(environment() / "mlflow"), "server", *at, *store]


@dataclass
class RcloneS3(Server):
    def words(self) -> list[str]:
        (self.folder / "root" / "models").mkdir(parents=True, exist_ok=True)
        at = ["--addr", f"127.0.0.1:{self.port}", "--auth-key", f"{ACCESS},{SECRET}"]
        return [str(environment() / "rclone"), "serve", "s3", *at, str(self.folder / "root")]


@dataclass
class MotoS3(Server):
    """Keeps all in memory; unlike rclone it refuses to write over an object where it is asked not to."""

    def words(self) -> list[str]:
        return [str(environment() / "moto_server"), "-H", "127.0.0.1", "-p", str(self.port)]

    def start(self) -> None:
        super().start()
        httpx2.put(f"{self.url}/models", trust_env=False).raise_for_status()
