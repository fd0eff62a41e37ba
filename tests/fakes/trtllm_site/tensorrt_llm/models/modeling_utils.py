"""The keywords that QuantConfig takes; any other is an error, as there."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class QuantConfig:
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int | None = None
    exclude_modules: list[str] | None = None
    has_zero_point: bool = False
    pre_quant_scale: bool = False

    def __post_init__(self) -> None:
        if self.quant_algo not in (None, "FP8", "NVFP4", "W4A16_AWQ", "W4A8_AWQ"):
            raise ValueError(f"no such quant_algo: {self.quant_algo}")

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
