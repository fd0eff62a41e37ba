"""Generated mistakes in recipes and texts: exit 2 with file, line and column, or file and row; never a traceback."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests import models
from tests.unit.mutations import ODD
from tests.unit.test_cli_wrong_models import RECIPE
from tests.unit.wrong import ROOT, check_refusal, here

DEMO = (ROOT / "recipes" / "demo.yaml").read_text(encoding="utf-8")
KEY = re.compile(r"(?<=[{,] )([a-z_]{5,})(?=: )|^ *([a-z_]{5,})(?=: )", re.MULTILINE)


def misspelled(random: Random, word: str) -> str:
    """A word with two letters swapped, one left out, or one twice."""
    at = random.randrange(1, len(word) - 1)
    return random.choice([word[:at] + word[at + 1 :], word[:at] + word[at] + word[at:], word + "s"])


def keys_of(text: str) -> list[tuple[int, int]]:
    """Where the schema's own keys stand; names that the recipe gives itself are no mistakes."""
    own = {"default", "python", "folder"}
    return [m.span(m.lastindex or 0) for m in KEY.finditer(text) if m.group(m.lastindex or 0) not in own]


@pytest.mark.parametrize("seed", range(30))
def test_a_misspelled_key_is_found_at_its_place_with_the_right_one(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    start, end = random.choice(keys_of(DEMO))
    word = misspelled(random, DEMO[start:end])
    (tmp_path / "recipe.yaml").write_text(DEMO[:start] + word + DEMO[end:], encoding="utf-8")
    line = DEMO[:start].count("\n") + 1
    found = here("plan", "recipe.yaml", "--check", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, word, f"did you mean '{DEMO[start:end]}'", place=rf"recipe\.yaml:{line}:\d+: ")


VALUE = re.compile(r"(?<=: )([a-z0-9][\w.-]*)(?=[,}\n])")


@pytest.mark.parametrize("seed", range(40))
def test_an_odd_value_anywhere_is_taken_or_refused_at_its_place(seed: int, tmp_path: Path) -> None:
    random = Random(seed)
    start, end = random.choice([m.span() for m in VALUE.finditer(DEMO)])
    value = json.dumps(random.choice(ODD))
    (tmp_path / "recipe.yaml").write_text(DEMO[:start] + value + DEMO[end:], encoding="utf-8")
    found = here("plan", "recipe.yaml", "--check", cwd=tmp_path, home=tmp_path / "home")
    print(value, found.err)
    assert found.code in (0, 2) and "Traceback" not in found.err
    if found.code == 2:
        check_refusal(found, tmp_path, place=r"(?m)^(error: )?recipe\.yaml:\d+:\d+: ")


# ---------------------------------------------------------------- texts

ROWS = [{"text": f"a sentence about number {k} and nothing else. " * 4} for k in range(200)]


def lines(rows: list[object]) -> bytes:
    return "\n".join(json.dumps(row) for row in rows).encode()


def at_random(random: Random, row: object) -> list[object]:
    found: list[object] = list(ROWS)
    found[random.randrange(len(ROWS))] = row
    return found


TEXTS: dict[str, tuple[str, Callable[[Random], bytes], tuple[str, ...]]] = {
    "another column": ("t.jsonl", lambda r: lines(at_random(r, {"content": "x"})), ("no column 'text'", "content")),
    "a number": ("t.jsonl", lambda r: lines(at_random(r, {"text": r.randrange(99)})), ("expected text or messages",)),
    "a chat without roles": ("t.jsonl", lambda r: lines(at_random(r, {"text": [{"to": 1}]})), ("role and content",)),
    "a row cut short": ("t.jsonl", lambda r: lines(ROWS[:7])[: -r.randint(2, 60)], ("t.jsonl:7", "not JSON")),
    "not UTF-8": ("t.txt", lambda r: b"words " * r.randint(1, 99) + b"caf\xe9 \n", ("not UTF-8", "iconv")),
    "not gzip": ("t.jsonl.gz", lambda r: lines(ROWS), ("not a whole gzip file",)),
    "gzip cut short": ("t.jsonl.gz", lambda r: gzip.compress(lines(ROWS))[: -r.randint(1, 200)], ("gzip",)),
    "blank rows": ("t.jsonl", lambda r: lines([{"text": r.choice(["", " ", None, []])}] * 50), ("empty", "'text'")),
    "too few": ("t.jsonl", lambda r: lines(ROWS[: r.randint(1, 5)]), ("rows of 256 tokens",)),
    "a parquet file": ("t.parquet", lambda r: b"PAR1" + r.randbytes(99), ("Parquet is not read",)),
    "a number of 5000 digits": ("t.jsonl", lambda r: b'{"text": ' + b"7" * 5000 + b"}", ("t.jsonl:1",)),
    "nested too deep": ("t.json", lambda r: b"[" * 90_000, ("t.json", "not JSON")),
    "neither list nor mapping": ("t.json", lambda r: r.choice([b"7", b'"x"', b"true", b"null"]), ("the JSON is a",)),
}  # fmt: skip


@pytest.mark.parametrize("seed", (1, 2))
@pytest.mark.parametrize("kind", TEXTS)
def test_a_wrong_text_is_refused_by_plan_and_build(kind: str, seed: int, tmp_path: Path) -> None:
    name, make, shown = TEXTS[kind]
    models.tiny_llama(tmp_path / "model")
    (tmp_path / name).write_bytes(make(Random(seed)))
    recipe = RECIPE.replace("python: {source: python-docs, part: score}", f"mine: {{source: {name}}}")
    (tmp_path / "recipe.yaml").write_text(recipe, encoding="utf-8")
    for command in ("plan", "build"):
        found = here(command, "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
        check_refusal(found, tmp_path, *shown)
