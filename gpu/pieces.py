"""Carries environments to a machine without network: wheels cut into pieces here, joined and installed there.

    python -m gpu.pieces make --out DIR                download what locks/*.txt name and cut it
    python -m gpu.pieces join --pieces DIR --into DIR  there, as often as pieces arrive; installs once all are whole

A piece is a slice of all files one after another; `manifest.json` holds the SHA-256 of each piece and each file.
`join` needs the standard library and pip alone. It ends with 0 when all is installed, 3 while pieces are missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gpu import wheels

MANIFEST = "manifest.json"
LIMIT = 60_000_000
"""Bytes of a piece."""
BLOCK = 1 << 20
PATH = re.compile(r"[a-z]+/[A-Za-z0-9][A-Za-z0-9._+-]*")
PIECE = re.compile(r"piece-\d{3}")
EXIT_MISSING = 3


class Wrong(Exception):
    """A piece, file or manifest that is not what it should be; the message says which and why."""


@dataclass(frozen=True)
class Part:
    """A file (`environment/wheel` or `files/name`) or a piece, with its size and SHA-256."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What was cut: `files` one after another are `pieces` one after another."""

    files: tuple[Part, ...]
    pieces: tuple[Part, ...]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Wrong where a name could lead out of its folder, or the sizes do not add up."""
        if not path.is_file():
            raise Wrong(f"{path} is missing: carry it with every piece")
        value = json.loads(path.read_text(encoding="utf-8"))
        found = cls(tuple(Part(**one) for one in value["files"]), tuple(Part(**one) for one in value["pieces"]))
        for part, allowed in [*((f, PATH) for f in found.files), *((p, PIECE) for p in found.pieces)]:
            if not allowed.fullmatch(part.name):
                raise Wrong(f"{path} names {part.name!r}, which is not {allowed.pattern}")
        if sum(part.bytes for part in found.files) != sum(part.bytes for part in found.pieces):
            raise Wrong(f"{path}: its files and its pieces have not as many bytes")
        return found

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")


def say(text: str) -> None:
    sys.stderr.write(text + "\n")


def blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(BLOCK):
            yield block


def part_of(path: Path, name: str) -> Part:
    digest = hashlib.sha256()
    for block in blocks(path):
        digest.update(block)
    return Part(name, path.stat().st_size, digest.hexdigest())


# ---------------------------------------------------------------- cut and join


def cut(folder: Path, out: Path, limit: int = LIMIT) -> Manifest:
    """Cut all files of `folder`/*/ into `out`/piece-001 and so on, each `limit` bytes but the last."""
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("piece-*"):
        old.unlink()
    paths = sorted(path for path in folder.glob("*/*") if path.is_file())
    data = bytearray()
    pieces: list[Part] = []

    def flush(least: int) -> None:
        while len(data) >= least and data:
            piece = out / f"piece-{len(pieces) + 1:03d}"
            piece.write_bytes(data[:limit])
            pieces.append(part_of(piece, piece.name))
            del data[:limit]

    for path in paths:
        for block in blocks(path):
            data += block
            flush(limit)
    flush(1)
    made = Manifest(tuple(part_of(path, str(path.relative_to(folder))) for path in paths), tuple(pieces))
    made.write(out / MANIFEST)
    return made


def collect(manifest: Manifest, arrived: Path, kept: Path) -> list[str]:
    """Keep in `kept` the pieces that arrived whole; the names of those still missing.

    Wrong for a piece that is damaged: carry it again.
    """
    kept.mkdir(parents=True, exist_ok=True)
    for part in manifest.pieces:
        source, target = arrived / part.name, kept / part.name
        if target.is_file() or not source.is_file():
            continue
        found = part_of(source, part.name)
        if found != part:
            what = f"{found.bytes} bytes, SHA-256 {found.sha256[:12]}"
            raise Wrong(f"{source} is damaged ({what}; {part.bytes}, {part.sha256[:12]} expected): carry it again")
        copy = target.with_suffix(".part")
        shutil.copyfile(source, copy)
        copy.replace(target)
    return [part.name for part in manifest.pieces if not (kept / part.name).is_file()]


def join(manifest: Manifest, kept: Path, out: Path) -> None:
    """Write every file from the pieces in `kept` and check its SHA-256; Wrong where one differs."""
    data = (block for part in manifest.pieces for block in blocks(kept / part.name))
    rest = b""
    for part in manifest.files:
        path = out / part.name
        path.parent.mkdir(parents=True, exist_ok=True)
        missing = part.bytes
        with path.open("wb") as file:
            while missing:
                rest = rest or next(data, b"")
                if not rest:
                    raise Wrong(f"the pieces end before {part.name} is whole")
                file.write(rest[:missing])
                rest, missing = rest[missing:], missing - min(missing, len(rest))
        if part_of(path, part.name) != part:
            raise Wrong(f"{part.name} is not the file that was cut: cut and carry again")


# ---------------------------------------------------------------- install


def install(carried: Sequence[Path], place: Path) -> None:
    """A virtual environment of what was carried, with this Python's own packages behind it; pip resolves nothing."""
    python = place / "bin" / "python"
    wheels.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(place)])
    inside = next(place.glob("lib/python*/site-packages"))
    (inside / "machine.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check"]
    quick = ["--no-deps", "--no-index", "--no-compile", "--no-cache-dir", "--quiet", "--ignore-installed"]
    wheels.run([*pip, "install", *quick, *map(str, carried)])
    # some packages hold files of other Pythons: what does not compile is left to whoever imports it
    subprocess.run([str(python), "-m", "compileall", "-qq", "-j", "0", str(inside)], check=False)


UNMET = """
import re, sys
from importlib import metadata
try:
    from packaging.requirements import Requirement
except ImportError:
    sys.exit(0)
def known(name):
    return re.sub("[-_.]+", "-", name or "").lower()
have = {}
for found in metadata.distributions():
    have.setdefault(known(found.metadata["Name"]), found)
for found in have.values():
    for line in (found.requires or []) if str(found.locate_file("")).startswith(sys.prefix) else []:
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            other = have.get(known(wanted.name))
            if other is None or not wanted.specifier.contains(other.version, prereleases=True):
                sys.stdout.write(f"{found.name} wants {wanted}, here is {other.version if other else 'none'}\\n")
"""


def unmet(python: Path) -> list[str]:
    """What the carried packages of an environment ask for and do not find there; it may still work without."""
    done = subprocess.run([str(python), "-c", UNMET], capture_output=True, text=True, check=False)
    return done.stdout.splitlines() if done.returncode == 0 else [done.stderr.strip()[-300:]]


# ---------------------------------------------------------------- the commands


def told(manifest: Manifest) -> str:
    """Sizes by environment, in MB."""
    groups: dict[str, int] = {}
    for part in manifest.files:
        group = part.name.partition("/")[0]
        groups[group] = groups.get(group, 0) + part.bytes
    sizes = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in sorted(groups.items()))
    return f"{len(manifest.pieces)} pieces, {sum(groups.values()) / 1e6:.0f} MB: {sizes}"


def joined(arrived: Path, into: Path) -> int:
    """Collect; once all pieces are there: join, install each environment, say what it lacks."""
    manifest = Manifest.read(arrived / MANIFEST)
    if missing := collect(manifest, arrived, into / "pieces"):
        say(f"{len(manifest.pieces) - len(missing)} of {len(manifest.pieces)} pieces are here; missing: {missing}")
        return EXIT_MISSING
    done = into / "joined.json"
    if done.is_file() and done.read_bytes() == (arrived / MANIFEST).read_bytes():
        say("all pieces are joined and installed")
        return 0
    join(manifest, into / "pieces", into)
    for name in sorted({part.name.partition("/")[0] for part in manifest.files} - {"files"}):
        install(sorted((into / name).glob("*.whl")), into / "envs" / name)
        lacks = unmet(into / "envs" / name / "bin" / "python")
        say("\n  ".join([f"{name}: installed; asks in vain for {len(lacks)} packages", *lacks]))
    shutil.copyfile(arrived / MANIFEST, done)
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m gpu.pieces", description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("make", "join"))
    parser.add_argument("--out", type=Path, help="make: where pieces are written")
    parser.add_argument("--pieces", type=Path, help="join: where pieces arrive")
    parser.add_argument("--into", type=Path, help="join: where files and environments are made")
    args = parser.parse_args(arguments)
    needs = {"make": ("out",), "join": ("pieces", "into")}[args.command]
    if absent := [f"--{name}" for name in needs if getattr(args, name) is None]:
        parser.error(f"{args.command} needs {' and '.join(absent)}")
    try:
        if args.command == "join":
            return joined(args.pieces.resolve(), args.into.resolve())
        out = args.out.resolve()
        wheels.download_all(out / "files", out / "packages", say)
        say(told(cut(out / "files", out)))
    except (Wrong, wheels.Ended) as wrong:
        say(f"gpu.pieces: {wrong}")
        return 1
    return 0


if __name__ == "__main__":
    os.environ.pop("PYTHONPATH", None)  # what is installed must not depend on the caller's own packages
    sys.exit(main())
