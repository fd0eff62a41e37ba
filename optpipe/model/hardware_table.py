"""Named machines and what their parts can do at most: the vendors' own figures, dense, without sparsity."""

from __future__ import annotations

from dataclasses import dataclass

from optpipe.records import Hardware

GB = 10**9
GIB = 1 << 30
T = 10**12


@dataclass(frozen=True)
class Peaks:
    """What one device can do at most: bytes a second from memory, operations a second by number type."""

    bandwidth: float
    bf16: float
    int8: float
    fp8: float
    """0 where the device does not compute in FP8."""
    source: str


GPU_PEAKS: dict[str, Peaks] = {
    "A10": Peaks(600 * GB, 125 * T, 250 * T, 0, "NVIDIA A10 data sheet"),
    "L4": Peaks(300 * GB, 121 * T, 242 * T, 242 * T, "NVIDIA L4 data sheet, half of the sparse figures"),
    "L40S": Peaks(864 * GB, 362 * T, 733 * T, 733 * T, "NVIDIA L40S data sheet"),
    "T4": Peaks(320 * GB, 65 * T, 130 * T, 0, "NVIDIA T4 data sheet; FP16, the T4 has no BF16"),
    "V100": Peaks(900 * GB, 125 * T, 0, 0, "NVIDIA V100 data sheet; FP16, the V100 has no BF16"),
    "A100 40GB": Peaks(1555 * GB, 312 * T, 624 * T, 0, "NVIDIA A100 data sheet, SXM 40 GB"),
    "A100 80GB": Peaks(2039 * GB, 312 * T, 624 * T, 0, "NVIDIA A100 data sheet, SXM 80 GB"),
    "H100": Peaks(3350 * GB, 989 * T, 1979 * T, 1979 * T, "NVIDIA H100 data sheet, SXM, half of the sparse figures"),
    "H200": Peaks(4800 * GB, 989 * T, 1979 * T, 1979 * T, "NVIDIA H200 data sheet, SXM, half of the sparse figures"),
    "B200": Peaks(8000 * GB, 2250 * T, 4500 * T, 4500 * T, "NVIDIA DGX B200 data sheet, one of eight GPUs"),
    "RTX 3090": Peaks(936 * GB, 71 * T, 284 * T, 0, "NVIDIA GA102 white paper"),
    "RTX 4090": Peaks(1008 * GB, 165 * T, 661 * T, 661 * T, "NVIDIA Ada white paper"),
}
"""By the name that nvidia-smi gives, from its start or within it; the longest that fits is taken."""

CPU_CORE_PEAKS: dict[str, Peaks] = {
    "amx": Peaks(40 * GB, 3500 * GB, 7000 * GB, 0, "AMX: 1024 BF16 operations a cycle at 3.5 GHz"),
    "avx512_bf16": Peaks(40 * GB, 450 * GB, 900 * GB, 0, "AVX-512 BF16: 128 operations a cycle at 3.5 GHz"),
    "avx512": Peaks(40 * GB, 225 * GB, 450 * GB, 0, "AVX-512: 64 float32 operations a cycle at 3.5 GHz"),
    "avx2": Peaks(40 * GB, 110 * GB, 220 * GB, 0, "AVX2: 32 float32 operations a cycle at 3.5 GHz"),
    "other": Peaks(20 * GB, 28 * GB, 28 * GB, 0, "8 float32 operations a cycle at 3.5 GHz"),
}
"""Bounds for one core by its widest instruction set; a core of this kind was seen to read 37 GB/s."""

CPU_BANDWIDTH = {"avx2": 90 * GB, "other": 50 * GB}
"""What the memory gives to all cores together: two channels of DDR5; else CPU_SERVER_BANDWIDTH."""

CPU_SERVER_BANDWIDTH = 460 * GB
"""Twelve channels of DDR5-4800."""


def gpu(name: str, card: str, count: int, memory_gib: float, capability: str, host_gib: int) -> Hardware:
    """One row of the table: `count` cards in a host of 8 cores a card."""
    return Hardware(
        name=name,
        cpu="x86-64 server",
        cores=8 * count,
        memory_bytes=host_gib * GIB,
        instruction_set="avx512",
        gpu=f"NVIDIA {card}",
        gpus=count,
        gpu_memory_bytes=int(memory_gib * GIB),
        compute_capability=capability,
    )


MACHINES: dict[str, Hardware] = {
    machine.name: machine
    for machine in (
        gpu("t4", "T4", 1, 15, "7.5", 32),
        gpu("v100", "V100 16GB", 1, 16, "7.0", 64),
        gpu("a10", "A10", 1, 22.5, "8.6", 64),
        gpu("l4", "L4", 1, 22.5, "8.9", 64),
        gpu("l40s", "L40S", 1, 45, "8.9", 128),
        gpu("rtx3090", "RTX 3090", 1, 24, "8.6", 64),
        gpu("rtx4090", "RTX 4090", 1, 24, "8.9", 64),
        gpu("a100-40g", "A100 40GB", 1, 40, "8.0", 128),
        gpu("a100-80g", "A100 80GB", 1, 80, "8.0", 128),
        gpu("a100-80gx8", "A100 80GB", 8, 80, "8.0", 1024),
        gpu("h100", "H100 80GB", 1, 80, "9.0", 192),
        gpu("h100x8", "H100 80GB", 8, 80, "9.0", 1536),
        gpu("h200", "H200", 1, 140, "9.0", 192),
        gpu("h200x8", "H200", 8, 140, "9.0", 1536),
        gpu("b200", "B200", 1, 179, "10.0", 256),
        gpu("b200x8", "B200", 8, 179, "10.0", 2048),
        Hardware("laptop-cpu", "x86-64 laptop", 8, 16 * GIB, "avx2"),
        Hardware("server-cpu", "x86-64 server", 32, 128 * GIB, "avx512_bf16"),
    )
}
"""Machines that `--hardware` knows by name. Memory is what the driver shows, a little under the label's."""
