"""`optpipe init`: a recipe to start from, or the recipe's JSON Schema for editors."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

STARTER = """\
# yaml-language-server: $schema=recipe.schema.json
version: 1
name: {name}

model:
  source: {model}

# What the quantizers see: prompts like those of production, one JSON object with a "text" a line.
calibration:
  text: {{source: calibration.jsonl}}
  samples: 128
  sequence_length: 512

checkpoints:
  gptq-w4: {{method: gptq, bits: 4, group_size: 128}}
  int8: {{method: int8}}

targets:
  vllm: {{engine: vllm}}

# What quality is judged on: never the calibration text.
texts:
  domain: {{source: evaluation.jsonl}}
  python: {{source: python-docs}}

gates: {{preset: default}}
load: {{scenario: steady, concurrency: 8, input_tokens: 512, output_tokens: 128, requests: 200}}
slo: {{ttft_ms: {{p90: 2000}}, tpot_ms: {{p90: 100}}}}
tune: {{trials: 8}}
publish: [{{registry: folder, promote: champion}}]
"""


def init(
    path: Annotated[Path, typer.Argument(help="The recipe to write.")] = Path("recipe.yaml"),
    model: Annotated[str, typer.Option(help="The base model's source.")] = "path/to/model",
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
    write_atomic(path, STARTER.format(name=path.stem.lower().replace(" ", "-"), model=model).encode())
    console.say(f"{path} is written; next: set its model and texts, then `optpipe plan {path}`")
