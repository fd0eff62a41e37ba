"""Which rank of how many."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mapping:
    world_size: int
    rank: int
    tp_size: int
