"""Two builds in one artifacts folder: neither drops what the other still needs."""

from __future__ import annotations

import json
from pathlib import Path

from optpipe.inuse import InUse
from tests.fakes.place import Place


def test_nothing_is_dropped_while_another_build_works(again: Place) -> None:
    again.recipe["keep"] = "winner"
    load, before = dict(again.recipe["load"]), len(again.log())
    again.recipe["load"] = load | {"requests": 62}
    again.order({"at": "load", "who": "w4@vllm", "do": "hold"})
    slow = again.start()
    again.when("load", "w4@vllm", after=before)

    again.recipe["load"] = load
    quick = again.build()
    assert (quick.code, quick.jobs["run"]) == (0, 0)
    int8 = Path(json.loads((again.root / quick.said["run"] / "04-quantize/int8/record.json").read_text())["path"])
    assert int8.is_dir() and "another build uses this cache" in quick.err
    refused = again.run("cache", "gc", "--max-size", "0")
    assert refused.code == 3 and "a build is at work" in refused.err and int8.is_dir()

    again.order()
    done = again.ended(slow)
    assert done.code == 0 and "files were dropped" not in done.err
    assert not int8.exists(), "the last one drops what it lets go"
    assert again.run("cache", "gc", "--max-size", "0").code == 0


def test_a_cache_is_had_alone_only_while_nobody_holds_it(tmp_path: Path) -> None:
    one, other = InUse(tmp_path), InUse(tmp_path)
    one.hold()
    other.hold()
    with one.alone() as alone:
        assert not alone
    with other.alone() as alone:
        assert alone, "who found it in use has let go"
    with InUse(tmp_path) as third:
        third.hold()
        with one.alone() as alone:
            assert not alone
    with one.alone() as alone:
        assert alone


def test_looking_takes_no_place(tmp_path: Path) -> None:
    with InUse(tmp_path / "cache"):
        pass
    assert not (tmp_path / "cache").exists()
