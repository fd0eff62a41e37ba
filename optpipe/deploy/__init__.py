"""Configuration for systems that exist, from a published version's own figures: nothing here runs or routes.

Another platform is one file with `files(facts) -> {name: content}` and one line in `PLATFORMS`.
"""

from __future__ import annotations

from collections.abc import Callable

from optpipe.deploy import compose, kserve, kubernetes, llmd
from optpipe.deploy.facts import Facts, Number, Wish
from optpipe.deploy.facts import read as read
from optpipe.deploy.page import page

Files = dict[str, str]
PLATFORMS: dict[str, Callable[[Facts], Files]] = {
    "compose": compose.files,
    "kubernetes": kubernetes.files,
    "kserve": kserve.files,
    "llm-d": llmd.files,
}


def manifests(platform: str, facts: Facts) -> Files:
    """Every file of a platform, and a page that says where each number comes from."""
    found = {name: marked(name, text, facts) for name, text in PLATFORMS[platform](facts).items()}
    return {**found, "README.md": page(platform, facts, found)}


def marked(name: str, text: str, facts: Facts) -> str:
    """A file that says in its first lines what has not been seen of its engine."""
    if name.endswith(".json"):
        return text  # it has a description
    return "".join(f"# {note}\n" for note in facts.server.unseen) + text


__all__ = ["PLATFORMS", "Facts", "Number", "Wish", "manifests", "read"]
