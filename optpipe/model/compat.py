"""What can work, before anything runs: a scheme on a model, an engine (`compat_table.py`), a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from optpipe.model.compat_table import DTYPE_ROWS, KV_ROWS, SCHEME_ROWS, Row
from optpipe.model.memory import setting
from optpipe.model.reasons import Reason, kernel_reasons, memory_reasons, scheme_reasons
from optpipe.model.schemes import layout_of
from optpipe.records import Hardware, Json, ModelFacts


@dataclass(frozen=True)
class Compat:
    """One verdict; `slow` runs without the speed that one would quantize for."""

    status: Literal["ok", "slow", "no"]
    reason: str
    nearest: str | None
    source: str


FINE = Compat("ok", "", None, "")


@dataclass(frozen=True)
class Feasibility:
    """Every reason against a candidate, and what works but not as one would hope."""

    refused: tuple[Reason, ...]
    notes: tuple[str, ...]


def feasibility(
    facts: ModelFacts, scheme: Json | None, target: Mapping[str, Any], hardware: Hardware
) -> Feasibility:
    """Whether a candidate can work: pure, from facts, the keys of scheme and target, and the machine."""
    verdicts = (
        verdict(scheme, target, hardware),
        dtype_verdict(target, hardware),
        kv_verdict(target, hardware),
    )
    refused = [Reason(f"{v.reason} ({v.source})", v.nearest) for v in verdicts if v.status == "no"]
    refused += memory_reasons(facts, scheme, target, hardware)
    if scheme is not None:
        refused += scheme_reasons(facts, scheme)
        refused += kernel_reasons(facts, scheme, target, hardware)
    return Feasibility(tuple(refused), tuple(v.reason for v in verdicts if v.status == "slow"))


def verdict(scheme: Json | None, target: Mapping[str, Any], hardware: Hardware) -> Compat:
    """Whether the target's engine runs checkpoints of this scheme on this hardware."""
    engine = str(target.get("engine", "vllm"))
    row = first_row(SCHEME_ROWS, kind_of(scheme), engine, hardware)
    if row is None:
        reason = (
            f"{kind_of(scheme)} on {engine} and {platform_of(hardware)} is not in the table of what is known"
        )
        return Compat("no", reason, "engine: vllm", "optpipe/model/compat_table.py")
    return Compat(row.status, row.reason, row.nearest, row.source)


def dtype_verdict(target: Mapping[str, Any], hardware: Hardware) -> Compat:
    """Whether the target's dtype runs there."""
    return setting_verdict(DTYPE_ROWS, "dtype", target, hardware)


def kv_verdict(target: Mapping[str, Any], hardware: Hardware) -> Compat:
    """Whether the target's KV cache dtype runs there."""
    return setting_verdict(KV_ROWS, "kv_cache_dtype", target, hardware)


def setting_verdict(
    rows: tuple[Row, ...], name: str, target: Mapping[str, Any], hardware: Hardware
) -> Compat:
    """The row for a setting's value; a value without a row is fine."""
    value = str(setting(target, name) or "auto")
    row = first_row(rows, value, str(target.get("engine", "vllm")), hardware)
    return Compat(row.status, row.reason, row.nearest, row.source) if row else FINE


def first_row(rows: tuple[Row, ...], what: str, engine: str, hardware: Hardware) -> Row | None:
    return next((row for row in rows if row.fits(what, engine, hardware)), None)


def kind_of(scheme: Json | None) -> str:
    """The table's word for a scheme: base, w4a16, w8a16, int8, fp8 ..."""
    if scheme is None:
        return "base"
    layout = layout_of(scheme)
    if layout.activation_bits == 8:
        return "fp8" if layout.kind == "float" else "int8"
    return f"w{layout.bits}a16"


def platform_of(hardware: Hardware) -> str:
    if hardware.gpus == 0:
        return "a CPU"
    return f"{hardware.gpu} (compute capability {hardware.compute_capability})"
