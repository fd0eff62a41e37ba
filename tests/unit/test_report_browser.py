"""The report in a real browser: it fits any width and reads in any theme, without script or requests."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from optpipe.report.page import html
from tests.report_data import report_data
from tests.tools import tool

BROWSERS = ("chromium", "chromium-browser", "google-chrome")

PROBE = """<script>
addEventListener("load", () => {
  const page = document.documentElement, seen = {};
  seen.overflow = page.scrollWidth - page.clientWidth;
  seen.outside = [...document.querySelectorAll("h1, h2, p, dd, figure, pre, .tile, section")]
    .filter(e => e.getBoundingClientRect().right > page.clientWidth + 1).map(e => e.outerHTML.slice(0, 80));
  seen.requests = performance.getEntriesByType("resource").length;
  const rgb = text => text.match(/[\\d.]+/g).map(Number);
  const linear = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const light = c => { const [r, g, b] = c.map(v => linear(v / 255));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const back = e => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c.length === 3) return c; } return [255, 255, 255]; };
  const texts = document.querySelectorAll("p, td, th, dd, dt, small, a, .chip, code, figcaption, li");
  seen.contrast = Math.min(...[...texts]
    .map(e => { const [a, b] = [light(rgb(getComputedStyle(e).color)), light(back(e))].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05); }));
  document.title = "PROBE" + JSON.stringify(seen);
});
</script>"""


def look(folder: Path, width: int, dark: bool) -> dict[str, object]:
    """Lay the page out in a frame of `width` pixels and ask it what it looks like."""
    page = html(report_data()).replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    if dark:
        page = page.replace("@media (prefers-color-scheme: dark)", "@media all")
    (folder / "page.html").write_text(page.replace("</body>", f"{PROBE}</body>"))
    frame = f'<iframe id="f" src="page.html" style="width:{width}px;height:900px;border:0"></iframe>'
    copy = "f.onload = () => setTimeout(() => document.body.dataset.seen = f.contentDocument.title, 200)"
    (folder / "frame.html").write_text(f"<!doctype html><body>{frame}<script>{copy}</script>")
    done = subprocess.run(
        [
            *(tool(*BROWSERS, kind="browser"), "--headless", "--no-sandbox", "--disable-gpu"),
            "--allow-file-access-from-files",
            *(f"--user-data-dir={folder / 'profile'}", f"--window-size={width + 100},1000"),
            *("--virtual-time-budget=5000", "--dump-dom", (folder / "frame.html").as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'data-seen="PROBE(.*?)"', done.stdout)
    assert found, done.stdout[-400:] + done.stderr[-400:]
    seen: dict[str, object] = json.loads(
        found[1].replace("&quot;", '"').replace("&lt;", "<").replace("&gt;", ">")
    )
    return seen


@pytest.mark.parametrize(("width", "dark"), [(360, False), (800, True), (1280, False)])
def test_the_page_fits_and_reads_at_every_width_and_theme(tmp_path: Path, width: int, dark: bool) -> None:
    seen = look(tmp_path, width, dark)
    assert seen["overflow"] == 0
    assert seen["outside"] == []
    assert seen["requests"] == 0
    assert isinstance(seen["contrast"], float) and seen["contrast"] >= 4.5, "WCAG AA for text"
