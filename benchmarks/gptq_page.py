"""The figures of `gptq_libraries` as Markdown tables."""

from __future__ import annotations

from benchmarks.document import Json

TEXTS = ("python", "wiki")
NAMES = {
    "llmcompressor": "llm-compressor",
    "gptqmodel": "GPTQModel",
    "autogptq": "auto-gptq",
    "autogptq_one_pass": "auto-gptq, `true_sequential: false`",
    "llmcompressor_in_order": "llm-compressor, `activation_order: false`",
    "gptqmodel_in_order": "GPTQModel, `activation_order: false`",
    "autogptq_in_order": "auto-gptq, `activation_order: false`",
}


def tables(result: Json) -> str:
    """Every case against the base, then every pair."""
    found, spread = result["figures"], result["spread"]

    def cell(name: str) -> str:
        low, high = spread[name]
        digits = 2 if name.endswith("_pct") else 4
        return f"{found[name]:+.{digits}f} ({low:+.{digits}f} to {high:+.{digits}f})"

    def row(first: str, name: str, *more: str) -> str:
        figures = (cell(f"{name}_{text}_{kind}") for kind in ("change_pct", "kl") for text in TEXTS)
        return "| " + " | ".join((first, *figures, *more)) + " |"

    titles = [f"perplexity %, {text}" for text in TEXTS] + [f"KL, {text}" for text in TEXTS]
    cases = [name for name in NAMES if f"{name}_s" in found]
    pairs = [(a, b) for a in cases for b in cases if f"{a}_{b}_same_codes" in found]
    lines = [
        heading("against the base", *titles, "seconds"),
        *(row(NAMES[name], name, f"{found[f'{name}_s']:.0f}") for name in cases),
        "",
        heading("against each other", *titles, "same codes", "same codes, first q_proj"),
        *(
            row(
                f"{NAMES[a]} less {NAMES[b]}",
                f"{a}_{b}",
                f"{100 * found[f'{a}_{b}_same_codes']:.1f} %",
                f"{100 * found[f'{a}_{b}_same_codes_first']:.1f} %",
            )
            for a, b in pairs
        ),
        "",
        f"95 % intervals, paired over units; n = {result['n']}; {result['hardware']['cores']} cores, no GPU.",
        f"`{result['command']}`",
    ]
    return "\n".join(lines)


def heading(*titles: str) -> str:
    return "| " + " | ".join(titles) + " |\n" + "|---" * len(titles) + "|"
