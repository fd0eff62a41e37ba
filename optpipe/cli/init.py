"""`optpipe init`: a recipe to start from, or the recipe's JSON Schema for editors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import typer

STARTER = """\
# yaml-language-server: $schema=recipe.schema.json
# (`optpipe init --schema > recipe.schema.json` lets editors complete and check the keys.)
version: 1
name: {name}

# 1. The base model: a folder, a .gguf file, hf:owner/name@commit, or a member of a package.
model:
  source: {model}

# 2. What the quantizers see: prompts like those of production, one JSON object with a "text" a line.
calibration:
  text: {{source: calibration.jsonl}}
  samples: 128
  sequence_length: 512

checkpoints:
  gptq-w4: {{method: gptq, bits: 4, group_size: 128}}
  int8: {{method: int8}}

targets:
  vllm: {{engine: vllm}}

# What quality is judged on: never the calibration text. Add one of your own.
texts:
  python: {{source: python-docs}}
  # domain: {{source: evaluation.jsonl}}

gates: {{preset: default}}
load: {{scenario: steady, concurrency: 8, input_tokens: 512, output_tokens: 128, requests: 200}}
slo: {{ttft_ms: {{p90: 2000}}, tpot_ms: {{p90: 100}}}}
tune: {{trials: 8}}
publish: [{{registry: folder, promote: champion}}]
"""
MODEL = "path/to/model"


def init(
    path: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path("recipe.yaml"),
    model: Annotated[str, typer.Option(help="The base model's source.")] = MODEL,
    schema: Annotated[bool, typer.Option("--schema", help="Print the recipe's JSON Schema instead.")] = False,
) -> None:
    """Write a recipe to start from."""
    from optpipe import console
    from optpipe.errors import InputError
    from optpipe.rundir import write_atomic

    if schema:
        from optpipe.recipe.reference import json_schema

        console.emit(json_schema())
        return
    if path.exists():
        raise InputError(f"{path} is there already", hint="name another file; nothing was changed")
    name = re.sub(r"[^a-z0-9._-]+", "-", path.stem.lower()).strip("._-")[:63] or "model"
    write_atomic(path, STARTER.format(name=name, model=json.dumps(model, ensure_ascii=False)).encode())
    todo = "set its calibration text" if model != MODEL else "set its model and its calibration text"
    console.say(f"{path} is written; next: {todo}, then `optpipe plan {path}`")
