"""Signing named digests, and checking such a signature against a policy, with the model-signing library.

What is signed is an in-toto statement that lists every file with its SHA-256. The files are hashed once, for
the bundle's manifest: the library gets the digests (its `hashing.Config`) and does the rest.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optpipe.errors import EnvironmentMissing, InputError, PublishFailed
from optpipe.proofs.keys import NEEDED, SIGSTORE, Signer, fingerprint, password, sigstore_config
from optpipe.proofs.trust import Policy, Trusted

if TYPE_CHECKING:
    from model_signing import hashing, verifying

SHOWN = 16
"""Digits of a key's fingerprint that are shown."""

Status = Literal["trusted", "unknown", "unsigned", "broken"]


@dataclass(frozen=True)
class Proof:
    """What a signature is worth here: `broken` is never accepted, `unknown` and `unsigned` only on request."""

    status: Status
    told: str
    signer: str | None = None
    hint: str | None = None

    @property
    def signed(self) -> bool:
        return self.status == "trusted"


# ---------------------------------------------------------------- sign


def sign(files: Mapping[str, str], name: str, signer: Signer, ignored: Iterable[str] = ()) -> bytes:
    """The signature over `files` (path to SHA-256 in hexadecimal), as the content of a .sig file.

    `ignored` are paths that whoever checks the folder shall leave out, such as the signature itself.
    Raises InputError for a key that cannot sign, EnvironmentMissing where no identity is there.
    """
    from model_signing import signing

    config = signing.Config().set_hashing_config(_digests(files, name, ignored))
    with tempfile.TemporaryDirectory(prefix="optpipe-sign-") as scratch:
        target = Path(scratch) / "signature"
        if signer.key is None:
            _sign_keyless(config, name, target)
        else:
            _sign_with_key(config, signer.key, name, target)
        return target.read_bytes()


def _sign_with_key(config: Any, key: Path, name: str, target: Path) -> None:
    try:
        config.use_elliptic_key_signer(private_key=key, password=password()).sign(name, target)
    except (ValueError, TypeError, AttributeError) as error:  # other formats, curves and kinds of key, passwords
        raise InputError(f"cannot sign with it: {error}", place=str(key), hint=NEEDED) from None


def _sign_keyless(config: Any, name: str, target: Path) -> None:
    """With the identity of this CI job; never by a browser, which a build has not got."""
    from sigstore import oidc

    place = "OPTPIPE_SIGNING=keyless"
    hint = "in a CI job, let it ask for an identity token (GitHub: `permissions: id-token: write`)"
    failed: tuple[type[Exception], ...] = (OSError, *_sigstore_errors())
    try:
        token = oidc.detect_credential()
        if token is None:
            raise EnvironmentMissing("no identity is there to sign with", place=place, hint=hint)
        config.use_sigstore_signer(identity_token=token, trust_config=sigstore_config()).sign(name, target)
    except failed as error:
        reason = _reason(error) if str(error) else _reason(error.__cause__ or error)
        raise PublishFailed(f"Sigstore did not sign: {reason}", place=place, hint=hint) from error


def _sigstore_errors() -> tuple[type[Exception], ...]:
    """What sigstore raises; half of it has no common base."""
    from sigstore import errors, oidc
    from sigstore._internal.fulcio.client import ExpiredCertificate, FulcioClientError
    from sigstore._internal.rekor import RekorClientError
    from sigstore._internal.timestamp import TimestampError

    of_oidc = (oidc.IdentityError, oidc.IssuerError, oidc.ExpiredIdentity)
    return (errors.Error, *of_oidc, ExpiredCertificate, FulcioClientError, RekorClientError, TimestampError)


def _digests(files: Mapping[str, str], name: str, ignored: Iterable[str] = ()) -> hashing.Config:
    """model-signing's way to hash a folder, for one that is hashed already."""
    from model_signing import hashing, manifest
    from model_signing._hashing.hashing import Digest

    kind = manifest.SerializationType.from_args(
        {"method": "files", "hash_type": "sha256", "allow_symlinks": False, "ignore_paths": list(ignored)}
    )
    items = [kind.new_item(path, Digest("sha256", bytes.fromhex(digits))) for path, digits in files.items()]

    class Known(hashing.Config):
        def hash(self, model_path: object, *, files_to_hash: object = None) -> manifest.Manifest:
            return manifest.Manifest(name, items, kind)

    return Known()  # type: ignore[no-untyped-call]  # the library's constructor has no annotation


# ---------------------------------------------------------------- check


def check(signature: bytes | None, files: Mapping[str, str], model: str, policy: Policy) -> Proof:
    """What `signature` over `files` is worth for the model of this name under `policy`."""
    if signature is None:
        return Proof("unsigned", "not signed: by whom it was made is not proven", hint=_hint(policy))
    kind, hint = _read(signature)
    if kind == "broken":
        return Proof("broken", f"not a signature: {hint}")
    if kind == "key":
        return _check_key(signature, files, hint, policy.of(model), policy)
    return _check_identity(signature, files, [one for one in policy.of(model) if one.identity], policy)


def _read(signature: bytes) -> tuple[Literal["key", "identity", "broken"], str]:
    """How a signature was made and, with a key, that key's fingerprint; nothing in it is believed yet."""
    try:
        document = json.loads(signature)
        material, envelope = document["verificationMaterial"], document["dsseEnvelope"]
        one = len(envelope["signatures"]) == 1
        key = material.get("publicKey")
        hint = key["hint"] if key else ""
        if not one or not isinstance(hint, str) or (key and not hint):
            raise ValueError("one signature with the fingerprint of its key is expected")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        return "broken", f"{type(error).__name__}: {error}"
    return ("key", hint) if key else ("identity", "")


def _check_key(
    signature: bytes, files: Mapping[str, str], hint: str, trusted: tuple[Trusted, ...], policy: Policy
) -> Proof:
    from model_signing import verifying

    match = next((one.key for one in trusted if one.key and fingerprint(one.key) == hint), None)
    if match is None:
        told = f"signed by key {hint[:SHOWN]}, which is not trusted for this model"
        return Proof("unknown", told, hint=_hint(policy))
    told = f"key {hint[:SHOWN]}"
    if reason := _verified(verifying.Config().use_elliptic_key_verifier(public_key=match), signature, files):
        return Proof("broken", f"{told} did not sign this: {reason}")
    return Proof("trusted", f"signed by {told} ({match})", told)


def _check_identity(signature: bytes, files: Mapping[str, str], trusted: list[Trusted], policy: Policy) -> Proof:
    """Against each trusted identity; Sigstore's roots come from its network, unless a file holds them."""
    from model_signing import verifying

    reasons = []
    failed: tuple[type[Exception], ...] = (OSError, ValueError, *_sigstore_errors())
    for one in trusted:
        config = verifying.Config()
        try:
            identity, issuer = str(one.identity), str(one.issuer)
            config.use_sigstore_verifier(identity=identity, oidc_issuer=issuer, trust_config=sigstore_config())
        except failed as error:
            raise EnvironmentMissing(
                f"Sigstore's roots of trust cannot be had: {error}",
                place=str(one),
                hint=f"check the network, or name a file with them in {SIGSTORE}",
            ) from error
        reason = _verified(config, signature, files)
        if not reason:
            return Proof("trusted", f"signed by {one}", str(one))
        reasons.append(f"{one}: {reason}")
    if reasons:
        return Proof("broken", f"not signed by {'; '.join(reasons)}")
    return Proof("unknown", "signed by an identity, and none is trusted for this model", hint=_hint(policy))


def _verified(config: verifying.Config, signature: bytes, files: Mapping[str, str]) -> str | None:
    """Why the library refuses a signature over `files`; None if it holds."""
    from cryptography.exceptions import InvalidSignature

    refused: tuple[type[Exception], ...] = (ValueError, TypeError, KeyError, AttributeError, IndexError)
    refused += (InvalidSignature, *_sigstore_errors())
    config.set_hashing_config(_digests(files, ""))
    with tempfile.TemporaryDirectory(prefix="optpipe-check-") as scratch:
        path = Path(scratch) / "signature"
        path.write_bytes(signature)
        try:
            config.verify(scratch, path)
        except refused as error:
            return _reason(error)
    return None


def _reason(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "the signature is of something else"
    return text[:300]


def _hint(policy: Policy) -> str:
    where = f"add the signer to {policy.place}" if not policy.place.startswith("--") else "name the right signer"
    return f"{where}, or accept it as unsigned with --allow-unsigned (verify, pull, serve)"
