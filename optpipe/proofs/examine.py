"""Everything that can be wrong with a version at once: its bytes, its signature, its provenance, its name."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from optpipe import bundle as bundles
from optpipe.errors import Problem, PublishFailed
from optpipe.proofs import provenance
from optpipe.proofs.signing import Proof, check
from optpipe.proofs.trust import Policy
from optpipe.records import Json

MOST_BYTES = 1 << 24
"""Of a signature, a provenance, a recipe."""
HINT = "pull it again, or publish it again from its run"


@dataclass(frozen=True)
class Examined:
    """What was found; `accepted` is what the policy makes of it."""

    digest: str | None
    files: int
    proof: Proof | None
    problems: tuple[Problem, ...]
    """What is wrong, under the policy that was asked; empty if the version is accepted."""

    @property
    def accepted(self) -> bool:
        return not self.problems

    def document(self) -> Json:
        """For `--json`."""
        proof = self.proof
        signature = {"signed": bool(proof and proof.signed), "signer": proof.signer if proof else None}
        known = {"digest": self.digest, "files": self.files, **signature}
        return {"ok": self.accepted, **known, "problems": self.problems}

    def demand(self, place: str) -> Examined:
        """Itself if it is accepted, else PublishFailed with all that is wrong and `document` for scripts."""
        if self.accepted:
            return self
        lines = [str(problem) for problem in self.problems[:8]]
        lines += [f"and {len(self.problems) - 8} more"] * (len(self.problems) > 8)
        hints = [problem.hint for problem in self.problems if problem.hint]
        error = PublishFailed("\n".join(lines), place=place, hint=None if hints else HINT)
        error.document = self.document()
        raise error


def examine(folder: Path, policy: Policy, *, name: str | None = None, expected: str | None = None) -> Examined:
    """Check a bundle's folder; `expected` is its digest and `name` its model's where somebody promised them."""
    problems = bundles.verify(folder, expected)
    manifest, _ = bundles.read_manifest(folder)
    if manifest is None:
        return Examined(None, 0, None, problems)

    def read(path: str) -> bytes:
        with bundles.open_plain(folder / path) as file:
            return file.read()

    return judge(manifest, problems, folder_signature(folder), read, name, policy)


def judge(
    manifest: bundles.Manifest,
    problems: Iterable[Problem],
    signature: bytes | None,
    read: provenance.Read,
    name: str | None,
    policy: Policy,
) -> Examined:
    """What is found of a version from its manifest, its small files and its signature.

    `problems` are those of its bytes; without a `name`, the model is called what the bundle calls itself.
    """
    found = list(problems)
    read = _small(manifest, read)
    proof = check(signature, bundles.signed(manifest), name or _own_name(read), policy)
    unproven = proof.status in ("unknown", "unsigned") and policy.allow_unsigned
    if not (proof.signed or unproven):
        found.append(Problem(bundles.SIGNATURE, proof.told, proof.hint))
    listed = any(entry.path == provenance.FILE for entry in manifest.files)
    unread = {problem.place for problem in found} & {provenance.FILE, provenance.ABOUT, provenance.RECIPE}
    if (not unproven or listed) and not unread:
        found += provenance.problems(manifest, read)
    return Examined(manifest.digest, len(manifest.files), proof, tuple(found))


def folder_signature(folder: Path) -> bytes | None:
    """What lies where the signature belongs; a link or a folder there is the signature of nobody."""
    try:
        with bundles.open_plain(folder / bundles.SIGNATURE) as file:
            return file.read(MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        return f"{error}".encode()


def _own_name(read: provenance.Read) -> str:
    """The model's name as the bundle says it."""
    try:
        found = json.loads(read(provenance.ABOUT))["name"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) else ""


def _small(manifest: bundles.Manifest, read: provenance.Read) -> provenance.Read:
    """`read`, but of nothing that its maker blew up: who he is is not known yet."""
    sizes = {entry.path: entry.size for entry in manifest.files}

    def read_small(path: str) -> bytes:
        if sizes.get(path, 0) > MOST_BYTES:
            raise ValueError(f"{path} has {sizes[path]} bytes, more than {MOST_BYTES}")
        return read(path)

    return read_small
