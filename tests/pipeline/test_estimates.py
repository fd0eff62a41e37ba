"""Estimates stand beside what a build took, in its records and its report; a disk without room ends it at once."""

from __future__ import annotations

import json
from collections.abc import Callable

from optpipe.records import Compared, from_json
from tests.fakes.place import Done, Place


def rows(place: Place) -> list[Compared]:
    found = json.loads((place.artifacts / "latest" / "estimates.json").read_text())
    return [from_json(Compared, row) for row in found]


def test_every_candidate_has_its_estimates_beside_what_was_measured(built: tuple[Place, Done]) -> None:
    place, done = built
    found = {(row.of, row.quantity): row for row in rows(place)}
    names = {name.partition("@")[0] for name, one in done.said["candidates"].items() if one["bytes"]}
    assert {of for of, quantity in found if quantity == "bytes"} == names
    assert {of for of, quantity in found if quantity == "quantize memory"} == names - {"base"}
    assert {of for of, quantity in found if quantity == "score memory"} == names
    assert {of for of, quantity in found if quantity == "engine memory"} >= {str(done.said["winner"])}
    assert {quantity for of, quantity in found if of == "build"} == {"seconds", "disk"}
    assert found["build", "seconds"].measured > 1 and found["build", "disk"].measured > 10_000
    winner = str(done.said["winner"]).partition("@")[0]
    assert found[winner, "bytes"].measured == done.said["candidates"][str(done.said["winner"])]["bytes"]
    for name in ("report.md", "report.html"):
        text = (place.artifacts / "latest" / name).read_text()
        assert "quantize memory" in text and "Estimated" in text


def test_of_a_build_that_kept_results_the_whole_is_not_compared(again: Place) -> None:
    again.build()
    assert {row.of for row in rows(again)} and "build" not in {row.of for row in rows(again)}


def test_a_disk_without_room_is_exit_3_before_anything_is_done(fresh: Callable[..., Place]) -> None:
    texts = {f"text-{number}": {"source": "text.jsonl", "part": "score"} for number in range(1000)}
    place = fresh(texts=texts, scoring={"units": 100000, "unit_tokens": 256, "max_units": 100000})
    done = place.build()
    assert done.code == 3, done.err
    assert "of disk are needed" in done.err and "are free" in done.err and "--artifacts DIR" in done.err
    assert place.log() == []
