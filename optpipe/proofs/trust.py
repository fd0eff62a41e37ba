"""The trust policy: whose signatures count, for which models.

    [[signer]]
    key = "keys/signing.pub"                 # relative to this file
    models = ["*"]                           # patterns of model names; all where left out

    [[signer]]
    identity = "https://github.com/team/models/.github/workflows/build.yml@refs/heads/main"
    issuer = "https://token.actions.githubusercontent.com"
    models = ["team-*"]

OPTPIPE_TRUST names the file; by default it is OPTPIPE_HOME/trust.toml.
"""

from __future__ import annotations

import fnmatch
import json
import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpipe.errors import InputError, did_you_mean
from optpipe.rundir import optpipe_home, write_atomic

FILE = "OPTPIPE_TRUST"
KEYS = ("key", "identity", "issuer", "models")
HEAD = """\
# Whose signatures optpipe accepts, for which models; see docs/signing.md.
"""


@dataclass(frozen=True)
class Trusted:
    """One whose signature counts for models of these names: a public key, or an identity with its issuer."""

    key: Path | None = None
    identity: str | None = None
    issuer: str | None = None
    models: tuple[str, ...] = ("*",)

    def __str__(self) -> str:
        return f"key {self.key}" if self.key else f"{self.identity} ({self.issuer})"


@dataclass(frozen=True)
class Policy:
    """Who is trusted, said where; `allow_unsigned` takes what nobody signed who is known here, and says so."""

    trusted: tuple[Trusted, ...] = ()
    place: str = ""
    allow_unsigned: bool = False

    def of(self, model: str) -> tuple[Trusted, ...]:
        """Those who may sign the model of this name."""
        return tuple(
            one for one in self.trusted if any(fnmatch.fnmatchcase(model, pattern) for pattern in one.models)
        )


def trust_file() -> Path:
    """Where the policy lies."""
    named = os.environ.get(FILE)
    return Path(named).expanduser().absolute() if named else optpipe_home() / "trust.toml"


def load_policy(
    key: Path | None = None, identity: str | None = None, issuer: str | None = None, *, allow_unsigned: bool = False
) -> Policy:
    """The policy of a command: what its options name alone, else the file's."""
    if key and (identity or issuer):
        raise InputError("--key and --identity name two signers", hint="give one of them")
    if bool(identity) != bool(issuer):
        raise InputError("--identity and --issuer belong together", hint="e.g. --issuer https://accounts.google.com")
    if key:
        return Policy((Trusted(key=key),), "--key", allow_unsigned)
    if identity:
        return Policy((Trusted(identity=identity, issuer=issuer),), "--identity", allow_unsigned)
    return Policy(read(trust_file()), str(trust_file()), allow_unsigned)


def read(path: Path) -> tuple[Trusted, ...]:
    """The signers of a policy file; nobody where there is none, unless OPTPIPE_TRUST names it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if os.environ.get(FILE):
            raise InputError(f"{path} is not there", place=FILE, hint="name a policy file") from None
        return ()
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not TOML: {error}", place=str(path), hint="docs/signing.md shows one") from None
    if unknown := sorted(set(document) - {"signer"}):
        raise InputError(f"unknown key {unknown[0]!r}", place=str(path), hint="known: [[signer]]")
    signers = document.get("signer", [])
    if not isinstance(signers, list) or not all(isinstance(item, dict) for item in signers):
        raise InputError("`signer` is not a list of tables", place=str(path), hint="write [[signer]] over each")
    return tuple(_trusted(item, path, f"{path}: signer {number}") for number, item in enumerate(signers, 1))


def _trusted(item: dict[str, Any], path: Path, place: str) -> Trusted:
    if unknown := sorted(set(item) - set(KEYS)):
        raise InputError(f"unknown key {unknown[0]!r}", place=place, hint=did_you_mean(unknown[0], list(KEYS)))
    models = item.get("models", ["*"])
    texts = [item[name] for name in KEYS[:3] if name in item]
    if not all(isinstance(text, str) for text in texts) or not _texts(models):
        raise InputError("key, identity and issuer are texts, models is a list of texts", place=place)
    if ("key" in item) == ("identity" in item) or ("identity" in item) != ("issuer" in item):
        raise InputError("needs `key`, or `identity` and `issuer`", place=place)
    key = path.parent / Path(item["key"]).expanduser() if "key" in item else None
    return Trusted(key, item.get("identity"), item.get("issuer"), tuple(models))


def _texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def trust_key(public: Path) -> None:
    """Add a key to the policy file, for all models."""
    path = trust_file()
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    named = public.relative_to(path.parent) if public.is_relative_to(path.parent) else public
    quoted = json.dumps(str(named), ensure_ascii=False)  # a JSON text is a TOML text
    write_atomic(path, f'{text}\n[[signer]]\nkey = {quoted}\nmodels = ["*"]\n'.encode())
