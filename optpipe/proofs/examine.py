"""Everything that can be wrong with a version at once: its bytes, its signature, its provenance, its name."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from optpipe import bundle as bundles
from optpipe.errors import Problem, PublishFailed
from optpipe.proofs import provenance
from optpipe.proofs.signing import Proof, check
from optpipe.proofs.trust import Policy
from optpipe.records import Json

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


def examine(
    folder: Path, policy: Policy, *, expected: str | None = None, name: str | None = None, contents: bool = True
) -> Examined:
    """Check a bundle; `expected` and `name` are its digest and its model's name where somebody promised them.

    Without `contents` only names and sizes of the files are compared with the manifest, which the signature covers.
    """
    problems = list(bundles.verify(folder, expected, contents=contents))
    manifest, _ = bundles.read_manifest(folder)
    if manifest is None:
        return Examined(None, 0, None, tuple(problems))
    own = _name(folder)
    if name is not None and own not in (None, name):
        problems.append(Problem(provenance.ABOUT, f"is of the model {own!r}, not {name!r}"))
    proof = check(_signature(folder), bundles.signed(manifest), own or name or "", policy)
    unproven = proof.status in ("unknown", "unsigned") and policy.allow_unsigned
    if not (proof.signed or unproven):
        problems.append(Problem(bundles.SIGNATURE, proof.told, proof.hint))
    if (folder / provenance.FILE).exists() or not policy.allow_unsigned:
        problems += provenance.problems(folder, manifest)
    return Examined(manifest.digest, len(manifest.files), proof, tuple(problems))


def _signature(folder: Path) -> bytes | None:
    try:
        with bundles.open_plain(folder / bundles.SIGNATURE) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except OSError as error:  # a link or a folder in its place: no signature of anybody
        return f"{error}".encode()


def _name(folder: Path) -> str | None:
    """The model's name as the bundle says it."""
    try:
        found = json.loads((folder / provenance.ABOUT).read_bytes())["name"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
