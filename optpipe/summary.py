"""The document that `optpipe build --json` ends with; its shape is relied on by others."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from optpipe.bundle import MANIFEST
from optpipe.records import Challenge, Json, Measured, Published, TaskQuality, TextQuality, to_json
from optpipe.report.data import ReportData, Row, read, rows
from optpipe.rundir import digest_file, shown

RATES = ("output_tokens_per_s", "goodput_per_s")
LATENCIES = ("ttft_ms", "tpot_ms", "e2e_ms")


NOTHING: Json = {
    "run": None,
    "verdict": "failed",
    "winner": None,
    "candidates": {},
    "tuned": None,
    "jobs": {"run": 0, "kept": 0},
    "seconds": {"install": 0.0, "build": 0.0},
    "bundle": None,
    "digest": None,
    "published": [],
}
"""Of a build that ended before it began."""


def summary(data: ReportData, folder: Path, jobs: Mapping[str, int]) -> Json:
    """Run, verdict, winner, every candidate with its figures, what was tuned, bundled and published."""
    winner, bundle = next((row for row in rows(data) if row.winner), None), folder / "package"
    whole = (bundle / MANIFEST).is_file()
    return {
        "run": shown(folder),
        "verdict": data.verdict,
        "winner": winner.name if winner else None,
        "candidates": {row.name: candidate(row) for row in rows(data)},
        "tuned": tuned(winner) if winner else None,
        "jobs": dict(jobs),
        "seconds": data.seconds,
        "bundle": shown(bundle) if whole else None,
        "digest": digest_file(bundle / MANIFEST) if whole else None,
        "published": [published(*pair) for pair in zip(data.published, data.challenges)],
    }


def broken_off(folder: Path, jobs: Mapping[str, int], seconds: Json) -> Json:
    """The same of a build that an error ended: what its records say, and no winner that was not packaged."""
    if not (folder / "02-plan.json").exists():
        run = shown(folder) if folder.is_dir() else None
        return {**NOTHING, "run": run, "jobs": dict(jobs), "seconds": seconds}
    found = {**summary(read(folder), folder, jobs), "seconds": seconds}
    return found if found["bundle"] else {**found, "verdict": "failed", "winner": None, "tuned": None}


def candidate(row: Row) -> Json:
    """What is known of one candidate; null where it did not get so far."""
    found: Json = {
        "status": row.status,
        "reasons": list(row.reasons),
        "model_digest": row.model_digest,
        "bytes": row.bytes,
        "bits_per_weight": row.bits_per_weight,
    }
    texts = row.evaluation.texts if row.evaluation else ()
    found["perplexity"] = {text.text: perplexity(text) for text in texts}
    for name in ("kl_divergence", "top1_agreement"):
        found[name] = {t.text: {"value": getattr(t, name).value, "ci95": getattr(t, name).ci95} for t in texts}
    found["tasks"] = {t.task: task(t) for t in (row.evaluation.tasks if row.evaluation else ())}
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


def published(found: Published, against: Challenge) -> Json:
    """Where the version went, and how it did against the champion there; null where there was none."""
    told = {"champion": against.champion, "passed": against.passed, "reasons": [c.reason for c in against.checks]}
    return {**to_json(found), "challenge": told if against.champion or against.checks else None}


def task(found: TaskQuality) -> Json:
    """One task's figures; the change and the items that changed are null and empty for the base."""
    change = found.change_points
    return {
        **(figure(found.accuracy) or {}),
        "metric": found.metric,
        "version": found.version,
        "change_points": change.value if change else None,
        "ci95_points": change.ci95 if change else None,
        "lost": found.lost,
        "won": found.won,
        "p_different": found.p_different,
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
