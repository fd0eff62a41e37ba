"""The machine: this one as it is, or another by name or file, as far as plans and keys care."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

from optpipe.errors import EnvironmentMissing, InputError, did_you_mean
from optpipe.model.hardware_table import (
    CPU_BANDWIDTH,
    CPU_CORE_PEAKS,
    CPU_SERVER_BANDWIDTH,
    GPU_PEAKS,
    MACHINES,
    Peaks,
)
from optpipe.records import Hardware, from_json

X86_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "avx_vnni")
TILE_FLAGS = ("amx_tile", "amx_bf16", "amx_int8")
ARM_FLAGS = ("asimd", "asimddp", "bf16", "i8mm", "sve", "sve2")
FLAGS = X86_FLAGS + TILE_FLAGS + ARM_FLAGS
"""Processor flags that change which kernels run or what they round, x86 and Arm; the others are left out."""

HERE = "this machine"

FIELDS = "name,memory.total,driver_version,compute_cap"
MIB = 1 << 20


def this_machine() -> Hardware:
    """Processor, cores that this process may use, memory that it may use, GPUs if nvidia-smi is there."""
    gpu = gpus()
    return Hardware(
        name=HERE,
        cpu=processor()[0],
        cores=len(os.sched_getaffinity(0)),
        memory_bytes=memory_bytes(),
        instruction_set=instruction_set(),
        **gpu,
    )


def instruction_set() -> str:
    """The processor's flags among FLAGS, `avx2 avx512f ...`; where it has none, what kind of machine it is."""
    _, flags = processor()
    return " ".join(flag for flag in FLAGS if flag in flags) or platform.machine()


def processor() -> tuple[str, set[str]]:
    """The processor's name and flags from /proc/cpuinfo."""
    fields: dict[str, str] = {}
    path = Path("/proc/cpuinfo")
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else ():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or fields.get("CPU part") or platform.processor() or platform.machine()
    return name, set((fields.get("flags") or fields.get("Features") or "").split())


def memory_bytes(root: Path = Path("/sys/fs/cgroup")) -> int:
    """Physical memory, or less where a control group limits this process."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        path = root / name
        text = path.read_text(encoding="ascii").strip() if path.is_file() else ""
        if text.isdigit():
            total = min(total, int(text))
    return total


def gpus() -> dict[str, Any]:
    """The GPU fields of Hardware; none where there is no nvidia-smi or it finds no card."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return {}
    command = [tool, f"--query-gpu={FIELDS}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except subprocess.TimeoutExpired:
        raise EnvironmentMissing("nvidia-smi did not answer within 30 s", hint="the driver hangs: reboot") from None
    return parse_gpus(done.stdout) if done.returncode == 0 else {}


def parse_gpus(text: str) -> dict[str, Any]:
    """The GPU fields from nvidia-smi's lines; of unlike cards those of the kind that stands first."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 3]
    rows = visible(rows, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not rows:
        return {}
    same = [row for row in rows if row[0] == rows[0][0]]
    name, memory, driver, capability = same[0]
    return {
        "gpu": name,
        "gpus": len(same),
        "gpu_memory_bytes": int(float(memory)) * MIB if memory.replace(".", "").isdigit() else 0,
        "compute_capability": capability,
        "driver": driver,
    }


def visible(rows: list[list[str]], devices: str | None) -> list[list[str]]:
    """The cards that CUDA_VISIBLE_DEVICES leaves: by number, or as many as it names by identifier."""
    if devices is None:
        return rows
    parts = [part.strip() for part in devices.split(",")]
    numbers = [int(part) for part in parts if part.isdigit()]
    identifiers = sum(part.startswith(("GPU-", "MIG-")) for part in parts)
    return [rows[number] for number in numbers if number < len(rows)] + rows[:identifiers]


# ---------------------------------------------------------------- other machines


def named(name_or_file: str) -> Hardware:
    """A machine from the table, or from a YAML or JSON file with the fields of `Hardware`."""
    if name_or_file in MACHINES:
        return MACHINES[name_or_file]
    path = Path(name_or_file)
    if path.suffix in (".yaml", ".yml", ".json"):
        return from_file(path)
    raise InputError(
        f"--hardware {name_or_file!r} is no machine that is known",
        hint=f"{did_you_mean(name_or_file, [*MACHINES])} A YAML or JSON file describes a machine of your own",
    )


def from_file(path: Path) -> Hardware:
    """A machine of one's own: `base:` names one of the table to start from; the other keys are Hardware's."""
    values = read_file(path)
    base = values.pop("base", None)
    if base is not None and base not in MACHINES:
        raise InputError(f"base: {base!r} is not known", place=str(path), hint=did_you_mean(str(base), [*MACHINES]))
    start = {} if base is None else {key: getattr(MACHINES[base], key) for key in Hardware.__dataclass_fields__}
    defaults = {"name": path.stem, "cpu": "unknown", "instruction_set": "other"}
    merged = {**(start or defaults), **({"name": path.stem} if start else {}), **values}
    check_fields(merged, path)
    return from_json(Hardware, merged)


def read_file(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", place=str(path), hint="name a file that is there"
        ) from None
    import yaml

    try:
        values = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (json.JSONDecodeError, yaml.YAMLError) as error:
        first = str(error).splitlines()[0]
        raise InputError(f"cannot be read: {first}", place=str(path), hint="YAML or JSON is expected") from None
    if not isinstance(values, dict):
        raise InputError(f"{values!r:.60} is not a mapping", place=str(path), hint="keys such as cores, memory_bytes")
    return values


def check_fields(values: dict[str, Any], path: Path) -> None:
    """Unknown keys, missing ones and values of the wrong type, by name."""
    fields = {name: str(field.type) for name, field in Hardware.__dataclass_fields__.items()}
    for key, value in values.items():
        if key not in fields:
            raise InputError(f"{key}: no such key", place=str(path), hint=did_you_mean(key, [*fields]))
        number = fields[key] == "int"
        if number and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
            raise InputError(f"{key}: {value!r:.60} is not a whole number", place=str(path), hint="bytes, or a count")
        if not number and not isinstance(value, str | None):
            raise InputError(f"{key}: {value!r:.60} is not a text", place=str(path), hint='put it in "quotes"')
    for key in ("cores", "memory_bytes"):
        if not values.get(key):
            raise InputError(f"{key} is missing", place=str(path), hint=f"add `{key}:`, or `base:` and a known machine")


# ---------------------------------------------------------------- peaks


def peaks(hardware: Hardware) -> Peaks | None:
    """What all devices of the machine can do together; None for a GPU that the table does not know."""
    if hardware.gpus:
        one = GPU_PEAKS.get(gpu_key(hardware) or "")
        return scaled(one, hardware.gpus, one.source) if one else None
    kind = instruction_class(hardware.instruction_set)
    one = CPU_CORE_PEAKS[kind]
    whole = scaled(one, hardware.cores, f"{one.source}, times {hardware.cores} cores")
    return replace(whole, bandwidth=min(whole.bandwidth, CPU_BANDWIDTH.get(kind, CPU_SERVER_BANDWIDTH)))


def scaled(one: Peaks, count: int, source: str) -> Peaks:
    return Peaks(one.bandwidth * count, one.bf16 * count, one.int8 * count, one.fp8 * count, source)


def gpu_key(hardware: Hardware) -> str | None:
    """The table's name of a card: the longest whose words all stand in the driver's name."""
    words = set((hardware.gpu or "").replace("-", " ").split())
    found = [key for key in GPU_PEAKS if set(key.split()) <= words]
    if not found and "A100" in words:
        return "A100 80GB" if hardware.gpu_memory_bytes > 50 << 30 else "A100 40GB"
    return max(found, key=len, default=None)


def instruction_class(instruction_set: str) -> str:
    """The row of CPU_CORE_PEAKS for a list of flags."""
    flags = set(instruction_set.split())
    if "amx_bf16" in flags:
        return "amx"
    if "avx512_bf16" in flags:
        return "avx512_bf16"
    if flags & {"avx512f", "avx512"}:
        return "avx512"
    return "avx2" if flags & {"avx2", "asimd"} else "other"
