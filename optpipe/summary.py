"""The document that `optpipe build --json` ends with; its shape is relied on by others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optpipe.outcome import Outcome
from optpipe.records import Json, Measured, TextQuality, to_json
from optpipe.report.data import ReportData, Row, rows
from optpipe.rundir import shown

RATES = ("output_tokens_per_s", "goodput_per_s")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


def summary(out: Outcome, data: ReportData, folder: Path, jobs: Mapping[str, int]) -> Json:
    """Run, verdict, winner, every candidate with its figures, what was tuned, bundled and published."""
    winner = next((row for row in rows(data) if row.winner), None)
    return {
        "run": shown(folder),
        "verdict": data.verdict,
        "winner": winner.name if winner else None,
        "candidates": {row.name: candidate(row) for row in rows(data)},
        "tuned": tuned(winner) if winner else None,
        "jobs": dict(jobs),
        "seconds": data.seconds,
        "bundle": shown(out.bundle.path) if out.bundle else None,
        "digest": out.bundle.digest if out.bundle else None,
        "published": to_json(out.published),
    }


def candidate(row: Row) -> Json:
    """What is known of one candidate; null where it did not get so far."""
    checkpoint = row.checkpoint
    found: Json = {
        "status": row.status,
        "reasons": list(row.reasons),
        "model_digest": checkpoint.model_digest if checkpoint else None,
        "bytes": checkpoint.bytes if checkpoint else None,
        "bits_per_weight": checkpoint.bits_per_weight if checkpoint else None,
    }
    texts = row.evaluation.texts if row.evaluation else ()
    found["perplexity"] = {text.text: perplexity(text) for text in texts}
    for name in ("kl_divergence", "top1_agreement"):
        found[name] = {t.text: {"value": getattr(t, name).value, "ci95": getattr(t, name).ci95} for t in texts}
    figures = row.serving.figures if row.serving else None
    found |= {name: figure(getattr(figures, name, None)) for name in RATES}
    found |= {name: getattr(figures, name, None) for name in LATENCIES}
    return dict(to_json(found))


def figure(measured: Measured | None) -> Json | None:
    if measured is None:
        return None
    return {"value": measured.value, "ci95": measured.ci95, "n": measured.n, "unit": measured.unit}


def perplexity(text: TextQuality) -> Json:
    change = text.change_pct
    return {
        "value": text.perplexity,
        "change_pct": change.value,
        "ci95_pct": change.ci95,
        "n_tokens": text.n_tokens,
        "n_units": text.n_units,
    }


def tuned(row: Row) -> Json | None:
    if row.tuning is None or row.candidate is None:
        return None
    return {
        "engine": row.candidate.engine["engine"],
        "config": row.tuning.config,
        "default_goodput": to_json(figure(row.tuning.default_goodput)),
        "tuned_goodput": to_json(figure(row.tuning.tuned_goodput)),
    }
