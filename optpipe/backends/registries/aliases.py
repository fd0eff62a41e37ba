"""Aliases: small records in an order, of which the last says what an alias means.

Where a registry can refuse a write because somebody else was faster (folder, S3, the hub), the record with the next
number is that write. Where it cannot (OCI, MLflow), everybody writes a record of his own, waits, reads back, and the
history decides: of two with one number the smaller digest, unless the registry's own alias has moved already. The
loser is told so, and its record stays as what it is, an attempt.
"""

from __future__ import annotations

import time

from optpipe.backends.registries.moves import Action, Kept, Move, earlier, in_order, next_move
from optpipe.backends.registries.references import Version, checked_name
from optpipe.backends.registries.storage import Storage, on_disk
from optpipe.errors import AliasMoved, InputError, PublishFailed
from optpipe.proofs import Claim, Notary

SETTLE_S = 1.0
"""How long a write waits for those that were begun before it could be seen, where nothing refuses the second."""


class Aliases:
    """The aliases of the models in a storage."""

    settle_s = SETTLE_S

    def __init__(self, storage: Storage, notary: Notary | None = None) -> None:
        self.storage = storage
        self.notary = notary

    def history(self, name: str) -> list[Kept]:
        """Every move of every alias of a model, oldest first; attempts that lost are among them."""
        checked_name(name, "model")
        place = f"{self.storage.where}: {name}"
        try:
            kept = [Kept.decode(data) for data in self.storage.moves(name)]
        except ValueError as error:
            raise PublishFailed(str(error), place=place, hint="somebody wrote over it") from None
        if strange := sorted({one.move.name for one in kept} - {name}):
            raise PublishFailed(f"holds moves of {strange[0]!r}", place=place, hint="somebody copied them there")
        return sorted(kept, key=lambda one: (one.move.time, one.move.alias, one.move.sequence))

    def alias(self, name: str, alias: str) -> str | None:
        """The digest that `alias` means now."""
        return self._now(name, checked_name(alias, "alias"), self.history(name))

    def trusted_alias(self, name: str, alias: str) -> str | None:
        """The digest that `alias` means now; PublishFailed if its last move is not to be trusted, or an old one."""
        history = self.history(name)
        digest = self._now(name, checked_name(alias, "alias"), history)
        if digest is not None and self.notary:
            mine = in_order(history, alias)
            last = next((kept for kept in reversed(mine) if kept.move.digest == digest), None)  # not an attempt
            self.notary.check_move(self._claim(name, alias, last))
        return digest

    def _claim(self, name: str, alias: str, kept: Kept | None) -> Claim:
        if kept is None:
            return Claim(self.storage.where, name, alias)
        return Claim(self.storage.where, name, alias, kept.move.sequence, kept.move.encode(), kept.signature)

    def aliases(self, name: str) -> list[str]:
        return sorted(self.aliases_now(name))

    def aliases_now(self, name: str) -> dict[str, str]:
        """What each alias means."""
        history = self.history(name)
        known = sorted({one.move.alias for one in history})
        return {alias: digest for alias in known if (digest := self._now(name, alias, history))}

    def move(self, version: Version, alias: str, *, expected: str | None, evidence: str) -> None:
        """Point `alias` at `version` if it still means `expected` (None: nothing yet), else PublishFailed."""
        self._change(version, checked_name(alias, "alias"), expected, evidence, "move")

    def rollback(self, name: str, alias: str, *, evidence: str) -> Version:
        """Point `alias` back at what it meant before; again, further back."""
        history = self.history(name)
        now = self._now(name, checked_name(alias, "alias"), history)
        if now is None:
            raise InputError(f"{name} has no alias {alias!r}", place=name, hint="`optpipe list` shows them")
        before = [digest for digest in earlier(in_order(history, alias)) if digest != now]
        if not before:
            hint = f"`optpipe history {name}` shows every move"
            raise InputError(f"{alias} has meant nothing but {now}", place=f"{name}@{alias}", hint=hint)
        version = Version(name, before[-1])
        self._change(version, alias, now, evidence, "rollback")
        return version

    # ------------------------------------------------------------ inside

    def _now(self, name: str, alias: str, history: list[Kept]) -> str | None:
        """The registry's own alias where it has one, else the last record."""
        if self.storage.points(alias):
            return self.storage.pointer(name, alias)
        mine = in_order(history, alias)
        return mine[-1].move.digest if mine else None

    def _change(self, version: Version, alias: str, expected: str | None, evidence: str, action: Action) -> None:
        name = version.name
        if self.storage.manifest(name, version.digest) is None:
            raise PublishFailed(f"{version.digest} is not complete there, so no alias may mean it", place=str(version))
        history = self.history(name)
        now = self._now(name, alias, history)
        if now == version.digest:
            return
        if now != expected:
            raise _moved(name, alias, now, expected)
        mine = in_order(history, alias)
        first = self.notary.first(self._claim(name, alias, None)) if self.notary and not mine else 1
        move = next_move(mine, version, alias, now, evidence, action, first)
        kept = Kept(move, self.notary.sign_move(move.encode()) if self.notary else None)
        with on_disk(PublishFailed):
            added = self.storage.add_move(name, alias, move.sequence, kept.encode())
        if not added:  # by somebody else, or by us, where the answer was lost and the client asked again
            added = kept.encode() in self.storage.moves(name)
        if not added or not (self.storage.conditional or self._won(move)):
            raise _moved(name, alias, self.alias(name, alias), expected)
        if self.storage.points(alias):
            self._point(move)
        if self.notary:
            self.notary.moved(self._claim(name, alias, kept))

    def _won(self, move: Move) -> bool:
        """After a while: nothing has moved, and of the records with this number this one decides."""
        time.sleep(self.settle_s)
        history = self.history(move.name)
        if self.storage.points(move.alias) and self._now(move.name, move.alias, history) != move.previous:
            return False
        same = [one for one in in_order(history, move.alias) if one.move.sequence == move.sequence]
        return bool(same) and same[-1].move == move

    def _point(self, move: Move) -> None:
        self.storage.point(move.name, move.alias, move.digest)
        now = self.storage.pointer(move.name, move.alias)
        if now != move.digest:
            raise _moved(move.name, move.alias, now, move.previous)


def _moved(name: str, alias: str, now: str | None, expected: str | None) -> AliasMoved:
    return AliasMoved(
        f"{alias} means {now or 'nothing'}, not {expected or 'nothing'}: somebody else moved it meanwhile",
        place=f"{name}@{alias}",
        hint="compare with the version that it means now, then promote again",
    )
