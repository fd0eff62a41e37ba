"""With what this machine signs: a key file, made at the first need, or the identity of a CI job.

OPTPIPE_SIGNING       key (default), keyless, none
OPTPIPE_SIGNING_KEY   a PEM file with an EC key (P-256, P-384 or P-521); else OPTPIPE_HOME/keys/signing.pem
OPTPIPE_SIGNING_KEY_PASSWORD   of that file, where it has one
OPTPIPE_SIGSTORE      a Sigstore of one's own, or its roots without network: a ClientTrustConfig as JSON
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from optpipe.errors import EnvironmentMissing, InputError, did_you_mean
from optpipe.proofs.trust import FILE, trust_file, trust_key
from optpipe.rundir import locked, optpipe_home, sync_folder, write_atomic

MODE = "OPTPIPE_SIGNING"
KEY = "OPTPIPE_SIGNING_KEY"
PASSWORD = "OPTPIPE_SIGNING_KEY_PASSWORD"
SIGSTORE = "OPTPIPE_SIGSTORE"
NEEDED = f"a PEM file with an EC key (P-256, P-384, P-521) in {KEY}; its password in {PASSWORD}"
MODES = ("key", "keyless", "none")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Signer:
    """Signs with the key in this file; without one, with the identity that this CI job can prove."""

    key: Path | None = None
    public: Path | None = None
    """The public half of that key."""


def choose_signer(say: Say) -> Signer | None:
    """What the environment asks for, None for `none`; the key of this machine is made if it is not there."""
    mode = os.environ.get(MODE) or "key"
    if mode not in MODES:
        raise InputError(f"{mode!r} is no way to sign", place=MODE, hint=did_you_mean(mode, list(MODES)))
    if mode == "none":
        say(f"not signed: {MODE}=none")
        return None
    if mode == "keyless":
        return Signer()
    if named := os.environ.get(KEY):
        path = Path(named).expanduser()
        if not path.is_file():
            raise EnvironmentMissing(f"{named} is not there", place=KEY, hint="name a PEM file with an EC key")
        return Signer(path, named_key(path, say))
    return home_key(say)


def home_key(say: Say) -> Signer:
    """The key of this machine, made and trusted here if there is none yet."""
    folder = optpipe_home() / "keys"
    private, public = folder / "signing.pem", folder / "signing.pub"
    with locked(folder / ".lock"):
        if not private.exists():
            pem, shown = new_key()
            write_atomic(public, shown)
            _write_secret(private, pem)
            say(f"made a signing key for this machine: {private}; {trust_here(public)}")
    return Signer(private, public)


def named_key(private: Path, say: Say) -> Path:
    """The public half of a key that was named; at its first use here it is trusted here."""
    shown = public_half(private)
    public = optpipe_home() / "keys" / f"{hashlib.sha256(shown).hexdigest()[:16]}.pub"
    with locked(public.parent / ".lock"):
        if not public.exists():
            write_atomic(public, shown)
            say(f"signing with {private}; {trust_here(public)}")
    return public


def trust_here(public: Path) -> str:
    """Add a key to this machine's own policy, not to one that somebody keeps elsewhere; what was done, in words."""
    if os.environ.get(FILE):
        return f"its signatures count where {public} is in the policy, such as {trust_file()}"
    trust_key(public)
    return f"its public half is trusted in {trust_file()}"


def public_half(private: Path) -> bytes:
    """The public half of a private key, as PEM."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms

    try:
        key = forms.load_pem_private_key(private.read_bytes(), password()).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = str(error).partition(". See ")[0]
        raise InputError(f"cannot sign with it: {why}", place=str(private), hint=NEEDED) from None
    return key.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)


def new_key() -> tuple[bytes, bytes]:
    """A new P-256 key, private and public, both as PEM."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    plain = forms.NoEncryption()
    private = key.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, plain)
    public = key.public_key().public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def fingerprint(public: Path) -> str:
    """SHA-256 in hexadecimal of a public key as PEM: the hint that signatures carry."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as forms

    try:
        key = forms.load_pem_public_key(public.read_bytes())
        pem = key.public_bytes(forms.Encoding.PEM, forms.PublicFormat.SubjectPublicKeyInfo)
    except FileNotFoundError:
        raise InputError("is not there", place=str(public), hint="name a file with a public key") from None
    except (ValueError, UnsupportedAlgorithm):
        hint = "`openssl ec -in key.pem -pubout` shows the public half of a private key"
        raise InputError("is not a public key as PEM", place=str(public), hint=hint) from None
    return hashlib.sha256(pem).hexdigest()


def password() -> bytes | None:
    """Of the key file, from the environment alone."""
    given = os.environ.get(PASSWORD)
    return given.encode() if given else None


def sigstore_config() -> Path | None:
    """Where Sigstore's services and roots are named; None: the public ones, by network."""
    named = os.environ.get(SIGSTORE)
    if named and not Path(named).expanduser().is_file():
        raise EnvironmentMissing(f"{named} is not there", place=SIGSTORE, hint="name a ClientTrustConfig, as JSON")
    return Path(named).expanduser() if named else None


def _write_secret(path: Path, data: bytes) -> None:
    """A file that only its owner can read, whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.unlink(missing_ok=True)
    handle = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(handle)
    part.replace(path)
    sync_folder(path.parent)
