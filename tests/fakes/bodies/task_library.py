"""`task-library`: knows one task, `riddles`, whose documents lie in the data set me/riddles."""

from __future__ import annotations

from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes import orders

REVISION = 1
RIDDLES: Json = {
    "task": "riddles",
    "dataset_path": "me/riddles",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{ q }}",
    "doc_to_choice": "{{ a }}",
    "doc_to_target": "r",
    "metric_list": [{"metric": "acc"}],
}


def run(options: Json, work: Work) -> Json:
    orders.obey("task-library", " ".join(options["names"]), work.folder.name.split(".")[0])
    unknown = {name: ["riddles"] for name in options["names"] if name != "riddles"}
    known = {"riddles": RIDDLES} if "riddles" in options["names"] else {}
    return {"tasks": known, "unknown": unknown, "lm_eval": "0.0.fake"}
