"""A registry: the rules that are the same wherever the bytes lie.

A version is immutable and named by the digest of its manifest. It is brought over file by file, each read back and
hashed, and becomes visible when its manifest is written, last. Aliases move after that. What was brought over whole
by a try that broke is not sent again.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path

from optpipe import bundle as bundles
from optpipe.backends.registries.aliases import Aliases
from optpipe.backends.registries.references import Reference, Version, checked_name, parse, told
from optpipe.backends.registries.storage import Storage, on_disk
from optpipe.bundle import Entry, Manifest
from optpipe.errors import EnvironmentMissing, InputError, NotPublished, Problem, PublishFailed, did_you_mean
from optpipe.proofs import Examined, Notary, Policy, judge
from optpipe.records import Bundle, Json
from optpipe.rundir import digest_bytes, locked, optpipe_home, sync_folder, sync_tree, write_atomic

Progress = Callable[[str, float, float], None]
"""Told what is under way, how many bytes of how many."""


class Registry(Aliases):
    """Versions and aliases over a storage."""

    def __init__(self, storage: Storage, notary: Notary | None = None, progress: Progress | None = None) -> None:
        super().__init__(storage, notary)
        self._progress = progress
        self.kind = storage.kind
        self.where = storage.where

    # ------------------------------------------------------------ publishing

    def upload(self, bundle: Bundle) -> Version:
        """Make `bundle` a version, or find that it is one; what is there already is not sent again."""
        checked_name(bundle.name, "model")
        version = Version(bundle.name, bundle.digest)
        if self.notary:
            self.notary.sign_bundle(bundle.path, bundle.name, self.storage.signature(*_key(version)))
        with on_disk(PublishFailed), self.storage.uploading(*_key(version)):
            if (there := self.storage.manifest(*_key(version))) is not None:
                self._demand_sizes(version, there)
            else:
                self._bring(version, bundle.path)
            signature = bundle.path / bundles.SIGNATURE
            if signature.is_file() and self.storage.signature(*_key(version)) != signature.read_bytes():
                self.storage.put_signature(*_key(version), signature.read_bytes())
        return version

    def _bring(self, version: Version, source: Path) -> None:
        if problems := bundles.verify(source, version.digest, contents=False):
            raise PublishFailed(told(problems), place=str(source), hint="its manifest says otherwise")
        manifest, _ = bundles.read_manifest(source)
        assert manifest is not None, f"{source}: found whole a moment ago"
        with self._counted(f"publishing {version.name}", 2 * manifest.bytes):
            todo = [file for file in manifest.files if not self._whole(version, file)]
            for file in todo:
                self._put(version, file, source / file.path)
            self.storage.stage(*_key(version), manifest)
            for file in todo:
                self._demand_whole(version, file, source / file.path)
        self.storage.seal(*_key(version), manifest)
        if self.storage.manifest(*_key(version)) != manifest.encode():
            raise PublishFailed(f"{bundles.MANIFEST} reads back other than it was sent", place=self.where)

    def _whole(self, version: Version, file: Entry) -> bool:
        """The file is there, right to its last byte."""
        if self.storage.size(*_key(version), file) != file.size:
            return False
        pieces = self._ticked(self.storage.read(*_key(version), file))
        return bundles.hash_chunks(pieces) == (file.sha256, file.size)

    def _put(self, version: Version, file: Entry, source: Path) -> None:
        try:
            self.storage.put(*_key(version), file, source)
        except PublishFailed as error:
            _demand_source(source, file)  # a registry that checks digests refuses a file that changed
            raise PublishFailed(f"{file.path}: {error.message}", place=error.place, hint=error.hint) from None

    def _demand_whole(self, version: Version, file: Entry, source: Path) -> None:
        if self._whole(version, file):
            return
        _demand_source(source, file)
        raise PublishFailed(
            f"{file.path} reads back other than it was sent",
            place=f"{self.where}: {version.name}",
            hint="nothing can be seen of it there; publish again to send this file anew",
        )

    def _demand_sizes(self, version: Version, data: bytes) -> None:
        """A version that is there is taken for published only if all its files are."""
        manifest = self._manifest(version, data)
        wrong = []
        for file in manifest.files:
            if (size := self.storage.size(*_key(version), file)) != file.size:
                wrong.append(Problem(file.path, "missing" if size is None else f"{size} bytes, not {file.size}"))
        if wrong:
            hint = "the published version is damaged: restore it, or remove it there and publish again"
            raise PublishFailed(told(tuple(wrong)), place=f"{self.where}: {version}", hint=hint)

    # ------------------------------------------------------------ finding

    def resolve(self, reference: str) -> Version:
        """The version that `name`, `name@alias` or `name@sha256:...` means."""
        wanted = parse(reference)
        digest = self._by_prefix(wanted) if wanted.digest else self._by_alias(wanted)
        version = Version(wanted.name, digest)
        if self.storage.manifest(*_key(version)) is None:
            raise PublishFailed(f"{digest} is not in {self.where}: it was removed", place=reference)
        return version

    def _by_prefix(self, wanted: Reference) -> str:
        known = self.known(wanted.name, str(wanted))
        found = [digest for digest in known if digest.startswith(str(wanted.digest))]
        if len(found) == 1:
            return found[0]
        shown = ", ".join(found or known)
        raise InputError(f"{len(found)} versions begin so", place=str(wanted), hint=f"known: {shown}")

    def _by_alias(self, wanted: Reference) -> str:
        alias = str(wanted.alias)
        if (digest := self.trusted_alias(wanted.name, alias)) is not None:
            return digest
        self.known(wanted.name, str(wanted))
        known = self.aliases(wanted.name)
        hint = did_you_mean(alias, known) if known else "it has no alias yet: name a digest"
        raise NotPublished(f"{wanted.name} has no alias {alias!r}", place=str(wanted), hint=hint)

    def known(self, name: str, place: str) -> list[str]:
        """The versions of a model; NotPublished names the models that there are where it is none of them."""
        if versions := self.storage.versions(name):
            return versions
        try:
            names = self.storage.names()
        except PublishFailed:  # many a registry does not tell strangers what it has
            raise NotPublished(f"no model {name!r} in {self.where}", place=place) from None
        hint = did_you_mean(name, names) if names else f"nothing is published in {self.where}"
        raise NotPublished(f"no model {name!r} in {self.where}", place=place, hint=hint)

    def listing(self) -> Json:
        """`{"models": {name: {"aliases": {alias: digest}, "versions": [digest, oldest first]}}}`."""
        return {"models": {name: self._describe(name) for name in self.storage.names()}}

    def _describe(self, name: str) -> Json:
        """Versions by the time of their first move: not every registry knows when one came."""
        moved = [kept.move.digest for kept in self.history(name)]
        versions = self.storage.versions(name)
        versions.sort(key=lambda digest: moved.index(digest) if digest in moved else len(moved))
        return {"aliases": self.aliases_now(name), "versions": versions}

    def location(self, version: Version) -> str:
        """Where a version lies, for people and records."""
        return str(self.storage.folder(*_key(version)) or f"{self.where}: {version}")

    # ------------------------------------------------------------ fetching

    def manifest(self, version: Version) -> Manifest:
        data = self.storage.manifest(*_key(version))
        if data is None:
            raise PublishFailed(f"is not in {self.where}", place=str(version), hint="`optpipe list` shows what is")
        return self._manifest(version, data)

    def _manifest(self, version: Version, data: bytes) -> Manifest:
        manifest, problems = bundles.parse_manifest(data)
        if digest_bytes(data) != version.digest:
            problems = [Problem(bundles.MANIFEST, f"digest {digest_bytes(data)} is not {version.digest}")]
        if manifest is None or problems:
            raise PublishFailed(told(tuple(problems)), place=f"{self.where}: {version}", hint="publish it again")
        return manifest

    def verify(self, version: Version) -> tuple[Problem, ...]:
        """Everything by which the registry's copy differs from its manifest; every byte is read."""
        if folder := self.storage.folder(*_key(version)):
            return bundles.verify(folder, version.digest)
        manifest = self.manifest(version)
        with self._counted(f"verifying {version.name}", manifest.bytes):
            return tuple(
                Problem(file.path, "changed, or not whole") for file in manifest.files if not self._whole(version, file)
            )

    def examine(self, version: Version, *, contents: bool = True) -> Examined:
        """What is wrong with a version under the notary's policy; without `contents`, all but its bytes."""
        problems = self.verify(version) if contents else ()
        policy = self.notary.policy if self.notary else Policy(allow_unsigned=True)
        manifest, signature = self.manifest(version), self.storage.signature(*_key(version))
        read = functools.partial(self.document, version, manifest=manifest)
        return judge(manifest, problems, signature, read, version.name, policy)

    def pull(self, reference: str, destination: Path) -> Version:
        """Copy a version to `destination`, verified; a broken pull goes on where it stopped."""
        version = self.resolve(reference)
        if self.notary:  # before anything large comes over
            proof = self.examine(version, contents=False).demand(str(version)).proof
            if proof and not proof.signed:
                self.notary.say(f"warning: {version}: {proof.told}")
        target = destination.absolute()
        if target.is_dir() and any(target.iterdir()):
            if bundles.verify(target, version.digest):
                raise InputError(f"{destination} holds something else", hint="name a new folder")
            return version
        part = target.parent / f".{target.name}.{version.digest.removeprefix('sha256:')[:16]}.part"
        with on_disk(EnvironmentMissing):
            self._fill(version, part)
            with contextlib.suppress(FileNotFoundError):
                target.rmdir()
            part.rename(target)
            sync_folder(target.parent)
        return version

    def local(self, version: Version) -> Path:
        """A version's folder on this machine: the registry's own, or a copy that is kept below OPTPIPE_HOME."""
        if folder := self.storage.folder(*_key(version)):
            return folder
        folder = optpipe_home() / "pulled" / version.digest.removeprefix("sha256:")
        with locked(folder.parent / f"{folder.name}.lock"):
            self.pull(str(version), folder)
        return folder

    def document(self, version: Version, path: str, manifest: Manifest | None = None) -> bytes:
        """One small file of a version, as its manifest says it; the rest stays where it is."""
        files = (manifest or self.manifest(version)).files
        file = next((entry for entry in files if entry.path == path), None)
        if file is None:
            raise PublishFailed(f"there is no {path} in it", place=str(version), hint="publish it again from its run")
        data = b"".join(self.storage.read(*_key(version), file))
        if (hashlib.sha256(data).hexdigest(), len(data)) != (file.sha256, file.size):
            raise PublishFailed(f"{path} is not what the manifest says", place=str(version), hint="publish it again")
        return data

    def _fill(self, version: Version, part: Path) -> None:
        """Every file into `part`, hashed as it lies there; those that are right already stay."""
        manifest = self.manifest(version)
        part.mkdir(parents=True, exist_ok=True)
        bundles.clear_unlisted(part, {file.path for file in manifest.files})
        with self._counted(f"pulling {version.name}", manifest.bytes):
            for file in manifest.files:
                if not _right(part / file.path, file):
                    self.storage.fetch(*_key(version), file, part / file.path)
                    self._demand_right(version, part / file.path, file)
        if (signature := self.storage.signature(*_key(version))) is not None:
            write_atomic(part / bundles.SIGNATURE, signature)
        write_atomic(part / bundles.MANIFEST, manifest.encode())
        sync_tree(part)

    def _demand_right(self, version: Version, path: Path, file: Entry) -> None:
        if not _right(path, file):
            raise PublishFailed(
                f"{file.path} came other than the manifest says",
                place=f"{self.where}: {version}",
                hint="pull again; if it stays so, the registry's copy is damaged: `optpipe verify` reads all of it",
            )

    # ------------------------------------------------------------ progress

    @contextlib.contextmanager
    def _counted(self, what: str, total: int) -> Iterator[None]:
        done = 0

        def tick(count: int) -> None:
            nonlocal done
            done += count
            if self._progress:
                self._progress(what, min(done, total), total)

        self.storage.tick = tick
        try:
            yield
        finally:
            del self.storage.tick

    def _ticked(self, pieces: Iterator[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self.storage.tick(len(piece))
            yield piece


def _demand_source(source: Path, file: Entry) -> None:
    if not _right(source, file):
        raise PublishFailed("differs from its manifest", place=str(source), hint="package it again")


def _right(path: Path, file: Entry) -> bool:
    return path.is_file() and bundles.hash_file(path) == (file.sha256, file.size)


def _key(version: Version) -> tuple[str, str]:
    return version.name, version.digest
