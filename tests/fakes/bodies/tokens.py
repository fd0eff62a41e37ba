"""`tokens`: a token for each byte, rows chosen as the real body chooses them."""

from __future__ import annotations

import json

import numpy as np

from optpipe.backends.evaluators.tokens import order
from optpipe.records import Json
from optpipe.worker import Failure, Work
from tests.fakes import orders, tiny

REVISION = 1
EOS = 1


def run(options: Json, work: Work) -> Json:
    orders.obey("tokens", "calibrate" if options["template"] else "score", work.folder.name.split(".")[0])
    lines = work.inputs["text"].read_text(encoding="utf-8").splitlines()
    stream = [token for line in lines for token in (*tiny.encode(json.loads(line)["text"]), EOS)]
    length, first, wanted = options["length"], options["first_row"], options["rows"]
    available = len(stream) // length
    chosen = order(available, work.seed)[first : first + wanted]
    if len(chosen) < options.get("min_rows", wanted):
        raise Failure(f"{len(lines)} documents give {available} rows of {length} tokens; {wanted} are needed")
    rows = np.array([stream[n * length : (n + 1) * length] for n in chosen], dtype=np.int32)
    np.save(work.out / "tokens.npy", rows)
    found = {"rows": len(rows), "length": length, "tokens": int(rows.size), "available_rows": available}
    return {**found, "documents": len(lines), "notes": []}
