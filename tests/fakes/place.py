"""A folder in which `optpipe build` runs whole, in processes of its own, over the fakes."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from optpipe.toolchains.trtllm import builds
from tests.models import tiny_llama

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = Path("/dev/shm")
Json = dict[str, Any]

TEXT = "the a sun moon river stone bird sings sleeps walks over under near bright old cold slowly and then"
WORDS = TEXT.split()
INT8 = {"method": "int8"}
W4 = {"method": "gptq", "bits": 4, "group_size": 32}
RECIPE: Json = {
    "version": 1,
    "name": "tiny",
    "model": {"source": "model"},
    "calibration": {"text": {"source": "text.jsonl", "part": "calibrate"}, "samples": 8, "sequence_length": 64},
    "checkpoints": {"int8": INT8, "w4": W4},
    "targets": {"vllm": {"engine": "vllm", "max_model_len": 512}},
    "texts": {"stories": {"source": "text.jsonl", "part": "score"}},
    "scoring": {"units": 32, "unit_tokens": 128, "max_units": 64, "parity_units": 2},
    "load": {"scenario": "steady", "concurrency": 2, "input_tokens": 32, "output_tokens": 8, "requests": 60},
    "slo": {"ttft_ms": {"p90": 2000}, "tpot_ms": {"p90": 500}},
    "tune": {"trials": 1},
    "publish": [{"registry": "folder", "promote": "champion"}],
    "keep": "all",
}


@dataclass(frozen=True)
class Done:
    """How a build ended."""

    code: int
    out: str
    err: str

    @property
    def said(self) -> Json:
        return dict(json.loads(self.out))

    @property
    def jobs(self) -> Json:
        return dict(self.said["jobs"])

    def status(self, candidate: str) -> str:
        return str(self.said["candidates"][candidate]["status"])

    def reasons(self, candidate: str) -> str:
        return "\n".join(self.said["candidates"][candidate]["reasons"])


class Place:
    """Recipe, model, text, OPTPIPE_HOME, temporary folder and orders below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.recipe = copy.deepcopy(RECIPE)
        self.fakes = root / "fakes"
        self.artifacts = root / "artifacts"
        self.engines = ["onnxruntime"]
        """Those with an environment of their own, which is called as they are."""
        self.pythons: dict[str, Path] = {}
        """Other toolchains of their own."""
        self.on_path: list[Path] = []

    @classmethod
    def new(cls, root: Path) -> Place:
        place = cls(root)
        for folder in (place.fakes, root / "tmp", root / "bin"):
            folder.mkdir(parents=True)
        tiny_llama(root / "model")
        write_text(root / "text.jsonl")
        place.python("python")
        place.python("onnxruntime", FAKE_ONNXRUNTIME_VERSION="0.18.0")
        return place

    def python(self, name: str, **variables: str) -> None:
        """What stands for a toolchain's python, with variables of its own."""
        program = self.root / "bin" / name
        own = "".join(f"export {key}={value}\n" for key, value in variables.items())
        main = ROOT / "tests" / "fakes" / "toolchain.py"
        program.write_text(f'#!/bin/sh\n{own}exec "{sys.executable}" "{main}" "$@"\n')
        program.chmod(0o755)

    def tensorrt_llm(self, release: str) -> None:
        """An environment of TensorRT-LLM in a folder of its own: a Python, its commands, the release's metadata."""
        folder = self.root / "bin" / "trtllm"
        shutil.rmtree(folder, ignore_errors=True)
        about = folder / f"tensorrt_llm-{release}.dist-info" / "METADATA"
        about.parent.mkdir(parents=True)
        about.write_text(f"Metadata-Version: 2.1\nName: tensorrt-llm\nVersion: {release}\n")
        self.python("trtllm/python", FAKE_TENSORRT_LLM_RELEASE=release, FAKE_TENSORRT_LLM_SITE=str(folder))
        build = ["trtllm-build"] if builds(release) else []
        for name in ("trtllm-serve", "trtllm-bench", *build):
            (folder / name).write_text(f"#!{folder / 'python'}\n")
            (folder / name).chmod(0o755)
        self.pythons["tensorrt_llm"] = folder / "python"

    def gpu(self, name: str = "NVIDIA H100 80GB HBM3", capability: str = "9.0", driver: str = "580.65") -> None:
        """A machine that says that it has such a GPU."""
        program = self.root / "gpu" / "nvidia-smi"
        program.parent.mkdir(exist_ok=True)
        whole = f"{name}, 81559, {driver}, {capability}"
        program.write_text(f'#!/bin/sh\ncase "$*" in *memory.free*) echo 81000;; *) echo "{whole}";; esac\n')
        program.chmod(0o755)

    def copied(self, root: Path) -> Place:
        """All of it elsewhere, with what is kept."""
        shutil.copytree(self.root, root, symlinks=True)
        place = Place(root)
        place.recipe = copy.deepcopy(self.recipe)
        place.pythons = {name: root / path.relative_to(self.root) for name, path in self.pythons.items()}
        return place

    # ------------------------------------------------------------ building

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`optpipe build recipe.yaml --json` in its own process."""
        return self.command("build", "recipe.yaml", "--json", *words)

    def command(self, *words: str) -> subprocess.Popen[str]:
        toolchain = {"kind": "interpreter", "python": str(self.root / "bin" / "python")}
        places = {name: self.root / "bin" / name for name in self.engines} | self.pythons
        own = {name: {**toolchain, "python": str(path)} for name, path in places.items()}
        shared = ("quantize", "vllm", "load", "tasks", "modelopt")
        chains = {"toolchains": dict.fromkeys(shared, toolchain) | own}
        (self.root / "recipe.yaml").write_text(json.dumps(self.recipe | chains))
        argv = [sys.executable, "-m", "optpipe", *words]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(argv, cwd=self.root, env=self.environment(), text=True, **pipes)  # type: ignore[call-overload,no-any-return]

    def environment(self) -> dict[str, str]:
        """The tests' own, with everything that a machine shares moved below the folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("OPTPIPE_")}
        own = {"OPTPIPE_HOME": "home", "TMPDIR": "tmp", "OPTPIPE_FAKES": "fakes"}
        path = [str(self.root / "gpu"), *map(str, self.on_path), os.environ["PATH"]]
        paths = {"PYTHONPATH": str(ROOT), "PATH": os.pathsep.join(path)}
        return kept | {name: str(self.root / folder) for name, folder in own.items()} | paths

    def build(self, *words: str) -> Done:
        return self.ended(self.start(*words))

    def run(self, *words: str) -> Done:
        """Any command."""
        return self.ended(self.command(*words))

    def ended(self, process: subprocess.Popen[str], within_s: float = 120.0) -> Done:
        out, err = process.communicate(timeout=within_s)
        assert "Traceback" not in err, err
        return Done(process.returncode, out, err)

    # ------------------------------------------------------------ orders and what was done

    def order(self, *orders: Json) -> None:
        """What the fakes shall do from now on, in place of all earlier orders."""
        part = self.fakes / "orders.part"
        part.write_text(json.dumps(orders))
        part.replace(self.fakes / "orders.json")

    def log(self) -> list[Json]:
        path = self.fakes / "log.jsonl"
        text = path.read_text() if path.exists() else ""
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]

    def when(self, at: str, who: str = "", after: int = 0, within_s: float = 90.0) -> Json:
        """The first act of this kind behind the log's first `after` lines, once it has begun."""
        acts = wait_for(lambda: [a for a in self.log()[after:] if a["at"] == at and who in a["who"]], within_s)
        return dict(acts[0])

    # ------------------------------------------------------------ what is kept, what is left

    def kept(self) -> dict[str, int]:
        """Each kept job's key with the time in ns that its record was written."""
        records = self.artifacts.glob("cache/jobs/*/record.json")
        return {path.parent.name: path.stat().st_mtime_ns for path in records}

    def files(self, folder: str) -> dict[str, tuple[int, int]]:
        """Inode and time of change of everything below a folder of the artifacts."""
        paths = sorted((self.artifacts / folder).rglob("*"))
        return {str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns) for path in paths}

    def processes(self) -> list[int]:
        """Living processes of builds here, but for this one."""
        found = []
        for process in psutil.process_iter():
            try:
                ours = process.environ().get("OPTPIPE_HOME") == str(self.root / "home")
                if ours and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process.pid)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def live(self) -> list[str]:
        """The records of what is supervised now."""
        texts = []
        for path in (self.root / "home" / "live").glob("*.json"):
            with contextlib.suppress(FileNotFoundError):
                texts.append(path.read_text())
        return texts

    def left(self, within_s: float = 15.0) -> list[str]:
        """What is still there of all builds once `within_s` are over: processes, ports, shared memory."""
        end = time.monotonic() + within_s
        while (left := self._left()) and time.monotonic() < end:
            time.sleep(0.05)
        return left

    def _left(self) -> list[str]:
        engines = {act["pid"] for act in self.log() if act["at"] == "engine"}
        names = [path.name for path in SHARED_MEMORY.iterdir() if path.name.startswith("optpipe-fake-")]
        shared = [name for name in names if int(name.split("-")[2]) in engines]
        live = [path.name for path in (self.root / "home" / "live").glob("*.json")]
        scratch = {act["tmp"] for act in self.log() if Path(act["tmp"]).exists()}
        return [*map(str, self.processes()), *shared, *live, *scratch]


def wait_for(look: Callable[[], Any], within_s: float = 90.0) -> Any:
    """What `look` returns once that is anything."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.01)
    raise AssertionError(f"nothing was seen within {within_s:g} s")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def digests(said: Json) -> dict[str, str]:
    return {name: candidate["model_digest"] for name, candidate in said["candidates"].items()}


def write_text(path: Path, documents: int = 160, seed: int = 0) -> None:
    """Stories of a small vocabulary, one a line."""
    source = random.Random(seed)
    stories = (" ".join(source.choices(WORDS, k=60)) + "." for _ in range(documents))
    path.write_text("".join(json.dumps({"text": story}) + "\n" for story in stories))
