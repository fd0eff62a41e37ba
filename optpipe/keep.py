"""Whose files stay in the cache: `keep:` after a build, `cache gc` by size. Records always stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

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


def kept_keys(keep: str, out: Outcome) -> set[str]:
    """Jobs whose checkpoints stay: the winner's, those of all that passed, or all.

    Without a winner all but the rejected stay: the next build goes on with them.
    """
    entries = out.entries
    chosen = {
        "all": entries,
        "passed": [e for e in entries if e.passed],
        "winner": [e for e in entries if e is out.winner],
    }[keep]
    if out.winner is None and keep != "all":
        chosen = [e for e in entries if e.verdict().status != "rejected"]
    base = {out.base.job} if out.base.job else set()
    return base.union(*(made_by(entry) for entry in chosen))


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


def drop(keep: str, out: Outcome, store: JobStore) -> int:
    stay = kept_keys(keep, out)
    made = set[str]().union(*(made_by(entry) for entry in out.entries)) - stay
    logits = {job for e in out.entries if e.is_base and e.evaluation for job in e.evaluation.jobs}
    heavy = {key for key in logits if keep != "all" and folder_bytes(store.folder(key) / "files") > 1 << 20}
    return sum(store.drop_files(key) for key in made | heavy)


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
    sizes = {path: folder_bytes(path / "files") for path in folders(store) if (path / "files").is_dir()}
    total, freed = sum(sizes.values()), {}
    for path in sorted(sizes, key=lambda p: (p / "record.json").stat().st_mtime):
        if total <= limit:
            break
        key = f"sha256:{path.name}"
        with store.lock(key):
            freed[key] = store.drop_files(key)
        total -= freed[key]
    return freed


def folders(store: JobStore) -> Iterable[Path]:
    return (path for path in (store.root / "jobs").iterdir() if (path / "record.json").is_file())
