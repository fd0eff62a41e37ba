"""The hub as a source, against a small hub on loopback; looks are processes: settings are read at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from optpipe.model.fetching import content_digest
from optpipe.model.sources import Folder
from optpipe.rundir import DigestMemo
from tests.models import tiny_llama
from tests.unit.hub_server import COMMIT, Hub, serve

LOOK = """
import json, sys
from pathlib import Path
from optpipe.errors import OptpipeError
from optpipe.model import fetching, hub, sources
from optpipe.records import to_json

def look(what, text, home, code):
    if what == "dataset":
        return str(hub.dataset_file(*text.split(), print_nothing))
    if what == "headers":
        return fetching.headers(sources.parse(text), home, print_nothing)
    return fetching.fetch(sources.parse(text), home, print_nothing, trust_remote_code=code == "code")

def print_nothing(text): pass

what, home, code, *texts = sys.argv[1:]
for text in texts:
    try:
        print(json.dumps({"found": to_json(look(what, text, Path(home), code))}))
    except OptpipeError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}))
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), shards=2)


@pytest.fixture
def hub(model: Path) -> Iterator[Hub]:
    files = contents(model)
    files |= {"pytorch_model.bin": b"pickle", "onnx/model.safetensors": b"x", "modeling_x.py": b"1"}
    files |= {"consolidated.safetensors": b"other layout"}
    data = {"data/test.jsonl": b'{"text": "a"}\n'}
    with serve(
        Hub(
            {
                "me/tiny": files,
                "me/words": data,
                "me/pickled": {"pytorch_model.bin": b"", "config.json": b"{}"},
            }
        )
    ) as it:
        yield it


class Looker:
    def __init__(self, hub: Hub, home: Path) -> None:
        self.hub, self.home, self.said = hub, home, ""

    def __call__(self, what: str, text: str, code: str = "", **env: str) -> Any:
        return self.all(what, text, code=code, **env)[0]

    def all(self, what: str, *texts: str, code: str = "", **env: str) -> list[Any]:
        """What each look found or was told, all in one process."""
        root = Path(__file__).parents[2]
        full = {**os.environ, "HF_ENDPOINT": self.hub.url, "HF_HOME": str(self.home / "hf")}
        full["PYTHONPATH"] = str(root)
        for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE"):
            full.pop(name, None)
        argv = [sys.executable, "-c", LOOK, what, str(self.home), code, *texts]
        done = subprocess.run(argv, env={**full, **env}, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        self.said += done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def look(hub: Hub, tmp_path: Path) -> Looker:
    return Looker(hub, tmp_path)


def test_a_model_comes_with_safetensors_and_small_files_only(look: Looker, model: Path, tmp_path: Path) -> None:
    found = look("fetch", "hf:me/tiny@v1")["found"]
    folder = Path(found["path"])
    assert found["kind"] == "hub"
    assert found["revision"] == COMMIT, "a tag is recorded as the commit that it stood for"
    assert contents(folder) == contents(model), "no pickle, no code, no other layout"
    assert found["digest"] == content_digest(model, DigestMemo(tmp_path / "memo.sqlite"))


def test_what_was_fetched_once_works_without_a_network(look: Looker) -> None:
    online = look("fetch", "hf:me/tiny@v1")["found"]
    assert look("fetch", "hf:me/tiny@v1", HF_HUB_OFFLINE="1")["found"] == online
    assert look("fetch", "hf:me/tiny@v1", HF_ENDPOINT="http://127.0.0.1:9")["found"] == online


def test_headers_of_what_was_fetched_once_need_no_network(look: Looker) -> None:
    online = look("headers", f"hf:me/tiny@{COMMIT}")["found"]
    look("fetch", f"hf:me/tiny@{COMMIT}")
    for away in ({"HF_HUB_OFFLINE": "1"}, AWAY):
        here = look("headers", f"hf:me/tiny@{COMMIT}", **away)["found"]
        assert here["tensors"] == online["tensors"] and here["revision"] == COMMIT


AWAY = {"HF_ENDPOINT": "http://127.0.0.1:9"}


@pytest.mark.parametrize("away", [{"HF_HUB_OFFLINE": "1"}, AWAY], ids=["told so", "no network"])
def test_offline_without_a_copy_says_what_was_tried_and_goes_on_trying_nothing(
    away: dict[str, str], look: Looker
) -> None:
    why = "HF_HUB_OFFLINE is set" if "HF_HUB_OFFLINE" in away else "cannot be reached (127.0.0.1:9: Connection refused)"
    for what, text in (
        ("fetch", "hf:me/tiny@v1"),
        ("fetch", f"hf:me/tiny@{COMMIT}"),
        ("headers", f"hf:me/tiny@{COMMIT}"),
        ("dataset", f"me/words {COMMIT} data/test.jsonl"),
    ):
        told = look(what, text, **away)
        assert told["error"] == "EnvironmentMissing", told
        assert why in told["text"] and f"in the local cache {look.home}" in told["text"]
        assert "HF_ENDPOINT" in told["text"] and "HF_HOME" in told["text"] and "local folder" in told["text"]
    assert "Retrying" not in look.said, "the client's own tries take 23 s"


def test_half_a_model_in_the_cache_is_not_taken_for_all_of_it(look: Looker) -> None:
    found = look("fetch", "hf:me/tiny@v1")["found"]
    shard = sorted(Path(found["path"]).glob("*.safetensors"))[1]
    shard.unlink()
    for what in ("headers", "fetch"):
        told = look(what, f"hf:me/tiny@{COMMIT}", HF_HUB_OFFLINE="1")
        assert told["error"] == "EnvironmentMissing", told


def test_headers_come_by_ranges_without_the_weights(look: Looker, hub: Hub, model: Path) -> None:
    found, folder = (told["found"] for told in look.all("headers", f"hf:me/tiny@{COMMIT}", str(model)))
    assert found["tensors"] == folder["tensors"]
    assert found["config"] == folder["config"]
    whole = [path for method, path, asked in hub.asked if path.endswith(".safetensors") and not asked]
    assert whole == []


def test_headers_of_a_large_file_read_little_of_it(look: Looker, hub: Hub, tmp_path: Path) -> None:
    big = tiny_llama(tmp_path / "big", layers=1, hidden=64, vocab_size=64000)
    hub.files["me/big"] = contents(big)
    weights = len(hub.files["me/big"]["model.safetensors"])
    for hub.ranges in (True, False):
        hub.sent = 0
        found = look("headers", f"hf:me/big@{COMMIT}")["found"]
        assert len(found["tensors"]) == 11
        if hub.ranges:
            assert hub.sent < weights / 10


def test_headers_longer_than_the_first_request_are_read_whole(look: Looker, hub: Hub, tmp_path: Path) -> None:
    many = tiny_llama(tmp_path / "many", layers=120, hidden=64)
    hub.files["me/many"] = contents(many)
    found = look("headers", f"hf:me/many@{COMMIT}")["found"]
    assert len(found["tensors"]) == 2 + 120 * 9


def test_a_name_that_is_not_there_and_a_private_one_look_the_same(look: Looker, hub: Hub) -> None:
    hub.private["me/tiny"] = "secret-token"
    texts = ("hf:me/nothing@v1", "hf:me/tiny@v1")
    for text, told in zip(texts, look.all("fetch", *texts), strict=True):
        assert told["error"] == "InputError"
        assert told["text"].startswith(f"{text}: the hub has no such repository, or it is private")
        assert "HF_TOKEN" in told["text"]
    assert "found" in look("headers", "hf:me/tiny@v1", HF_TOKEN="secret-token")


def test_a_token_that_lies_in_a_file_is_not_used(look: Looker, hub: Hub) -> None:
    hub.private["me/tiny"] = "secret-token"
    (look.home / "hf").mkdir()
    (look.home / "hf" / "token").write_text("secret-token")
    assert look("fetch", "hf:me/tiny@v1")["error"] == "InputError"


def test_an_unknown_revision_a_gated_model_and_a_sick_hub_are_told_apart(look: Looker, hub: Hub) -> None:
    assert "no such revision" in look("fetch", "hf:me/tiny@v2")["text"]
    hub.gated.add("me/tiny")
    assert "terms" in look("headers", "hf:me/tiny@v1")["text"]
    hub.gated.clear()
    hub.broken.add("me/tiny")
    told = look("headers", "hf:me/tiny@v1")
    assert told["error"] == "EnvironmentMissing"
    assert "503" in told["text"]


def test_a_model_of_pickles_alone_is_refused_with_the_reason(look: Looker) -> None:
    for what in ("fetch", "headers"):
        told = look(what, f"hf:me/pickled@{COMMIT}")
        assert told["error"] == "InputError"
        assert "no safetensors" in told["text"]


def test_code_comes_only_when_allowed_and_pinned(look: Looker) -> None:
    told = look("fetch", "hf:me/tiny@v1", "code")
    assert told["error"] == "InputError"
    assert "needs a commit" in told["text"]
    found = look("fetch", f"hf:me/tiny@{COMMIT}", "code")["found"]
    assert (Path(found["path"]) / "modeling_x.py").read_bytes() == b"1"


def test_a_shard_cut_short_on_the_hub_is_found_without_fetching_it(look: Looker, hub: Hub) -> None:
    name = "model-00002-of-00002.safetensors"
    hub.files["me/tiny"][name] = hub.files["me/tiny"][name][:-100]
    told = look("headers", f"hf:me/tiny@{COMMIT}")
    assert told["error"] == "InputError"
    assert name in told["text"] and "truncated" in told["text"]


def test_a_file_of_a_data_set(look: Looker) -> None:
    here, lost = look.all("dataset", *(f"me/words {COMMIT} data/{name}.jsonl" for name in ("test", "train")))
    assert Path(here["found"]).read_text() == '{"text": "a"}\n'
    assert "no such file" in lost["text"]


def test_a_folder_of_the_same_content_has_the_same_digest_wherever_it_lies(model: Path, tmp_path: Path) -> None:
    copy = tmp_path / "a name with spaces é"
    for name, data in contents(model).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(data)
    (copy / ".git").mkdir()
    (copy / ".git" / "HEAD").write_text("ref")
    memo = DigestMemo(tmp_path / "memo.sqlite")
    assert content_digest(copy, memo) == content_digest(model, memo)
    (copy / "config.json").write_text("{}")
    assert content_digest(Folder(copy).path, memo) != content_digest(model, memo)
