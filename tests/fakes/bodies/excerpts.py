"""`excerpts`: the real body's pieces, a token for each byte."""

from __future__ import annotations

import json

import numpy as np

from optpipe.backends.evaluators.excerpts import PADDING, cut
from optpipe.backends.evaluators.tokens import order
from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes import orders, tiny

REVISION = 1
EOS = 1


def run(options: Json, work: Work) -> Json:
    orders.obey("excerpts", "score", work.folder.name.split(".")[0])
    lines = work.inputs["text"].read_text(encoding="utf-8").splitlines()
    pieces = list(cut((json.loads(line)["text"] for line in lines), options["bytes"]))
    first, wanted = options["first_row"], options["rows"]
    chosen = [pieces[number] for number in order(len(pieces), work.seed)[first : first + wanted]]
    rows = [[EOS, *tiny.encode(piece)] for piece in chosen]
    table = np.full((len(rows), max(map(len, rows))), PADDING, dtype=np.int32)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    np.save(work.out / "tokens.npy", table)
    return {"rows": len(rows), "bytes": [len(piece) for piece in chosen], "available_rows": len(pieces)}
