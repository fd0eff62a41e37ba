"""Models and files from the hub: pinned, safetensors only, out of its own cache when offline.

HF_ENDPOINT, HF_HOME, HF_HUB_OFFLINE are huggingface_hub's own; the token comes from HF_TOKEN alone.
"""

from __future__ import annotations

import contextlib
import fnmatch
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from optpipe.errors import EnvironmentMissing, InputError
from optpipe.model.config import read_config
from optpipe.model.fetching import Headers, local_headers
from optpipe.model.folder import INDEX, WEIGHTS, read_index
from optpipe.model.licence import CARD, TEXTS
from optpipe.model.safetensors import header_length, parse_header
from optpipe.model.sources import Hub, Say
from optpipe.reach import unreachable
from optpipe.records import TensorFact

if TYPE_CHECKING:
    from huggingface_hub import HfApi

SMALL = ["*.json", "*.jinja", "*.model", "merges.txt", "vocab.txt", CARD, *TEXTS]
"""Configuration, tokenizer, template, licence and the card that names it."""
NOT = ["*/*", "consolidated*", ".*"]
"""Sub-folders hold other formats (onnx/, original/); consolidated files are a second copy of the weights."""
FIRST_BYTES = 100_000
TIMEOUT_S = 60
AT_ONCE = 8
"""Headers asked for at once: a model of 70B has thirty files."""


def token() -> str | Literal[False]:
    """HF_TOKEN, and no token that lies in a file."""
    return os.environ.get("HF_TOKEN") or False


def api() -> HfApi:
    from huggingface_hub import HfApi, utils

    tools: Any = utils
    tools.disable_progress_bars()
    return HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None, token=token(), library_name="optpipe")


def away() -> str | None:
    """Why the hub is not to be asked; its client would try for 23 s before it looks into its cache."""
    if constants().HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    why = unreachable(os.environ.get("HF_ENDPOINT") or constants().ENDPOINT)
    return why and f"the hub cannot be reached ({why})"


def constants() -> Any:
    from huggingface_hub import constants as read

    return read


# ---------------------------------------------------------------- errors


@contextlib.contextmanager
def explained(place: str) -> Iterator[None]:
    """What the hub's client raises, as an error by cause with the next step."""
    from huggingface_hub import errors as defined

    errors: Any = defined
    try:
        yield
    except errors.GatedRepoError as error:
        raise InputError("the hub asks for its terms to be accepted first", place=place,
                         hint="accept them on the model's page, then set HF_TOKEN") from error  # fmt: skip
    except errors.RevisionNotFoundError as error:
        raise InputError("the hub has no such revision of it", place=place,
                         hint="check the commit or tag on the model's page") from error  # fmt: skip
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise _absent(place, away() or "the hub cannot be reached") from error
    except errors.EntryNotFoundError as error:
        raise InputError("the hub has no such file in it", place=place,
                         hint="check the path on its page") from error  # fmt: skip
    except errors.RepositoryNotFoundError as error:
        raise InputError(
            "the hub has no such repository, or it is private",
            place=place,
            hint="check the name; for a private one set HF_TOKEN to a token that may read it",
        ) from error
    except errors.HTTPError as error:
        raise _unreachable(error, place) from error


def _unreachable(error: Exception, place: str) -> InputError | EnvironmentMissing:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return InputError(f"the hub refuses it (HTTP {status})", place=place,
                          hint="set HF_TOKEN to a token that may read it")  # fmt: skip
    what = f"answers HTTP {status}" if status else f"cannot be reached ({type(error).__name__})"
    return EnvironmentMissing(f"the hub {what}", place=place, hint="check the network and HF_ENDPOINT, try again")


def _absent(place: str, why: str, what: str = "it is not, or not whole,") -> EnvironmentMissing:
    """Of what would have to come from the hub: what was tried, and the ways round."""
    return EnvironmentMissing(
        f"{why}, and {what} in the local cache {constants().HF_HUB_CACHE}",
        place=place,
        hint="check the network and HF_ENDPOINT; without a network name a local folder or file as the source, or fetch "
        "it elsewhere (`hf download NAME --revision COMMIT`) and set HF_HOME to a copy of that cache",
    )


# ---------------------------------------------------------------- models


def snapshot(source: Hub, say: Say, *, code: bool = False) -> Path:
    """The model's folder in the hub's cache, named by the commit; Python files only if `code`."""
    if code and not source.pinned:
        raise InputError(
            f"trust_remote_code needs a commit, and {source.revision!r} can move",
            place=str(source),
            hint="write the 40 digits of the commit after the @",
        )
    say(f"fetching {source}")
    patterns = [*SMALL, "*.safetensors", *(["*.py"] if code else [])]
    if why := away():
        return _cached(source, patterns, why)
    with explained(str(source)):
        path = api().snapshot_download(
            source.repo, revision=source.revision, allow_patterns=patterns, ignore_patterns=NOT
        )
    folder = Path(path)
    if not any(folder.glob("*.safetensors")):
        raise _no_safetensors(source, [])
    return folder


def _cached(source: Hub, patterns: list[str], why: str) -> Path:
    """The model's folder in the hub's cache, whole; `why` the hub is not asked."""
    with explained(str(source)):
        found = api().snapshot_download(
            source.repo, revision=source.revision, allow_patterns=patterns, ignore_patterns=NOT, local_files_only=True
        )
    folder = Path(found)
    indexed = set(read_index(folder / INDEX).values()) if (folder / INDEX).is_file() else set()
    weights = [file.name for file in folder.glob("*.safetensors")]
    if missing := sorted(indexed - set(weights)):
        raise _absent(str(source), why, f"{missing[0]} of it is not")
    if not weights:
        raise _absent(str(source), why, "no weights of it are")
    return folder


def headers(source: Hub, say: Say) -> Headers:
    """Small files fetched; of each weight file only the header, by a range request."""
    say(f"reading the headers of {source}")
    if why := away():
        folder = _cached(source, [*SMALL, "*.safetensors"], why)
        files = tuple(file.name for file in folder.iterdir())
        return replace(local_headers("hub", folder, folder.name), files=files)
    client = api()
    with explained(str(source)):
        info = client.model_info(source.repo, revision=source.revision, files_metadata=True)
        commit, sizes = str(info.sha), {s.rfilename: s.size or 0 for s in info.siblings or []}
        folder = Path(
            client.snapshot_download(source.repo, revision=source.revision, allow_patterns=SMALL, ignore_patterns=NOT)
        )
        names = weight_names(source, folder, list(sizes))
        with ThreadPoolExecutor(AT_ONCE) as pool:
            read = pool.map(lambda name: _header(client, source.repo, commit, name, sizes[name]), names)
            facts = tuple(fact for tensors in read for fact in tensors)
    return Headers("hub", commit, read_config(folder), facts, folder, tuple(sizes))


def weight_names(source: Hub, folder: Path, files: list[str]) -> list[str]:
    """The weight files among `files`: the index's, else the one file, else every model*.safetensors."""
    if (folder / INDEX).is_file():
        names = sorted(set(read_index(folder / INDEX).values()))
        missing = [name for name in names if name not in files]
        if missing:
            raise InputError(
                f"{INDEX} names {missing[0]}, which is not there",
                place=str(source),
                hint="try another revision",
            )
        return names
    if WEIGHTS in files:
        return [WEIGHTS]
    names = sorted(name for name in files if fnmatch.fnmatch(name, "model*.safetensors") and "/" not in name)
    if not names:
        raise _no_safetensors(source, files)
    return names


def _no_safetensors(source: Hub, files: list[str]) -> InputError:
    other = [name for name in files if name.endswith((".bin", ".pt", ".pth", ".gguf", ".h5"))]
    return InputError(
        f"has no safetensors weights{' (only ' + ', '.join(sorted(other)[:3]) + ')' if other else ''}",
        place=str(source),
        hint="pickled weights can run code and are not read; look for a revision with *.safetensors",
    )


def _header(client: HfApi, repo: str, commit: str, name: str, size: int) -> tuple[TensorFact, ...]:
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(repo, name, revision=commit, endpoint=client.endpoint)
    place = f"hf:{repo}@{commit}/{name}"
    start = _range(url, 0, min(FIRST_BYTES, size or FIRST_BYTES), place)
    length = header_length(start[:64], place, size)
    text = start[8 : 8 + length]
    if len(text) < length:
        text = _range(url, 8, 8 + length, place)
    return parse_header(text, name, place, size).tensors


def _range(url: str, begin: int, end: int, place: str) -> bytes:
    """Bytes [begin, end) of a file; a server that sends all of it is read no further than that."""
    from huggingface_hub import utils

    tools: Any = utils
    head = {
        **tools.build_hf_headers(token=token(), library_name="optpipe"),
        "range": f"bytes={begin}-{end - 1}",
    }
    with tools.get_session().stream("GET", url, headers=head, timeout=TIMEOUT_S, follow_redirects=True) as response:
        if response.status_code >= 400:
            response.read()
        tools.hf_raise_for_status(response)
        skip = begin if response.status_code == 200 else 0
        data = bytearray()
        for chunk in response.iter_bytes():
            data += chunk
            if len(data) >= skip + end - begin:
                break
    if len(data) < skip + end - begin:
        raise EnvironmentMissing(
            f"sent {len(data)} bytes where {end - begin} were asked for", place=place, hint="try again"
        )
    return bytes(data[skip : skip + end - begin])


# ---------------------------------------------------------------- data sets


def dataset_files(repo: str, revision: str) -> list[str]:
    """The names of a data set's files; out of the hub's cache where it cannot be reached."""
    from huggingface_hub import snapshot_download

    place = f"hf-dataset:{repo}@{revision}"
    if away():
        with explained(place):
            folder = Path(snapshot_download(repo, revision=revision, repo_type="dataset", local_files_only=True))
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    with explained(place):
        info = api().dataset_info(repo, revision=revision)
    return sorted(one.rfilename for one in info.siblings or [])


def dataset_file(repo: str, revision: str, path: str, say: Say) -> Path:
    """One file of a data set of the hub, in its cache."""
    place = f"hf-dataset:{repo}@{revision}/{path}"
    say(f"fetching {place}")
    local = away() is not None
    with explained(place):
        return Path(api().hf_hub_download(repo, path, revision=revision, repo_type="dataset", local_files_only=local))
