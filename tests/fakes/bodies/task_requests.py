"""`task-requests`: two choices of bytes for each document, or a beginning to continue, in the real body's form."""

from __future__ import annotations

import json

from optpipe.backends.evaluators.tokens import order
from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes import orders, tiny

REVISION = 1
WORDS = ("moon", "river", "stone", "bird", "sun", "old", "cold", "near", "over", "under")


def run(options: Json, work: Work) -> Json:
    orders.obey("task-requests", " ".join(options["tasks"]), work.folder.name.split(".")[0])
    requests, chosen = [], {}
    for name in options["tasks"]:
        assert work.inputs[f"data.{name}.test.000"].is_file()
        chosen[name] = sorted(order(100, work.seed)[: options["documents"][name]])
        for number in chosen[name]:
            context = tiny.encode(f"{name} {number} {WORDS[number % 10]} ")
            if options["tasks"][name]["output_type"] == "generate_until":
                requests.append({"ids": context, "until": ["z"], "max_tokens": 6})
                continue
            for word in (WORDS[number % 7], WORDS[number % 9]):
                ids = [*context, *tiny.encode(word)]
                requests.append({"ids": ids, "from": len(context)})
    text = "".join(json.dumps(request) + "\n" for request in requests)
    (work.out / "requests.jsonl").write_text(text, encoding="utf-8")
    return {"requests": len(requests), "cut": 0, "documents": chosen, "lm_eval": "0.0.fake"}
