"""Texts with too few units are refused with how many there are; one that ends early leaves a verdict open."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.fakes.place import Place, write_text

UNIT = 128


def test_a_text_with_too_few_units_is_an_input_error_that_counts_them(fresh: Callable[..., Place]) -> None:
    place = fresh()
    place.recipe["scoring"] = {"units": 5000, "unit_tokens": UNIT, "max_units": 5000}
    short = place.build()
    assert short.code == 2 and not place.artifacts.exists()
    found = re.search(r"texts\.stories: (\d+) documents of (\d+) bytes are too few; 5000 rows", short.err)
    assert found, short.err
    assert place.log() == [], "no toolchain is started for a text that is too short for any tokenizer"

    units = int(found[2]) // UNIT  # the bytes would do, were they all tokens
    place.recipe["scoring"] = {"units": units, "unit_tokens": UNIT, "max_units": units}
    counted = place.build()
    assert counted.code == 2, counted.err
    assert re.search(rf"recipe\.yaml:1:\d+: texts\.stories: {found[1]} documents fill \d+ rows;", counted.err)
    assert f"{units} rows of {UNIT} tokens are asked for" in counted.err and "hint: give a longer" in counted.err


def test_too_few_calibration_rows_are_an_input_error(fresh: Callable[..., Place]) -> None:
    place = fresh()
    place.recipe["calibration"] |= {"samples": 60000}
    done = place.build()
    assert done.code == 2 and "calibration.text: " in done.err and "60000 rows of 64 tokens" in done.err


def test_a_text_that_ends_before_the_verdict_gives_all_its_units(fresh: Callable[..., Place]) -> None:
    """The gate is put where the candidate is, so that no number of units decides."""
    place = fresh()
    write_text(place.root / "text.jsonl", documents=38)
    place.recipe["checkpoints"].pop("int8")
    place.recipe["gates"] = {"perplexity_increase_pct": 1000, "kl_divergence": 9, "top1_agreement": 0}
    first = place.build().said["candidates"]["w4@vllm"]
    assert first["perplexity"]["stories"]["n_units"] == 32
    place.recipe["gates"]["kl_divergence"] = first["kl_divergence"]["stories"]["value"]
    done = place.build()
    assert done.status("w4@vllm") in ("inconclusive", "passed", "rejected"), done.reasons("w4@vllm")
    assert 32 < done.said["candidates"]["w4@vllm"]["perplexity"]["stories"]["n_units"] < 64
