"""A move of an alias: the record that a registry keeps, in bytes that can be signed.

All moves of an alias, in the order of their sequence, are its history; what it means now follows from them.
"""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from optpipe.backends.registries.references import Version
from optpipe.records import canonical, from_json
from optpipe.rundir import digest_bytes

Action = Literal["move", "rollback"]
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Move:
    """Who pointed which alias from what to what, when, on which evidence."""

    name: str
    alias: str
    sequence: int
    """1 for the first move of this alias; more where a registry was made anew (proofs/notary.py)."""
    digest: str
    """What it means from now on."""
    previous: str | None
    """What it meant before; None where it was new."""
    action: Action
    time: str
    by: str
    evidence: str
    after: str | None
    """SHA-256 of the record before this one: a history that was rewritten does not fit together."""

    def encode(self) -> bytes:
        """The one byte string of this record: what is signed, and what `after` is the digest of."""
        return canonical(self)

    @property
    def ident(self) -> str:
        return digest_bytes(self.encode())


@dataclass(frozen=True)
class Kept:
    """A move as a registry stores it: the record, and beside it a signature over `move.encode()`."""

    move: Move
    signature: str | None = None

    def encode(self) -> bytes:
        return canonical(self)

    @classmethod
    def decode(cls, data: bytes) -> Kept:
        """Raises ValueError where `data` is no record of ours."""
        try:
            kept = from_json(cls, json.loads(data))
        except (TypeError, KeyError, AttributeError, ValueError, RecursionError) as error:
            raise ValueError(f"not a record of a move: {error}") from error
        move = kept.move
        if type(move.sequence) is not int or not DIGEST.fullmatch(str(move.digest)):
            raise ValueError(f"not a record of a move: sequence {move.sequence!r}, digest {move.digest!r}")
        return kept


def next_move(
    history: list[Kept],
    version: Version,
    alias: str,
    previous: str | None,
    evidence: str,
    action: Action,
    first: int = 1,
) -> Move:
    """The record that follows on `history`, the moves of this alias; `first` is the number of its very first."""
    last = history[-1].move if history else None
    now = datetime.now(UTC).isoformat(timespec="microseconds")
    sequence, after = (last.sequence + 1, last.ident) if last else (first, None)
    return Move(version.name, alias, sequence, version.digest, previous, action, now, user(), evidence, after)


def in_order(kept: Iterable[Kept], alias: str) -> list[Kept]:
    """The moves of one alias; of several with one sequence (a race) the one that decides comes last."""
    mine = [one for one in kept if one.move.alias == alias]
    return sorted(mine, key=lambda one: (-one.move.sequence, one.move.ident))[::-1]


def earlier(history: list[Kept]) -> list[str]:
    """What an alias meant before and may be rolled back to, the latest last; a rollback takes one away."""
    stack: list[str] = []
    for one in history:
        move = one.move
        if move.action == "rollback" and move.digest in stack:
            while stack.pop() != move.digest:
                pass
        elif move.previous:
            stack.append(move.previous)
    return stack


def user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container whose user has no name
        return f"uid {os.getuid()}"
