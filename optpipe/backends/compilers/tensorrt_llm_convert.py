"""A Hugging Face folder to TensorRT-LLM's own checkpoint format, up to 1.2; a program of `compile-tensorrt-llm`.

python -m optpipe.backends.compilers.tensorrt_llm_convert MODEL OUT --tp_size N --dtype T --kv_cache_dtype T

Not run on hardware here: written against tensorrt_llm.models of 1.2, as its examples' convert_checkpoint.py use it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

OWN_CONFIG = "hf_quant_config.json"


def quantization(model: Path, kv_cache_dtype: str) -> dict[str, Any]:
    """Keywords of QuantConfig: what ModelOpt says of its checkpoint, and the KV cache that is asked for."""
    path = model / OWN_CONFIG
    told = json.loads(path.read_text(encoding="utf-8"))["quantization"] if path.is_file() else {}
    known = ("quant_algo", "kv_cache_quant_algo", "group_size", "exclude_modules", "has_zero_point", "pre_quant_scale")
    words = {name: told[name] for name in known if told.get(name) is not None}
    return words | ({"kv_cache_quant_algo": "FP8"} if kv_cache_dtype == "fp8" else {})


def convert(model: Path, out: Path, size: int, dtype: str, words: dict[str, Any]) -> None:
    from tensorrt_llm.mapping import Mapping
    from tensorrt_llm.models import AutoModelForCausalLM
    from tensorrt_llm.models.modeling_utils import QuantConfig

    for rank in range(size):
        mapping = Mapping(world_size=size, rank=rank, tp_size=size)
        quant_config = QuantConfig(**words)
        loaded = AutoModelForCausalLM.from_hugging_face(str(model), dtype, mapping=mapping, quant_config=quant_config)
        loaded.save_checkpoint(str(out), save_config=rank == 0)
        del loaded


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="tensorrt_llm_convert")
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--tp_size", type=int, required=True)
    parser.add_argument("--dtype", required=True)
    parser.add_argument("--kv_cache_dtype", required=True)
    said = parser.parse_args(arguments)
    said.out.mkdir(parents=True)
    convert(said.model, said.out, said.tp_size, said.dtype, quantization(said.model, said.kv_cache_dtype))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
