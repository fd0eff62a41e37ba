"""Whose files stay in the cache: `keep:` after a build, `cache gc` by size. Records always stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from optpipe.errors import EnvironmentMissing, InputError
from optpipe.inuse import InUse
from optpipe.outcome import Entry, Outcome
from optpipe.rundir import JobStore, folder_bytes

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def parse_size(text: str) -> int:
    """`20G`, `500M`, `0`: bytes in powers of 1000."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if not found:
        raise InputError(f"--max-size {text!r} is no size", hint="e.g. 20G, 500M or 0")
    return int(float(found[1]) * UNITS[found[2].upper()])


def kept(keep: str, out: Outcome) -> list[Entry]:
    """Candidates whose files stay: the winner, all that passed, or all.

    Without a winner all but the rejected stay: the next build goes on with them.
    """
    entries = out.entries
    if out.winner is None and keep != "all":
        return [e for e in entries if e.verdict().status != "rejected"]
    return {
        "all": entries,
        "passed": [e for e in entries if e.passed],
        "winner": [e for e in entries if e is out.winner],
    }[keep]


def kept_keys(keep: str, out: Outcome) -> set[str]:
    """Jobs whose checkpoints stay."""
    base = {out.base.job} if out.base.job else set()
    return base.union(*(made_by(entry) for entry in kept(keep, out)))


def made_by(entry: Entry) -> set[str]:
    """The jobs whose files are this candidate's: its checkpoint's and what was compiled from it."""
    return {one.job for one in (entry.checkpoint, entry.compiled) if one and one.job}


def drop_after(keep: str, out: Outcome, store: JobStore, in_use: InUse, say: Callable[[str], None]) -> int:
    """Drop the checkpoints that `keep` lets go, and the base's logits; bytes freed.

    Nothing while another build works with the same cache: it may need just what this one lets go.
    """
    with in_use.alone() as alone:
        if alone:
            return drop(keep, out, store)
    if keep != "all":
        say(f"another build uses this cache: what `keep: {keep}` lets go stays until a later build drops it")
    return 0


def code_of(entries: Iterable[Entry]) -> set[str]:
    """Keys of the code that these candidates' engines compile when they start."""
    return {entry.compiled.code.key for entry in entries if entry.compiled and entry.compiled.code}


def drop(keep: str, out: Outcome, store: JobStore) -> int:
    stay = kept_keys(keep, out)
    made = set[str]().union(*(made_by(entry) for entry in out.entries)) - stay
    logits = {job for e in out.entries if e.is_base and e.evaluation for job in e.evaluation.jobs}
    heavy = {key for key in logits if keep != "all" and folder_bytes(store.folder(key) / "files") > 1 << 20}
    code = code_of(out.entries) - code_of(kept(keep, out))
    return sum(store.drop_files(key) for key in made | heavy) + sum(map(store.code.drop, code))


def collect(store: JobStore, limit: int) -> dict[str, int]:
    """Drop files of jobs, those unused longest first, until all take at most `limit` bytes."""
    if not (store.root / "jobs").is_dir():
        return {}
    with InUse(store.root).alone() as alone:
        if not alone:
            hint = "try again when it has ended"
            raise EnvironmentMissing("a build is at work with this cache", place=str(store.root), hint=hint)
        return collected(store, limit)


def collected(store: JobStore, limit: int) -> dict[str, int]:
    """{what: bytes freed}; code that an engine runs from stays."""
    found = sorted(holdings(store), key=lambda one: one.used)
    total, freed = sum(one.bytes for one in found), dict[str, int]()
    for one in found:
        if total <= limit:
            break
        freed[one.name] = one.drop()
        total -= freed[one.name]
    return {name: size for name, size in freed.items() if size}


@dataclass(frozen=True)
class Holding:
    """Something that can be dropped: files of a job, or what an engine compiled when it started."""

    name: str
    used: float
    bytes: int
    drop: Callable[[], int]


def holdings(store: JobStore) -> Iterator[Holding]:
    for path in sorted((store.root / "jobs").iterdir()):
        key, record = f"sha256:{path.name}", path / "record.json"
        if record.is_file() and (path / "files").is_dir():
            size = folder_bytes(path / "files")
            yield Holding(key, record.stat().st_mtime, size, partial(drop_locked, store, key))
    for key in store.code:
        size = folder_bytes(store.code.folder(key))
        yield Holding(f"compiled {key}", store.code.used(key), size, partial(store.code.drop, key))


def drop_locked(store: JobStore, key: str) -> int:
    with store.lock(key):
        return store.drop_files(key)
