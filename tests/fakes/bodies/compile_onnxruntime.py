"""`compile-onnxruntime`: the checkpoint with a file that stands for the graph. Orders are obeyed at `compile`."""

from __future__ import annotations

import json
import shutil

from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes import orders

REVISION = 1


def run(options: Json, work: Work) -> Json:
    orders.obey("compile", str(options["accuracy_level"]), work.folder.name.split(".")[0])
    shutil.copytree(work.inputs["model"], work.out, dirs_exist_ok=True)
    (work.out / "model.onnx").write_text(json.dumps(options))
    return {"nodes": {"MatMul": 1}, "repacked": False, "limits": {"max_model_len": 2048}, "command": "builder"}
