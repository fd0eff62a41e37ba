"""Models of `architectures.py` and rows of text for them, as tests use them."""

from __future__ import annotations

import json
import pydoc_data.topics
from pathlib import Path
from typing import Any

from tests.models import write_tokenizer
from tests.real import architectures
from tests.real.bodies import in_quantize

LENGTH = 128


def model(name: str, folder: Path) -> Path:
    """A whole folder: configuration and weights by transformers, our byte-level tokenizer."""
    folder.mkdir(parents=True)
    done = in_quantize(str(Path(architectures.__file__)), name, str(folder))
    assert done.returncode == 0, done.stderr[-2000:]
    write_tokenizer(folder)
    return folder


def text(folder: Path) -> Path:
    """The standard library's help topics as JSON Lines."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "topics.jsonl"
    topics = [json.dumps({"text": topic}) for _, topic in sorted(pydoc_data.topics.topics.items())]
    path.write_text("\n".join(topics) + "\n", encoding="utf-8")
    return path


def rows(first: int) -> dict[str, Any]:
    """Options of a tokens job: 8 rows from `first` on."""
    return {"length": LENGTH, "first_row": first, "rows": 8, "template": False, "min_rows": 8}
