"""Generated damage of every kind: exit 2 with place, value and hint, never a traceback, nothing begun."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests import models
from tests.unit import mutations
from tests.unit.test_cli_check import INT8, quantized
from tests.unit.test_cli_wrong_models import RECIPE
from tests.unit.wrong import check_refusal, here

SEEDS = (1, 2, 3)
NOWHERE = "toolchains: {quantize: {kind: interpreter, python: nowhere}, vllm: {kind: interpreter, python: nowhere}}\n"
"""So that a build which goes on by mistake ends at once."""

CASES = [(kind, seed) for kind in (*mutations.HEADERS, *mutations.VALUES) for seed in SEEDS]
CASES += [(mutations.not_finite, seed) for seed in range(4, 16)]


def test_there_are_more_than_fifty() -> None:
    assert len(CASES) > 100 and len({kind for kind, _ in CASES}) > 30


@pytest.mark.parametrize(("kind", "seed"), CASES, ids=lambda it: getattr(it, "__name__", str(it)))
def test_a_damaged_model_is_refused(kind: mutations.Kind, seed: int, tmp_path: Path) -> None:
    shown = kind(Random(f"{kind.__name__} {seed}"), tmp_path / "model")
    (tmp_path / "recipe.yaml").write_text(RECIPE + NOWHERE, encoding="utf-8")
    command = "build" if kind in mutations.VALUES else "plan"
    found = here(command, "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    check_refusal(found, tmp_path, *shown)


FILES = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "header", mutations.INDEX]


@pytest.mark.parametrize("seed", range(80))
def test_random_damage_to_json_never_ends_in_a_traceback(seed: int, tmp_path: Path) -> None:
    """What still is a model goes on to the toolchain that is not there; anything else is exit 2 with a hint."""
    random = Random(seed)
    folder = (
        quantized(tmp_path / "model", config_groups={"group_0": INT8})
        if seed % 2
        else models.tiny_llama(tmp_path / "model", shards=2)
    )
    for _ in range(random.randint(1, 3)):
        mutations.damage_json(random, folder, random.choice(FILES))
    (tmp_path / "recipe.yaml").write_text(RECIPE + NOWHERE, encoding="utf-8")
    found = here("build", "recipe.yaml", cwd=tmp_path, home=tmp_path / "home")
    print(found.err)
    assert found.code in (2, 3) and "hint: " in found.err and "Traceback" not in found.err
    assert found.seconds < 10
    checked = here("check", "model", cwd=tmp_path, home=tmp_path / "home")
    assert checked.code in (0, 2, 3) and "Traceback" not in checked.err
