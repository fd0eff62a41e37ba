"""`quantize-modelopt`: the fake's checkpoint with what ModelOpt writes beside it. Its scales are float32, so the fake
has twice as many."""

from __future__ import annotations

from optpipe.records import Json
from optpipe.worker import Work
from tests.fakes.bodies import quantize
from tests.models import write_json

REVISION = 1
ALGORITHMS = {"awq": "W4A16_AWQ", "fp8": "FP8"}


def run(options: Json, work: Work) -> Json:
    scales = {"group_size": options["group_size"] // 2} if "group_size" in options else {}
    record = quantize.run({**options, **scales}, work)
    told = {"quant_algo": ALGORITHMS[options["method"]], "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
    write_json(work.out / "hf_quant_config.json", {"producer": {"name": "modelopt"}, "quantization": told})
    return {**record, "format": "modelopt"}
