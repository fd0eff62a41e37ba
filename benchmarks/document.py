"""The one JSON document that every benchmark prints, and its raw data beside it."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
Json = dict[str, Any]


def main(
    name: str, measure: Callable[[], Json], figures: Callable[[Json], Json], packages: tuple[str, ...]
) -> None:
    """`measure` makes the raw data, `figures` the document's figures, n and spread from it alone.

    --json prints the document; --save keeps it and its raw data; --from-raw computes from what is kept.
    """
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--json", action="store_true", help="print the document and nothing else")
    parser.add_argument(
        "--save", action="store_true", help="keep document and raw data in benchmarks/results"
    )
    parser.add_argument("--from-raw", action="store_true", help="compute the figures from the kept raw data")
    args = parser.parse_args()
    kept = RESULTS / f"{name}.raw.json"
    raw = json.loads(kept.read_text()) if args.from_raw else measure()
    document = {"name": name, **figures(raw), "hardware": hardware(), "versions": versions(packages)}
    document["command"] = f".venv/bin/python -m benchmarks.{name} --json"
    text = json.dumps(document, indent=2)
    if args.save:
        RESULTS.mkdir(exist_ok=True)
        kept.write_text(json.dumps(raw, separators=(",", ":")) + "\n")
        (RESULTS / f"{name}.json").write_text(text + "\n")
    sys.stdout.write(text + "\n")


def hardware() -> Json:
    return {"machine": platform.machine(), "cores": os.cpu_count(), "system": platform.system()}


def versions(packages: tuple[str, ...]) -> Json:
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}
