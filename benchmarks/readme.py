"""Figures in the README and in docs, from the committed results: `python -m benchmarks.readme` writes them, `--check`
compares."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import fill

from benchmarks import compiled_page, gptq_page
from benchmarks.document import RESULTS, Json

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGES = (README, ROOT / "docs" / "gptq-libraries.md", ROOT / "docs" / "compiled.md")
"""Every page with marked places."""
WIDTH = 118
MARK = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def by_hand(result: Json) -> str:
    found, spread = result["figures"], result["spread"]
    saved = found["by_hand_s"] - found["build_s"]
    parts = (
        f"{found['side_by_side_s']:.0f} s are work done side by side",
        f"{found['not_done_twice_s']:.0f} s work not done twice or not at all (engines kept, checks that still "
        "hold, no engine for what its perplexity rejects)",
        f"{found['same_work_s']:.0f} s the same work in less time",
    )
    return (
        f"`optpipe build recipes/{result['recipe']}` took {found['build_s']:.0f} s where a competent engineer's "
        f"script for the same candidates, tokens, loads and trials took {found['by_hand_s']:.0f} s: a ratio of "
        f"**{found['ratio']:.2f}** ({spread['ratio_min']:.2f} to {spread['ratio_max']:.2f}, n = {result['n']} pairs, "
        f"medians; {result['hardware']['cores']} cores, no GPU). Of the {saved:.0f} s saved, {', '.join(parts)}.\n"
        f"`{result['command']}`"
    )


def tuner(result: Json) -> str:
    found = result["figures"]
    return (
        f"In simulation ({result['n']} invented response surfaces with noise) the tuner keeps after 4 and 12 trials "
        f"{100 * found['gp_4']:.0f} and {100 * found['gp_12']:.0f} % of the best configuration's goodput; the default "
        f"has {100 * found['default_share']:.0f} %.\n`{result['command']}`"
    )


def verdicts(result: Json) -> str:
    found, n = result["figures"], result["n"]
    shares = {name: f"{100 * found[name]:.1f} % (n = {n[name]})" for name in n}
    return (
        f"In simulation the gates reject {shares['false_alarm_rate']} of the candidates that are well inside, pass "
        f"{shares['wrong_pass_rate']} of those exactly at the limit, and reject {shares['found_rate']} of those at "
        f"twice the limit.\n`{result['command']}`"
    )


SENTENCES: dict[str, Callable[[Json], str]] = {
    "compiled": compiled_page.tables,
    "by_hand": by_hand,
    "tuner": tuner,
    "verdicts": verdicts,
    "gptq_libraries": gptq_page.tables,
}


def filled(text: str) -> str:
    """A page's text with every marked place written anew; rows of tables stay on their lines."""

    def sentence(place: re.Match[str]) -> str:
        name = place[2]
        result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
        lines = SENTENCES[name](result).splitlines()
        wrapped = "\n".join(
            line if line.startswith("|") else fill(line, WIDTH, break_on_hyphens=False) for line in lines
        )
        return f"{place[1]}{wrapped}\n{place[3]}"

    return MARK.sub(sentence, text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 where a page says other figures")
    check = parser.parse_args().check
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        wanted = filled(text)
        if not check:
            page.write_text(wanted, encoding="utf-8")
        elif wanted != text:
            sys.exit(f"{page.relative_to(ROOT)} is not current: python -m benchmarks.readme")


if __name__ == "__main__":
    main()
