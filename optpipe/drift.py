"""Drift: what a candidate's scored text says against its base's, paired on the same tokens or bytes.

A unit is {"tokens", "nll" (sum, nats), "kl" (sum, nats), "agree" (count)}. The base itself has no "kl" and "agree".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from optpipe import stats
from optpipe.errors import BackendFailed, InputError
from optpipe.records import Json, Measured, TextQuality


def text_quality(
    text: str, base_units: Sequence[Json], candidate_units: Sequence[Json], looks: int = 1
) -> TextQuality:
    """Perplexity, divergence and agreement of a candidate against its base on the same tokens.

    `looks`: how many times at most the verdict is taken while measuring goes on.
    """
    check_pairing(text, base_units, candidate_units)
    tokens = [int(unit["tokens"]) for unit in candidate_units]
    kl, agree = divergence(text, base_units, candidate_units)
    n_tokens = sum(tokens)
    return TextQuality(
        text=text,
        n_tokens=n_tokens,
        n_units=len(tokens),
        perplexity=perplexity(text, sum(unit["nll"] for unit in candidate_units), n_tokens),
        base_perplexity=perplexity(text, sum(unit["nll"] for unit in base_units), n_tokens),
        change_pct=paired_change(base_units, candidate_units, looks),
        kl_divergence=stats.ratio(kl, tokens, looks).measured("nats/token", lambda x: max(0.0, x)),
        top1_agreement=stats.ratio(agree, tokens, looks).measured("fraction", lambda x: min(1.0, max(0.0, x))),
        units=tuple((int(unit["tokens"]), float(unit["nll"])) for unit in candidate_units),
    )


def paired_change(base_units: Sequence[Json], units: Sequence[Json], looks: int = 1) -> Measured:
    """Change of perplexity in per cent: exp of the mean difference of log-likelihood per token, less one."""
    differences = [unit["nll"] - base["nll"] for base, unit in zip(base_units, units, strict=True)]
    interval = stats.ratio(differences, [unit["tokens"] for unit in units], looks)
    return interval.measured("%", lambda x: 100.0 * math.expm1(min(x, 200.0)))


def change_per_byte(base_units: Sequence[Json], units: Sequence[Json], looks: int = 1) -> Measured:
    """The same where the two have tokens of their own: over the same bytes, per token of the base's."""
    differences = [unit["nll"] - base["nll"] for base, unit in zip(base_units, units, strict=True)]
    interval = stats.ratio(differences, [base["tokens"] for base in base_units], looks)
    return interval.measured("%", lambda x: 100.0 * math.expm1(min(x, 200.0)))


def bits_per_byte(units: Sequence[Json], sizes: Sequence[int]) -> float:
    """-log2 of a text's likelihood over its UTF-8 bytes: the same scale for every tokenizer."""
    return math.fsum(unit["nll"] for unit in units) / math.log(2) / sum(sizes)


def check_pairing(text: str, base_units: Sequence[Json], units: Sequence[Json]) -> None:
    """Two scores are comparable if they cover the same units; a figure that is not finite is a failure."""
    if not units or len(base_units) != len(units):
        raise InputError(
            f"base has {len(base_units)} units, candidate {len(units)}; a paired comparison needs the same",
            place=f"text {text}",
        )
    for number, (base, unit) in enumerate(zip(base_units, units)):
        if base["tokens"] != unit["tokens"] or unit["tokens"] < 1:
            raise InputError(
                f"unit {number} has {base['tokens']} tokens for the base, {unit['tokens']} for the candidate",
                place=f"text {text}",
                hint="both must be scored on the same token ids: same tokenizer, BOS and window",
            )
        for name in ("nll", "kl", "agree"):
            value = unit.get(name)
            if value is not None and not math.isfinite(value):
                raise BackendFailed(
                    f"{name} of unit {number} is {value}", place=f"text {text}", transient=False
                )


def divergence(
    text: str, base_units: Sequence[Json], units: Sequence[Json]
) -> tuple[list[float], list[float]]:
    """Per-unit sums of KL and counts of equal top tokens; zero and all for the base against itself."""
    if all(unit.get("kl") is not None and unit.get("agree") is not None for unit in units):
        return [float(unit["kl"]) for unit in units], [float(unit["agree"]) for unit in units]
    if all(base["nll"] == unit["nll"] for base, unit in zip(base_units, units)):
        return [0.0] * len(units), [float(unit["tokens"]) for unit in units]
    raise InputError("the candidate was scored without its base's logits", place=f"text {text}")


def perplexity(text: str, nll: float, tokens: int) -> float:
    """exp(nll / tokens); beyond a double it is a failure, not a figure."""
    mean = nll / tokens
    if not math.isfinite(mean) or mean > 700.0:
        raise BackendFailed(f"perplexity is exp({mean:.4g})", place=f"text {text}", transient=False)
    return math.exp(mean)
