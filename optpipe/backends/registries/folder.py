"""A registry in a folder, on this machine or on a shared file system.

<name>/versions/<hex>/...      a whole version, immutable; appears by one rename
<name>/incoming/<hex>/...      an upload under way; goes on where it broke
<name>/aliases/<alias>.json    the digest it means, the ones it meant before, and its last move
<name>/history.jsonl           who moved which alias from what to what, when, on what evidence
<name>/locks/                  held by the kernel for a living process, so never left over
"""

from __future__ import annotations

import contextlib
import getpass
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from optpipe import bundle as bundles
from optpipe.backends.registries.references import Reference, Version, checked_name, parse
from optpipe.errors import InputError, Problem, PublishFailed, did_you_mean
from optpipe.records import Bundle, Json
from optpipe.rundir import locked, read_json, remove_tree, sync_folder, sync_tree, write_json

READ_ONLY = 0o444


@dataclass(frozen=True)
class Folder:
    """Publish into a folder; without `path`, the registry beside the runs (artifacts/registry)."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012

    registry: Literal["folder"] = "folder"
    """Which kind."""
    path: str | None = None
    """The registry's folder; made if it is not there."""
    promote: str | None = None
    """An alias to move to the new version where it beats the one that the alias means now."""


class FolderRegistry:
    """Versions by digest and aliases below `root`; safe for several processes at once."""

    kind = "folder"

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    # ------------------------------------------------------------ versions

    def upload(self, bundle: Bundle) -> Version:
        """Make `bundle` a version, or find that it is one; what is there already is not sent again."""
        checked_name(bundle.name, "model")
        hexdigest = bundle.digest.removeprefix("sha256:")
        version = Version(bundle.name, bundle.digest, self._versions(bundle.name) / hexdigest)
        with locked(self._model(bundle.name) / "locks" / f"{hexdigest}.lock"):
            if version.path.is_dir():
                _demand_whole(version.path, bundle.digest, contents=False)
                return version
            incoming = self._model(bundle.name) / "incoming" / hexdigest
            fill(bundle.path, incoming, bundle.digest, READ_ONLY)
            version.path.parent.mkdir(parents=True, exist_ok=True)
            incoming.rename(version.path)
            sync_folder(version.path.parent)
        return version

    def resolve(self, reference: str) -> Version:
        """The version that `name`, `name@alias` or `name@sha256:...` means."""
        wanted = parse(reference)
        if wanted.name not in (names := self._names()):
            hint = did_you_mean(wanted.name, names) if names else f"nothing is published in {self.root}"
            raise InputError(f"no model {wanted.name!r} in {self.root}", place=reference, hint=hint)
        digest = self._by_prefix(wanted) if wanted.digest else self._by_alias(wanted)
        path = self._versions(wanted.name) / digest.removeprefix("sha256:")
        if not path.is_dir():
            raise PublishFailed(f"{digest} is not in {path.parent}: it was removed", place=reference)
        return Version(wanted.name, digest, path)

    def pull(self, reference: str, destination: Path) -> Version:
        """Copy a version to `destination`, verified; a broken pull goes on where it stopped."""
        version = self.resolve(reference)
        target = destination.absolute()
        if target.is_dir() and any(target.iterdir()):
            if bundles.verify(target, version.digest):
                raise InputError(f"{destination} holds something else", hint="name a new folder")
            return version
        part = target.parent / f".{target.name}.{version.digest.removeprefix('sha256:')[:16]}.part"
        fill(version.path, part, version.digest, 0o644)
        with contextlib.suppress(FileNotFoundError):
            target.rmdir()
        part.rename(target)
        sync_folder(target.parent)
        return version

    def listing(self) -> Json:
        """`{"models": {name: {"aliases": {alias: digest}, "versions": [digest, oldest first]}}}`."""
        return {"models": {name: self._describe(name) for name in self._names()}}

    # ------------------------------------------------------------ aliases

    def alias(self, name: str, alias: str) -> str | None:
        """The digest that `alias` means now."""
        state = self._alias_state(name, alias)
        return str(state["digest"]) if state else None

    def move(self, version: Version, alias: str, *, expected: str | None, evidence: str) -> None:
        """Point `alias` at `version` if it still means `expected` (None: nothing yet), else PublishFailed."""
        checked_name(alias, "alias")
        with self._aliases_locked(version.name):
            state = self._alias_state(version.name, alias)
            now = state["digest"] if state else None
            if now == version.digest:
                return
            if now != expected:
                raise PublishFailed(
                    f"{alias} means {now}, not {expected}: somebody else moved it meanwhile",
                    place=f"{version.name}@{alias}",
                    hint="compare with the version that it means now, then promote again",
                )
            earlier = [*state["earlier"], now] if state else []
            event = _event(alias, now, version.digest, evidence)
            self._write_alias(version.name, alias, earlier, event)

    def rollback(self, name: str, alias: str, *, evidence: str) -> Version:
        """Point `alias` back at what it meant before; again, further back."""
        current = self.resolve(f"{name}@{alias}")
        with self._aliases_locked(name):
            state = self._alias_state(name, alias) or {"earlier": []}
            if not state["earlier"]:
                raise InputError(f"{alias} has meant nothing but {current.digest}", place=f"{name}@{alias}")
            *earlier, target = state["earlier"]
            version = self.resolve(f"{name}@{target}")
            event = _event(alias, state["digest"], target, evidence)
            self._write_alias(name, alias, earlier, event)
        return version

    def history(self, name: str) -> list[Json]:
        """Every move of every alias of a model, oldest first."""
        path = self._model(name) / "history.jsonl"
        events = []
        for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
            with contextlib.suppress(json.JSONDecodeError):  # torn by a crash; _settle writes it again
                events.append(json.loads(line))
        return events

    # ------------------------------------------------------------ inside

    def _model(self, name: str) -> Path:
        return self.root / name

    def _versions(self, name: str) -> Path:
        return self.root / name / "versions"

    def _names(self) -> list[str]:
        return sorted(path.parent.name for path in self.root.glob("[!.]*/versions") if any(path.iterdir()))

    def _digests(self, name: str) -> list[str]:
        found = sorted(self._versions(name).iterdir(), key=lambda path: (path.stat().st_mtime_ns, path.name))
        return [f"sha256:{path.name}" for path in found]

    def _aliases(self, name: str) -> list[str]:
        return sorted(path.stem for path in (self._model(name) / "aliases").glob("[!.]*.json"))

    def _describe(self, name: str) -> Json:
        aliases = {alias: self.alias(name, alias) for alias in self._aliases(name)}
        return {"aliases": aliases, "versions": self._digests(name)}

    def _by_prefix(self, wanted: Reference) -> str:
        found = [digest for digest in self._digests(wanted.name) if digest.startswith(str(wanted.digest))]
        if len(found) == 1:
            return found[0]
        known = ", ".join(found or self._digests(wanted.name))
        raise InputError(f"{len(found)} versions begin so", place=str(wanted), hint=f"known: {known}")

    def _by_alias(self, wanted: Reference) -> str:
        alias = str(wanted.alias)
        digest = self.alias(wanted.name, alias)
        if digest is None:
            known = self._aliases(wanted.name)
            hint = did_you_mean(alias, known) if known else "it has no alias yet: name a digest"
            raise InputError(f"{wanted.name} has no alias {alias!r}", place=str(wanted), hint=hint)
        return digest

    def _alias_state(self, name: str, alias: str) -> Json | None:
        try:
            return dict(read_json(self._model(name) / "aliases" / f"{checked_name(alias, 'alias')}.json"))
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def _aliases_locked(self, name: str) -> Iterator[None]:
        with locked(self._model(checked_name(name, "model")) / "locks" / "aliases.lock"):
            self._settle(name)
            yield

    def _settle(self, name: str) -> None:
        """Write down a move whose process died between the alias and the history."""
        history = self.history(name)
        for alias in self._aliases(name):
            state = self._alias_state(name, alias)
            if state and state["move"] not in history:
                self._log(name, state["move"])

    def _write_alias(self, name: str, alias: str, earlier: list[str], event: Json) -> None:
        state = {"digest": event["to"], "earlier": earlier, "move": event}
        write_json(self._model(name) / "aliases" / f"{alias}.json", state)
        self._log(name, event)

    def _log(self, name: str, event: Json) -> None:
        path = self._model(name) / "history.jsonl"
        torn = path.exists() and not path.read_bytes().endswith(b"\n")
        with path.open("a", encoding="utf-8") as file:
            file.write("\n" * torn + json.dumps(event, ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def fill(source: Path, target: Path, digest: str, mode: int) -> None:
    """Copy the bundle at `source` to `target`: what is there whole stays, all is read back."""
    _demand_whole(source, digest, contents=False)
    manifest, _ = bundles.read_manifest(source)
    assert manifest is not None, f"{source}: found whole a moment ago"
    _clear_unlisted(target, {entry.path for entry in manifest.files})
    for entry in manifest.files:
        file = target / entry.path
        if not (file.is_file() and bundles.hash_file(file) == (entry.sha256, entry.size)):
            bundles.copy_file(source / entry.path, file, mode)
    for name in bundles.OUTSIDE:
        if (source / name).exists():
            bundles.copy_file(source / name, target / name, mode)
    _demand_whole(target, digest, contents=True)
    sync_tree(target)


def _clear_unlisted(target: Path, listed: set[str]) -> None:
    """Drop from an earlier try what is not a plain file of this version."""
    target.mkdir(parents=True, exist_ok=True)
    paths, strange = bundles.walk(target)
    for path in [*(path for path in paths if path not in listed), *(problem.place for problem in strange)]:
        remove_tree(target / path)


def _demand_whole(folder: Path, digest: str, *, contents: bool) -> None:
    if problems := bundles.verify(folder, digest, contents=contents):
        raise PublishFailed(told(problems), place=str(folder), hint="its manifest says otherwise")


def told(problems: tuple[Problem, ...], most: int = 8) -> str:
    """The first few problems on one line each, and how many more there are."""
    lines = [str(problem) for problem in problems[:most]]
    return "\n".join(lines + [f"and {len(problems) - most} more"] * (len(problems) > most))


def _event(alias: str, old: str | None, new: str, evidence: str) -> Json:
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    return {"alias": alias, "from": old, "to": new, "when": now, "who": _user(), "evidence": evidence}


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no name
        return f"uid {os.getuid()}"
