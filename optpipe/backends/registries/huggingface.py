"""The Hugging Face Hub, or what speaks like it: one repository for each model.

main at a commit, tag sha256-<hex>             a version: its files and no others; the tag makes it one
main, .optpipe/aliases/<alias>/000001.json     the moves of an alias

A version is one commit, whose large files go over before it, each skipped where the hub has its content. Every
commit names its parent, so the hub refuses the second of two: that decides between two who move an alias at once.
The token comes from HF_TOKEN, the server from HF_ENDPOINT.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from optpipe import bundle as bundles
from optpipe.backends.registries import places
from optpipe.backends.registries.storage import AGAIN, Storage
from optpipe.bundle import Entry, Manifest
from optpipe.errors import PublishFailed, Unreachable
from optpipe.model import hub
from optpipe.rundir import CHUNK

OURS = ".optpipe/"
MOVES = f"{OURS}aliases"
THEIRS = ".gitattributes"
CONFLICT = (409, 412)
TRIES = 8
TIMEOUT_S = 60


@dataclass(frozen=True)
class HuggingFace:
    """Publish to the hub as `owner/<name of the recipe>`; the token comes from HF_TOKEN."""

    __pydantic_config__ = {"extra": "forbid", "use_attribute_docstrings": True}  # noqa: RUF012

    owner: str
    """The user or organization."""
    private: bool = True
    """Whether a repository that is not there yet is made private."""
    registry: Literal["huggingface"] = "huggingface"
    """Which kind."""
    promote: str | None = None
    """An alias to move to the new version where it beats the one that the alias means now."""


class HuggingFaceStorage(Storage):
    """Commits and tags of the owner's repositories."""

    kind = "huggingface"

    def __init__(self, settings: HuggingFace) -> None:
        places.checked_part(settings.owner, places.OWNER, "an owner on the hub")
        self._owner, self._private = settings.owner, settings.private
        self.where = f"hf://{settings.owner}"
        self._pending: dict[tuple[str, str], dict[str, Any]] = {}
        self._staged: dict[tuple[str, str], str] = {}
        self._kept: dict[tuple[str, str], bytes] = {}

    @functools.cached_property
    def _api(self) -> Any:
        if why := hub.away():
            hint = f"check the network, HF_ENDPOINT and HF_HUB_OFFLINE; {AGAIN}"
            raise Unreachable(why, place=self.where, hint=hint)
        return hub.api()

    # ------------------------------------------------------------ versions

    def names(self) -> list[str]:
        with self._explained(""):
            found = [model.id.partition("/")[2] for model in self._api.list_models(author=self._owner)]
        return sorted(name for name in found if self.versions(name))

    def versions(self, name: str) -> list[str]:
        return [tag.replace("-", ":") for tag in self._tags(name) if tag.startswith("sha256-")]

    def manifest(self, name: str, digest: str) -> bytes | None:
        commit = self._tags(name).get(_tag(digest))
        return b"".join(self._stream(name, commit, bundles.MANIFEST)) if commit else None

    def size(self, name: str, digest: str, file: Entry) -> int | None:
        commit = self._commit(name, digest)
        if commit is None:
            return None
        with self._explained(name):
            found = self._api.get_paths_info(self._repo(name), [file.path], revision=commit)
        return int(found[0].size) if found else None

    def put(self, name: str, digest: str, file: Entry, source: Path) -> None:
        """The content; what the hub has is not sent. Small files go with the commit."""
        from huggingface_hub import CommitOperationAdd

        addition = CommitOperationAdd(path_in_repo=file.path, path_or_fileobj=str(source))
        with self._explained(name):
            if not self._pending.get((name, digest)):
                self._api.create_repo(self._repo(name), private=self._private, exist_ok=True)
            self._api.preupload_lfs_files(self._repo(name), [addition], free_memory=False)
        self._pending.setdefault((name, digest), {})[file.path] = addition
        self.tick(file.size)

    def stage(self, name: str, digest: str, manifest: Manifest) -> None:
        """One commit with exactly this version's files; on top of whatever came meanwhile."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        added = self._pending.pop((name, digest), {})
        before = self._staged.pop((name, digest), None)
        listed = {file.path for file in manifest.files} | {bundles.MANIFEST}
        for _ in range(TRIES):
            head, there = self._head(name)
            if listed - {bundles.MANIFEST} - set(added) and head != before:
                raise PublishFailed("the repository changed meanwhile", place=self._place(name), hint=AGAIN)
            gone = [path for path in there if path not in listed and not path.startswith(OURS) and path != THEIRS]
            content = CommitOperationAdd(path_in_repo=bundles.MANIFEST, path_or_fileobj=manifest.encode())
            changes = [*added.values(), content, *(CommitOperationDelete(path_in_repo=path) for path in gone)]
            if commit := self._change(name, changes, head, f"Version {digest}"):
                self._staged[name, digest] = commit
                return
        raise PublishFailed("others commit all the time", place=self._place(name), hint="try again")

    def read(self, name: str, digest: str, file: Entry) -> Iterator[bytes]:
        return self._stream(name, self._commit(name, digest), file.path)

    def seal(self, name: str, digest: str, manifest: Manifest) -> None:
        with self._explained(name):
            self._api.create_tag(self._repo(name), tag=_tag(digest), revision=self._staged[name, digest], exist_ok=True)

    def signature(self, name: str, digest: str) -> bytes | None:
        head, there = self._head(name)
        path = _signature(digest)
        return b"".join(self._stream(name, head, path)) if path in there else None

    def put_signature(self, name: str, digest: str, signature: bytes) -> None:
        self._write(name, _signature(digest), signature, f"Signature of {digest}", over=True)

    # ------------------------------------------------------------ aliases

    def moves(self, name: str) -> list[bytes]:
        head, there = self._head(name)
        paths = [path for path in there if path.startswith(f"{MOVES}/")]
        for path in paths:
            if (name, path) not in self._kept:
                self._kept[name, path] = b"".join(self._stream(name, head, path))
        return [self._kept[name, path] for path in paths]

    def add_move(self, name: str, alias: str, sequence: int, data: bytes) -> bool:
        path = f"{MOVES}/{alias}/{sequence:06d}.json"
        return self._write(name, path, data, f"{alias}: move {sequence}")

    # ------------------------------------------------------------ calls

    def _repo(self, name: str) -> str:
        return f"{self._owner}/{name}"

    def _place(self, name: str) -> str:
        return f"{self.where}/{name}" if name else self.where

    def _refs(self, name: str) -> Any:
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._explained(name):
            try:
                return self._api.list_repo_refs(self._repo(name))
            except RepositoryNotFoundError:
                return None

    def _tags(self, name: str) -> dict[str, str]:
        refs = self._refs(name)
        return {tag.name: tag.target_commit for tag in refs.tags} if refs else {}

    def _commit(self, name: str, digest: str) -> str | None:
        return self._staged.get((name, digest)) or self._tags(name).get(_tag(digest))

    def _head(self, name: str) -> tuple[str, list[str]]:
        """The commit of main and the files there; of no repository an empty one."""
        refs = self._refs(name)
        head = next((branch.target_commit for branch in refs.branches if branch.name == "main"), "") if refs else ""
        if not head:
            return "", []
        with self._explained(name):
            tree = list(self._api.list_repo_tree(self._repo(name), recursive=True, revision=head))
        return head, [one.path for one in tree if getattr(one, "size", None) is not None]

    def _write(self, name: str, path: str, data: bytes, message: str, over: bool = False) -> bool:
        """One small file into main; False where one of this name came first and is not to be written `over`."""
        from huggingface_hub import CommitOperationAdd

        for _ in range(TRIES):
            head, there = self._head(name)
            if path in there and not over:
                return False
            if self._change(name, [CommitOperationAdd(path_in_repo=path, path_or_fileobj=data)], head, message):
                return True
        raise PublishFailed("others commit all the time", place=self._place(name), hint="try again")

    def _change(self, name: str, changes: list[Any], parent: str, message: str) -> str | None:
        """The new commit, or None where main is no longer at `parent`."""
        from huggingface_hub.errors import HfHubHTTPError

        with self._explained(name):
            try:
                done = self._api.create_commit(
                    self._repo(name), changes, commit_message=message, parent_commit=parent or None
                )
            except HfHubHTTPError as error:
                if error.response is not None and error.response.status_code in CONFLICT:
                    return None
                raise
        return str(done.oid)

    def _stream(self, name: str, commit: str | None, path: str) -> Iterator[bytes]:
        from huggingface_hub import hf_hub_url, utils

        tools: Any = utils
        url = hf_hub_url(self._repo(name), path, revision=commit, endpoint=self._api.endpoint)
        headers = tools.build_hf_headers(token=hub.token(), library_name="optpipe")
        with (
            self._explained(name),
            tools.get_session().stream("GET", url, headers=headers, timeout=TIMEOUT_S, follow_redirects=True) as answer,
        ):
            if answer.status_code >= 400:
                answer.read()
            tools.hf_raise_for_status(answer)
            yield from answer.iter_bytes(CHUNK)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """What the hub's client raises, as one error that says what to do."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        try:
            yield
        except HfHubHTTPError as error:
            status = error.response.status_code if error.response is not None else "?"
            hint = "set HF_TOKEN to a token that may write there" if status in (401, 403, 404) else AGAIN
            said = (error.server_message or "").strip()
            message = f"the hub answers HTTP {status} {said}".strip()
            raise PublishFailed(message, place=self._place(name), hint=hint) from None
        except httpx2.TransportError as error:
            message = f"the connection failed ({type(error).__name__})"
            raise PublishFailed(message, place=self._place(name), hint=AGAIN) from None
        except RuntimeError as error:  # what the client makes of an upload that failed
            message = f"{error} ({type(error.__cause__).__name__})"
            raise PublishFailed(message, place=self._place(name), hint=AGAIN) from None


def _tag(digest: str) -> str:
    return digest.replace(":", "-")


def _signature(digest: str) -> str:
    return f"{OURS}signatures/{_tag(digest)}.sig"
