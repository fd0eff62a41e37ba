"""What can work, before anything runs: every check of a candidate, with what was looked at and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from optpipe.model import compat_table, machine, reasons
from optpipe.model.architectures import multimodal_reasons, onnxruntime_reasons, transformers_reasons, vllm_reasons
from optpipe.model.compat_table import Asked, Row, Status
from optpipe.model.job_memory import quantize_memory
from optpipe.model.linears import is_head
from optpipe.model.memory import serving_memory, setting, show, usable_memory, width
from optpipe.model.reasons import Reason
from optpipe.model.schemes import data_free, kind_of, layout_of, parts, selected, stored_as
from optpipe.model.selectors import matched, text_of
from optpipe.records import Hardware, Json, ModelFacts

TITLES = {"vllm": "vLLM", "tensorrt_llm": "TensorRT-LLM", "onnxruntime": "ONNX Runtime GenAI"}


@dataclass(frozen=True)
class Case:
    """One candidate on one machine; `versions` are those of what is installed, where that is known."""

    facts: ModelFacts
    scheme: Json | None
    target: Mapping[str, Any]
    hardware: Hardware
    versions: Mapping[str, str] = field(default_factory=dict)
    rows: tuple[int, int] = (0, 0)
    """Calibration rows and the tokens of each."""
    own_code: bool = False
    """The model's own code may run, so that nothing is known of its architecture."""

    @property
    def engine(self) -> str:
        return str(self.target.get("engine", "vllm"))

    @property
    def platform(self) -> str:
        if self.hardware.gpus == 0:
            return "a CPU"
        return f"{self.hardware.gpu} (compute capability {self.hardware.compute_capability})"

    def asked(self, value: str = "") -> Asked:
        """The question to the table: the scheme as its library writes it, or the base as it is stored."""
        stored = stored_as(self.facts.quantized)
        plain = Asked(
            self.engine,
            self.hardware,
            self.versions.get(self.engine),
            value=value,
            model=self.facts.model_type,
            experts=self.facts.experts > 0,
            stacked=self.facts.stacked_experts > 0,
            multimodal=self.facts.multimodal,
        )
        if self.scheme is None:
            return replace(plain, scheme=stored.kind, library="", format=stored.format, symmetric=stored.symmetric)
        library = str(self.scheme.get("library", "llmcompressor"))
        layout = layout_of(self.scheme)
        asked = replace(plain, scheme=kind_of(self.scheme), library=library, format="", symmetric=layout.symmetric)
        made = compat_table.first(compat_table.tables().writes, asked)
        return replace(asked, format=made.makes if made else "")


@dataclass(frozen=True)
class Finding:
    """One check: what it was, what was looked at, and the outcome; `slow` works, but not as one would hope."""

    check: str
    value: str
    outcome: Status
    reason: str = ""
    nearest: str | None = None
    source: str = ""


@dataclass(frozen=True)
class Feasibility:
    """Every reason against a candidate, and what works but not as one would hope."""

    refused: tuple[Reason, ...]
    notes: tuple[str, ...]


def feasibility(case: Case) -> Feasibility:
    """Whether a candidate can work: pure, from facts, the keys of scheme and target, and the machine."""
    found = findings(case)
    against = (f for f in found if f.outcome == "no")
    return Feasibility(
        tuple(Reason(f"{f.reason} ({f.source})" if f.source else f.reason, f.nearest) for f in against),
        tuple(f.reason for f in found if f.outcome == "slow"),
    )


def findings(case: Case) -> tuple[Finding, ...]:
    """Every check that is made for a candidate, in the order in which the line would meet it."""
    found = architecture_findings(case)
    if case.scheme is not None:
        found += scheme_findings(case, case.scheme)
    return (*found, *engine_findings(case), *machine_findings(case))


def judged(check: str, value: str, against: Iterable[Reason]) -> list[Finding]:
    """One finding for each reason against it, else that it is fine."""
    found = [Finding(check, value, "no", no.reason, no.nearest) for no in against]
    return found or [Finding(check, value, "ok")]


def by_row(check: str, value: str, row: Row | None, otherwise: Finding) -> Finding:
    return Finding(check, value, row.status, row.reason, row.nearest, row.source) if row else otherwise


# ---------------------------------------------------------------- the model and the scheme


def architecture_findings(case: Case) -> list[Finding]:
    facts = case.facts
    name = f"{facts.architecture} ({facts.model_type})"
    if case.own_code:
        return [Finding("architecture", f"{name}, by its own code", "ok")]
    found = [as_tried(case)]
    if "transformers" in case.versions:
        title = f"architecture in transformers {case.versions['transformers']}"
        found += judged(title, name, transformers_reasons(facts))
    if case.engine == "vllm" and "vllm" in case.versions:
        found += judged(f"architecture in vLLM {case.versions['vllm']}", name, vllm_reasons(facts))
    if case.engine == "onnxruntime" and (release := case.versions.get("onnxruntime-genai")):
        found += judged(f"architecture in onnxruntime-genai {release}", name, onnxruntime_reasons(facts))
    if case.engine == "vllm" and facts.multimodal:
        against = multimodal_reasons(facts, case.target, case.versions)
        found += judged("what vLLM needs of a multimodal model", "processor files, torchvision", against)
    return found


def as_tried(case: Case) -> Finding:
    """What a model of this architecture did when it was tried with this scheme on this engine."""
    asked, mixture = case.asked(), f", {case.facts.experts} experts" if case.facts.experts else ""
    mixture += ", those of a layer in one tensor" if asked.stacked else ""
    mixture += f", in {case.facts.architecture}" if asked.multimodal else ""
    value = f"{asked.model}{mixture}: {asked.scheme} on {case.engine} and {case.platform}"
    otherwise = Finding("architecture as it was tried", f"{value}, not tried", "ok")
    row = compat_table.first(compat_table.tables().architectures, asked)
    return by_row("architecture as it was tried", value, row, otherwise)


def scheme_findings(case: Case, scheme: Json) -> list[Finding]:
    """What the scheme asks of the model, on any engine."""
    facts = case.facts
    stored = facts.quantized or facts.dtype
    found = judged("base as it is stored", stored, reasons.base_reasons(facts))
    if found[0].outcome == "no":
        return found
    asked = case.asked()
    row = compat_table.first(compat_table.tables().writes, asked)
    assert row is not None, "the table ends with a row that takes anything"
    found.append(by_row("library", f"{asked.scheme} by {asked.library}, {asked.format or 'no'} format", row, found[0]))
    tied = "tied" if facts.tied_embeddings else "a head of its own"
    found += judged("embeddings", tied, reasons.head_reasons(facts, scheme))
    linears, names = selected(facts, scheme), [name for name, _, _ in facts.linears]
    shown = f"{len(linears)} of {len(names)} linear layers; {ignored(scheme, names)}"
    found += judged("layers", shown, reasons.selection_reasons(facts, scheme))
    sizes = ", ".join(str(size) for size in sorted({inputs for _, _, inputs in linears}))
    group = f"{labels(facts, scheme)}, input sizes {sizes}"
    found += judged("group size", group, reasons.layout_reasons(facts, scheme))
    chosen = {name for name, _, _ in linears}
    together = {key for name in names if (key := reasons.fused_key(name))}
    found += judged("layers that engines fuse", f"{len(together)} groups", reasons.fused_reasons(names, chosen))
    return found


def labels(facts: ModelFacts, scheme: Json) -> str:
    """What the scheme makes, in the field's words; a mixed one with how many layers get which."""
    each = parts(facts, scheme)
    if len(each) < 2:
        return layout_of(scheme).label
    return " and ".join(f"{layout.label} in {len(linears)}" for layout, linears in each)


def ignored(scheme: Json, names: list[str]) -> str:
    """What each selector of `ignore` matches."""
    parts = []
    for selector in scheme.get("ignore", ("lm_head",)):
        hits = matched([selector], names)
        parts.append(f"{text_of(selector)} keeps {len(hits)} ({reasons.some(hits) or 'none'})")
    return "; ".join(parts) or "nothing is ignored"


# ---------------------------------------------------------------- the engine


def engine_findings(case: Case) -> list[Finding]:
    """What the table says of scheme, dtype and KV cache, and what the kernels' sizes allow."""
    table, asked = compat_table.tables(), case.asked()
    where = (
        f"{TITLES.get(case.engine, case.engine)} {asked.version or 'of a version that is not known'} on {case.platform}"
    )
    unknown = Finding(
        "scheme on engine", where, "no",
        f"{asked.scheme} on {case.engine} and {case.platform} is not in the table of what is known",
        "engine: vllm", compat_table.FILE.name,
    )  # fmt: skip
    if case.engine not in table.engines:
        reason = f"nothing is known of {case.engine} and what it loads: it is tried"
        unknown = Finding("scheme on engine", where, "slow", reason, None, compat_table.FILE.name)
    what = asked.scheme if asked.scheme == "base" else f"{asked.scheme} in {asked.format} format"
    found = [by_row("scheme on engine", f"{what}, {where}", compat_table.first(table.loads, asked), unknown)]
    for name, rows in (("dtype", table.dtypes), ("kv_cache_dtype", table.kv_cache)):
        value = str(setting(case.target, name) or "auto")
        row = compat_table.first(rows, case.asked(value)) if value != "auto" else None
        found.append(by_row(name, value, row, Finding(name, value, "ok")))
    if case.engine == "vllm":
        found += judged("head size", str(case.facts.head_dim), reasons.attention_reasons(case.facts, case.hardware))
    return found + kernel_findings(case)


def kernel_findings(case: Case) -> list[Finding]:
    facts = case.facts
    if case.scheme is not None:
        against = reasons.kernel_reasons(facts, case.scheme, case.target, case.hardware)
        return judged("sizes that the kernel takes", labels(facts, case.scheme), against)
    layout = stored_as(facts.quantized).layout
    if layout is None or case.engine != "vllm":
        return []
    packed = [linear for linear in facts.linears if not is_head(linear[0])]
    against = reasons.vllm_kernel_reasons(layout, packed, case.hardware)
    return judged("sizes that the kernel takes", layout.label, against)


# ---------------------------------------------------------------- the machine


def machine_findings(case: Case) -> list[Finding]:
    """Devices, length and memory."""
    facts, scheme, target, hardware = case.facts, case.scheme, case.target, case.hardware
    widths = " x ".join(f"{kind} {width(target, kind)}" for kind in ("tensor", "pipeline", "data"))
    devices = f"{widths}, {hardware.gpus} GPUs, {facts.heads} heads, {facts.kv_heads} key-value heads"
    found = judged("parallelism", devices, machine.parallel_reasons(facts, scheme, target, hardware))
    length = machine.length_of(facts, target)
    longest = f"{length} tokens of {facts.max_positions or 'an unknown number'}"
    found += judged("length", longest, machine.length_reasons(facts, target))
    needed = serving_memory(facts, scheme, target, hardware, 1, length)
    usable = usable_memory(hardware, needed.devices)
    serving = f"{show(needed.total)} of {show(usable)} ({needed.estimated().how})"
    found += judged("memory to serve", serving, machine.serving_reasons(facts, scheme, target, hardware))
    if scheme is not None and not facts.quantized:
        rows = (0, 0) if data_free(scheme) else case.rows
        memory = f"{show(quantize_memory(facts, scheme, *rows).value)} of {show(hardware.memory_bytes)}"
        against = machine.quantizing_reasons(facts, scheme, hardware, *rows)
        found += judged("memory to quantize", memory, against)
    return found


# ---------------------------------------------------------------- elsewhere


def elsewhere(case: Case) -> tuple[str, ...]:
    """Where the table says that this runs, in words: engine, platform, compute capability."""
    asked, found = case.asked(), []
    for row in compat_table.tables().loads:
        if row.status == "no" or row.engine is None:
            continue
        for place in places(row):
            there = Asked(**{**vars(asked), "engine": row.engine, "hardware": place, "version": None})
            if compat_table.first(compat_table.tables().loads, there) is row:
                found.append(f"{TITLES.get(row.engine, row.engine)} on {wanted(row, place)}")
    return tuple(dict.fromkeys(found))


def places(row: Row) -> list[Hardware]:
    """The smallest machines that a row speaks of."""
    cpu = Hardware("a CPU", "any", 1, 1, "other")
    gpu = Hardware("a GPU", "any", 1, 1, "other", "NVIDIA GPU", 1, 1, str(max(row.capability[0], 7.0)))
    return {"cpu": [cpu], "cuda": [gpu], "any": [cpu, gpu]}[row.platform]


def wanted(row: Row, place: Hardware) -> str:
    if not place.gpus:
        return "a CPU"
    low, high = row.capability
    above = f" of compute capability {low:g} or more" if low else ""
    return f"an NVIDIA GPU{above}{f', below {high:g}' if high < 99 else ''}"
