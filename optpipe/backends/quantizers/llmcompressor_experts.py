"""Which experts of a mixture the calibration text reaches, by the router's own choice. Imports torch lazily.

llm-compressor 0.14 shows every token to every expert while it calibrates, so that no expert is without
statistics; what an expert's router never sent to it is other experts' text all the same. So the choices are
counted, GPTQ rounds an expert that was never chosen to nearest, and the record says which.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from optpipe.records import Json

FEW = 256
"""Tokens under which an expert's calibration is called thin: the least that a unit of scored text has."""


@dataclass
class Coverage:
    """Tokens that the router sent to each expert of a layer: `chosen` by the module that holds the experts."""

    chosen: dict[str, Any] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)

    def add(self, layer: str, picks: Any, experts: int) -> None:
        """picks: the experts of each token, integers [tokens, experts per token]."""
        counted = picks.flatten().bincount(minlength=experts)
        self.chosen[layer] = self.chosen[layer] + counted if layer in self.chosen else counted
        self.seen[layer] = self.seen.get(layer, 0) + len(picks)

    def reached(self, module: str) -> bool:
        """False for a layer of an expert that the router never chose."""
        layer, _, rest = module.rpartition(".experts.")
        counts = self.chosen.get(f"{layer}.experts")
        return counts is None or not layer or int(counts[int(rest.partition(".")[0])]) > 0

    def record(self, rounded: bool) -> Json | None:
        """The table that the job's record keeps; `rounded`: unreached experts were rounded to nearest."""
        if not self.chosen:
            return None
        layers = {
            name: {"tokens": counts.tolist(), "reached": int((counts > 0).sum()), "least": int(counts.min())}
            for name, counts in self.chosen.items()
        }
        unreached = [
            f"{name}.{expert}" for name, one in layers.items() for expert, n in enumerate(one["tokens"]) if not n
        ]
        return {
            "layers": layers,
            "calibration_tokens": max(self.seen.values()),
            "unreached": unreached,
            "fallback": ("rounded to nearest" if rounded else "calibrated on other experts' tokens"),
            "few": FEW,
        }


def sentences(found: Json | None) -> list[str]:
    """What a reader must know of a coverage record: experts without a token of theirs, and with few."""
    if found is None:
        return []
    every = [n for one in found["layers"].values() for n in one["tokens"]]
    told, total, none = [], len(every), len(found["unreached"])
    if none:
        named = ", ".join(found["unreached"][:2]) + (", ..." if none > 2 else "")
        told.append(f"the calibration text reached {total - none} of {total} experts; {found['fallback']}: {named}")
    few = [n for n in every if 0 < n < found["few"]]
    if few:
        least = f"{len(few)} of {total} experts saw fewer than {found['few']} calibration tokens, the least {min(few)}"
        told.append(f"{least}: more `calibration.samples` would show them more")
    return told


@contextmanager
def counted(model: Any, tokens: int) -> Iterator[Coverage]:
    """Counts the routers' choices while the first `tokens` tokens pass each layer: passes repeat, the text does not."""
    import torch
    from llmcompressor.modeling.moe.linear_experts import LinearExperts2D

    coverage = Coverage()

    def count(name: str, experts: int) -> Any:
        def hook(module: Any, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            tensors = [one for one in (*args, *named.values()) if isinstance(one, torch.Tensor)]
            picks = [one for one in tensors if not one.is_floating_point()]
            if picks and coverage.seen.get(name, 0) < tokens:
                coverage.add(name, picks[0], experts)

        return hook

    held = [(name, one) for name, one in model.named_modules() if isinstance(one, LinearExperts2D)]
    hooks = [one.register_forward_pre_hook(count(name, one.num_experts), with_kwargs=True) for name, one in held]
    try:
        yield coverage
    finally:
        for hook in hooks:
            hook.remove()
