"""What a registry asks about signatures: sign what I publish, is this to be trusted, how far was that alias.

A move of an alias is signed as one digest, that of its record. The highest number of a trusted record is kept per
registry, model and alias in OPTPIPE_HOME/aliases-seen.json: who has seen the fifth move takes no registry's word
that the third is the last. A rollback is a move of its own with a higher number.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from optpipe import bundle as bundles
from optpipe.errors import PublishFailed
from optpipe.proofs.examine import folder_signature
from optpipe.proofs.keys import Signer, choose_signer
from optpipe.proofs.signing import check, sign
from optpipe.proofs.trust import Policy, Trusted, load_policy
from optpipe.records import Json
from optpipe.rundir import locked, optpipe_home, read_json, write_atomic, write_json

RECORD = "alias.json"
"""The name under which a move is signed; no bundle consists of a file of this name alone."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Claim:
    """What a registry says that an alias means, and the record that should prove it."""

    where: str
    name: str
    alias: str
    sequence: int = 0
    record: bytes | None = None
    """The signed bytes of the last move; None where the alias was moved by something else than optpipe."""
    signature: str | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.alias}"


class Notary:
    """Signs with this machine's signer, made at the first need, and checks against a policy."""

    def __init__(self, say: Say, policy: Policy | None = None) -> None:
        self.say = say
        self._policy = policy
        self._signer: Signer | None = None
        self._chosen = False
        self._made: set[bytes] = set()
        """Signatures over bundles that were made here."""

    @property
    def policy(self) -> Policy:
        """Read anew where it is the file's: a key that was made meanwhile is trusted."""
        return self._policy or load_policy()

    @property
    def signer(self) -> Signer | None:
        if not self._chosen:
            self._signer, self._chosen = choose_signer(self.say), True
        return self._signer

    def ready(self) -> None:
        """Raises where what this machine shall sign with cannot sign: before hours of work, not after them."""
        _ = self.signer

    # ------------------------------------------------------------ publishing

    def sign_bundle(self, folder: Path, name: str, published: bytes | None = None) -> None:
        """Leave a signature in a bundle that has none: the `published` one of this version where it holds, else ours.

        One that is not trusted here is not signed over.
        """
        manifest, _ = bundles.read_manifest(folder)
        signer = self.signer
        if manifest is None or signer is None:
            return
        files, policy = bundles.signed(manifest), self._own_policy(signer)
        there = folder_signature(folder)
        if there is None:
            held = published is not None and check(published, files, name, policy).signed
            there = published if published and held else sign(files, name, signer, [bundles.SIGNATURE])
            write_atomic(folder / bundles.SIGNATURE, there)
            self._made.add(there)
        if there in self._made:
            return
        proof = check(there, files, name, policy)
        if not proof.signed:
            hint = f"add its signer to the policy, or remove {bundles.SIGNATURE} to sign it yourself"
            raise PublishFailed(proof.told, place=str(folder / bundles.SIGNATURE), hint=hint)

    def _own_policy(self, signer: Signer) -> Policy:
        """The policy, and what this machine signs with."""
        own = (Trusted(signer.public),) if signer.public else ()
        return replace(self.policy, trusted=(*self.policy.trusted, *own))

    def sign_move(self, record: bytes) -> str | None:
        """The signature over the record of a move."""
        signer = self.signer
        return sign(_digest_of(record), "alias", signer).decode() if signer else None

    def first(self, claim: Claim) -> int:
        """The number of an alias's first move: one more than was seen, where a registry was made anew."""
        return _seen().get(_place(claim), 0) + 1

    def moved(self, claim: Claim) -> None:
        """Remember a move of our own."""
        if claim.signature:
            _remember(claim)

    # ------------------------------------------------------------ believing

    def check_move(self, claim: Claim) -> None:
        """PublishFailed unless the last move is signed by somebody trusted, and none later was seen."""
        seen = _seen().get(_place(claim), 0)
        if claim.record is not None and claim.sequence < seen:
            told = f"its last move there is number {claim.sequence}, and from here number {seen} was seen: "
            hint = f"a signed rollback has a higher number; for a registry made anew, remove its lines in {_file()}"
            raise PublishFailed(told + "an old record, played again", place=f"{claim.where}: {claim}", hint=hint)
        files = _digest_of(claim.record or b"")
        proof = check(claim.signature.encode() if claim.signature else None, files, claim.name, self.policy)
        if proof.signed:
            return _remember(claim)
        told = proof.told
        if claim.record is None:
            told = "moved by something else than optpipe, so nobody signed it"
        if proof.status == "broken" or not self.policy.allow_unsigned:
            hint = f"{proof.hint}; or name a version by its digest: promoting it signs the alias anew"
            raise PublishFailed(f"the alias is not to be trusted: {told}", place=f"{claim.where}: {claim}", hint=hint)
        self.say(f"warning: {claim}: {told}")


def _digest_of(record: bytes) -> dict[str, str]:
    return {RECORD: hashlib.sha256(record).hexdigest()}


# ---------------------------------------------------------------- what was seen


def _file() -> Path:
    return optpipe_home() / "aliases-seen.json"


def _place(claim: Claim) -> str:
    return f"{claim.where} {claim}"


def _seen() -> dict[str, int]:
    try:
        found: Json = read_json(_file())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise PublishFailed(f"cannot be read: {error}", place=str(_file()), hint="mend or remove it") from None
    return {place: int(number) for place, number in found.items()}


def _remember(claim: Claim) -> None:
    place = _place(claim)
    if _seen().get(place, 0) >= claim.sequence:
        return
    with locked(_file().with_suffix(".lock")):
        seen = _seen()
        write_json(_file(), seen | {place: max(seen.get(place, 0), claim.sequence)})
