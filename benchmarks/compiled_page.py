"""The figures of `compiled` as Markdown tables."""

from __future__ import annotations

from benchmarks.document import Json

LOADS = {"one": "1 request at once", "four": "4 at once"}
FIGURES = {"ttft": "TTFT, ms (median)", "tpot": "TPOT, ms (median)", "tps": "output tokens/s"}
STARTS = {"eager": "eager", "cold": "compiled, nothing kept", "warm": "compiled, code kept"}


def tables(result: Json) -> str:
    """Figures under load, then starts, then agreement with transformers."""
    found, spread, n = result["figures"], result["spread"], result["n"]

    def row(load: str, figure: str) -> str:
        name = f"{load}_{figure}"
        low, high = spread[name]
        ratio = f"**{found[name]:.2f}** ({low:.2f} to {high:.2f})"
        cells = (f"{LOADS[load]}: {FIGURES[figure]}", found[f"{name}_eager"], found[f"{name}_compiled"], ratio)
        return f"| {' | '.join(map(str, cells))} |"

    def start(kind: str) -> str:
        seconds = spread[f"{kind}_start_s"]
        return f"| {STARTS[kind]} | {found[f'{kind}_start_s']:.0f} ({min(seconds):.0f} to {max(seconds):.0f}) |"

    def agreement(kind: str) -> str:
        return f"{found[f'{kind}_logprob_mean']:.4f} {kind} (P99 {found[f'{kind}_logprob_p99']:.3f})"

    lines = [
        "| under load | eager | compiled | compiled / eager |",
        "|---|---|---|---|",
        *(row(load, figure) for load in LOADS for figure in FIGURES),
        "",
        "| start | seconds to the first answer (least to most) |",
        "|---|---|",
        *map(start, STARTS),
        "",
        f"SmolLM2-135M in bfloat16, one thread, prompts of 128 tokens and answers of 32; n = {n['rounds']} rounds by "
        f"turns, 95 % intervals of the ratio over rounds; n = {n['starts']} starts of each kind; code of "
        f"{found['code_bytes'] / 1e6:.1f} MB. Mean |log-probability - transformers'| over {n['logprobs']} tokens: "
        f"{agreement('eager')}, {agreement('compiled')} nats. {result['hardware']['cores']} cores, no GPU.",
        f"`{result['command']}`",
    ]
    return "\n".join(lines)
