"""Models of `architectures.py` and rows of text for them, as tests use them."""

from __future__ import annotations

import json
import pydoc_data.topics
from pathlib import Path

from tests.models import write_tokenizer
from tests.real import architectures
from tests.real.bodies import in_quantize, run_body

LENGTH = 128


def model(name: str, folder: Path) -> Path:
    """A whole folder: configuration and weights by transformers, our byte-level tokenizer."""
    folder.mkdir(parents=True)
    done = in_quantize(str(Path(architectures.__file__)), name, str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    write_tokenizer(folder)
    return folder


def rows(base: Path, folder: Path) -> dict[str, Path]:
    """Rows of the standard library's help topics: `calibrate` and `score` share none."""
    folder.mkdir(parents=True)
    text = folder / "topics.jsonl"
    topics = [json.dumps({"text": topic}) for _, topic in sorted(pydoc_data.topics.topics.items())]
    text.write_text("\n".join(topics) + "\n", encoding="utf-8")
    found = {}
    for name, first in (("calibrate", 0), ("score", 8)):
        options = {"length": LENGTH, "first_row": first, "rows": 8, "template": False, "min_rows": 8}
        run_body("tokens", folder / name, {"model": base, "text": text}, options)
        found[name] = folder / name / "files"
    return found
