"""What is told of experts that the calibration text did not reach, or hardly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from optpipe.backends.quantizers.llmcompressor_experts import FEW, sentences
from optpipe.report import words
from optpipe.report.markdown import markdown
from tests.report_data import report_data


def table(*counts: int) -> dict[str, Any]:
    place = "model.layers.0.mlp.experts"
    unreached = [f"{place}.{expert}" for expert, n in enumerate(counts) if not n]
    layers = {place: {"tokens": list(counts), "reached": len(counts) - len(unreached), "least": min(counts)}}
    return {
        "layers": layers,
        "calibration_tokens": sum(counts) // 2,
        "unreached": unreached,
        "fallback": "rounded to nearest",
        "few": FEW,
    }


def test_an_expert_without_a_token_is_named_and_one_with_few_is_counted() -> None:
    none, few = sentences(table(4000, FEW - 1, 0, 0))
    assert none == (
        "the calibration text reached 2 of 4 experts; rounded to nearest: model.layers.0.mlp.experts.2, "
        "model.layers.0.mlp.experts.3"
    )
    assert few.startswith(f"1 of 4 experts saw fewer than {FEW} calibration tokens, the least {FEW - 1}")


def test_where_every_expert_saw_enough_nothing_is_said() -> None:
    assert sentences(table(FEW, 4000)) == sentences(None) == []


def test_a_report_tells_what_each_quantizer_noted_and_how_much_more_its_record_holds() -> None:
    data = report_data()
    base, first, *others = data.checkpoints
    noted = replace(first, details={**first.details, "notes": ["one", "two", "three", "four", "five"]})
    told = words.notes(replace(data, checkpoints=(base, noted, *others)))
    lines = [f"{first.name}: {text}" for text in ("one", "two", "three", "2 more notes in its record")]
    assert [note for note in told if note.startswith(f"{first.name}: ")] == lines
    assert f"> - {lines[0]}" in markdown(replace(data, checkpoints=(base, noted, *others)))
