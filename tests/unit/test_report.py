"""Reports: the same records give the same bytes, no figure stands alone, nothing is fetched or run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from optpipe.errors import InputError
from optpipe.records import Candidate, Check, Estimated, Measured, Percentiles, Selection
from optpipe.report import bounds, figures
from optpipe.report.data import ReportData, layout, read, rows
from optpipe.report.markdown import markdown
from optpipe.report.page import html
from optpipe.report.plots import quality_against_size, ticks
from optpipe.report.summary import summarize
from optpipe.rundir import write_json
from tests.report_data import report_data

Golden = Callable[[str, str], None]
VOID = {"meta", "br", "link", "img", "hr"}


class Page(HTMLParser):
    """Every tag, attribute and table of a page, and whether the tags close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"


def unfinished() -> ReportData:
    """A build that was over before anything was measured."""
    empty = replace(report_data(), evaluations=(), servings=(), tunings=(), checkpoints=(), failures={})
    return replace(empty, selection=None, confirmation=None, published=())


@pytest.mark.parametrize("name", ["report.html", "report.md"])
def test_the_report_is_what_was_last_looked_at(golden: Golden, name: str) -> None:
    write = {"report.html": html, "report.md": markdown}[name]
    golden(f"report/{name}", write(report_data()))


@pytest.mark.parametrize("data", [report_data(), unfinished(), report_data().for_bundle()])
def test_the_page_is_whole_and_needs_nothing_else(data: ReportData) -> None:
    page = Page(html(data))
    assert page.open == []
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "img", "object"), f"<{tag}> in the report"
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        assert "://" not in (attributes.get("href") or "")
    assert "url(" not in html(data) and "@import" not in html(data)


def test_tables_have_headers_and_pictures_have_words() -> None:
    page = Page(html(report_data()))
    headers = [attributes.get("scope") for tag, attributes in page.tags if tag == "th"]
    assert headers and set(headers) == {"col", "row"}
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    idents = {attributes.get("id") for _, attributes in page.tags}
    assert len(pictures) == 2
    for picture in pictures:
        assert picture["role"] == "img"
        assert set((picture["aria-labelledby"] or "").split()) <= idents
    assert dict(page.tags)["html"] == {"lang": "en"}


def test_what_comes_from_outside_cannot_become_markup() -> None:
    evil = '<script>alert("1")</script>|`x`\n# y'
    data = report_data()
    feasible = tuple(
        replace(plan, candidate=replace(plan.candidate, name=f"{evil}@vllm")) if number == 5 else plan
        for number, plan in enumerate(data.plan.feasible)
    )
    plan = replace(data.plan, feasible=feasible, warnings=(evil,))
    evil_data = replace(data, plan=plan, failures={f"{evil}@vllm": evil}, name=evil)
    assert "<script" not in html(evil_data)
    text = markdown(evil_data)
    assert "<script" not in text and "\n# y" not in text
    table = [line for line in text.splitlines() if "alert" in line and line.startswith("| ")]
    assert table and all(len(re.findall(r"(?<!\\)\|", line)) == 8 for line in table)


def test_every_candidate_stands_in_the_table_with_its_reason() -> None:
    data = report_data()
    for text in (html(data), markdown(data)):
        for row in rows(data):
            assert row.name in text
            assert row.reasons and all(reason.split("'")[0] in text for reason in row.reasons)


def test_rows_begin_with_the_winner_and_end_with_what_never_ran() -> None:
    statuses = [row.status for row in rows(report_data())]
    assert rows(report_data())[0].winner
    assert statuses == ["passed"] * 3 + ["inconclusive", "rejected", "failed", "skipped", "skipped"]


def test_estimates_look_different_from_measurements() -> None:
    page = html(report_data())
    assert '<span class="est" title="estimated: shapes x bits of the scheme">about 121 MB</span>' in page
    assert "about 121 MB" in markdown(report_data())


def test_a_percentile_with_too_few_requests_says_so() -> None:
    latency = Percentiles(120.0, None, None, None, 24)
    assert [figures.at(latency, p) for p in figures.PERCENTILES] == [
        "120 ms",
        "n too small: 24 of 100",
        "n too small: 24 of 200",
        "n too small: 24 of 1,000",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01312, "0.0131"), (4.518, "4.52"), (83.14, "83.1"), (1204.4, "1,204"), (-2.5, "−2.50"), (0.0, "0")],
)
def test_numbers_show_three_digits(value: float, text: str) -> None:
    assert figures.number(value) == text


def test_a_figure_is_written_with_interval_unit_and_n() -> None:
    assert figures.whole(Measured(83.14, (80.2, 86.03), 24, "tokens/s")) == "83.1 tok/s [80.2, 86.0] n=24"
    assert figures.whole(Measured(0.951, (0.93, 0.96), 32, "fraction")) == "95.1 % [93.0, 96.0] n=32"
    assert figures.whole(Measured(3.1, None, 12, "%"), sign=True) == "+3.10 % no interval n=12"
    assert figures.estimate(Estimated(114.2e6, "bytes", "shapes")) == "about 114 MB"


def test_better_is_claimed_only_where_the_interval_says_so() -> None:
    tiles = {tile.label: tile for tile in summarize(report_data()).tiles}
    assert tiles["Output throughput"].better is True
    assert tiles["Perplexity, worst text"].better is False
    data = report_data()
    wide = [
        replace(s, figures=replace(s.figures, output_tokens_per_s=Measured(80.0, (40.0, 120.0), 3, "tokens/s")))
        for s in data.servings
        if s.figures
    ]
    open_tiles = {tile.label: tile for tile in summarize(replace(data, servings=tuple(wide))).tiles}
    assert open_tiles["Output throughput"].better is None


@pytest.mark.parametrize(
    ("winner", "statuses", "verdict"),
    [
        (None, ("rejected", "inconclusive"), "inconclusive"),
        (None, ("rejected", "failed"), "rejected"),
        (None, ("failed", "failed"), "failed"),
        ("base@vllm", ("passed", "failed"), "selected"),
    ],
)
def test_the_verdict_follows_from_the_candidates(winner: str | None, statuses: tuple[str, str], verdict: str) -> None:
    data = report_data()
    ranks = (data.selection or Selection(None, "", (), "")).ranks[:2]
    names = ("base@vllm", "int8@vllm")
    made = [replace(r, candidate=n, status=s) for r, n, s in zip(ranks, names, statuses)]  # type: ignore[arg-type]
    feasible = tuple(plan for plan in data.plan.feasible if plan.candidate.name in names)
    selection = Selection(winner, "goodput", tuple(made), "because")
    case = replace(data, plan=replace(data.plan, feasible=feasible), selection=selection, published=())
    assert case.verdict == verdict
    assert verdict in html(case)


def test_a_base_that_wins_is_called_so() -> None:
    data = report_data()
    assert data.selection is not None
    summary = summarize(replace(data, selection=replace(data.selection, winner="base@vllm"), tunings=()))
    assert summary.title == "base@vllm: the base model itself, with its engine settings"
    assert "Perplexity, worst text" not in [tile.label for tile in summary.tiles]


def test_records_come_back_from_a_run_folder(tmp_path: Path) -> None:
    data = report_data()
    folder = tmp_path / (data.run or "")
    for name, record in layout(data).items():
        write_json(folder / name, record)
    run = {key: getattr(data, key) for key in ("recipe", "hardware", "versions", "command", "failures", "seconds")}
    write_json(folder / "run.json", run)
    write_json(folder / "publish.json", {"published": data.published})
    write_json(folder / "estimates.json", data.compared)
    again = read(folder)
    assert markdown(again) == markdown(data)
    assert {row.name: row.status for row in rows(again)} == {row.name: row.status for row in rows(data)}


@pytest.mark.parametrize("files", [{}, {"run.json": {"recipe": {"name": "x"}}}])
def test_a_folder_with_nothing_to_report_is_an_input_error(tmp_path: Path, files: dict[str, object]) -> None:
    for name, content in files.items():
        write_json(tmp_path / name, content)
    with pytest.raises(InputError) as error:
        read(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_a_run_that_ended_early_still_has_a_report() -> None:
    assert "No candidate could be measured" in html(unfinished())
    assert "was not run" in markdown(unfinished())


# ---------------------------------------------------------------- pictures


@pytest.mark.parametrize("values", [[114.0, 269.0], [0.0, 0.0], [5.0, 5.0], [-3.0, 2.0], [1e-4, 3e-4], [1e9, 3e9]])
def test_ticks_are_round_and_span_the_values(values: list[float]) -> None:
    found = ticks(values)
    assert found[0] <= min(values) and max(values) <= found[-1]
    assert 3 <= len(found) <= 9


def test_labels_do_not_lie_on_each_other() -> None:
    data = report_data()
    plot = quality_against_size(rows(data), data)
    assert plot is not None and plot.y_line is not None
    spots = [(mark.label_x, mark.label_y) for mark in plot.marks]
    assert len({round(y / 10) for _, y in spots} | {x for x, _ in spots}) >= len(spots)
    assert all(0 <= mark.x <= plot.box["width"] and 0 <= mark.y <= plot.box["height"] for mark in plot.marks)


def test_one_point_is_no_picture() -> None:
    data = report_data()
    assert quality_against_size(rows(data)[:1], data) is None


def test_a_gate_of_its_own_per_candidate_is_not_drawn_as_one_line() -> None:
    data = report_data()
    other = Check("perplexity on wiki", "passed", "below", 1.0, 7.0)
    first = replace(data.evaluations[0], checks=(*data.evaluations[0].checks, other))
    plot = quality_against_size(rows(data), replace(data, evaluations=(first, *data.evaluations[1:])))
    assert plot is not None and plot.y_line is None


def test_the_base_is_known_by_having_no_scheme() -> None:
    base = next(row for row in rows(report_data()) if row.is_base)
    assert base.candidate == Candidate("base@vllm", "base", "vllm", None, base.candidate.engine)  # type: ignore[union-attr]


def test_estimates_beyond_their_aim_stand_out_and_those_without_an_aim_are_told() -> None:
    text = markdown(report_data())
    assert "| base | bytes | 273 MB | 269 MB | +1.30 % |" in text
    assert "| sq-w8a8@vllm | engine memory | 3.00 GB | 3.60 GB | **−16.7 %, beyond 15 %** |" in text
    assert "| build | seconds | 25 min | 20 min 10 s | +24.0 % |" in text
    assert "Estimates against what was measured" in html(report_data())


def test_what_was_served_stands_beside_the_hardware_s_bounds() -> None:
    found = {(line.candidate, line.figure): line for line in bounds.lines(report_data(), rows(report_data()))}
    line = found["base@vllm", "Decoding"]
    assert line.measured.startswith("75.7 tok/s (TPOT P50 52.9 ms, 4 at once)")
    bound = 4 * 40e9 / (269_030_016 + 4 * 144 * 23_040)
    assert line.bound == f"about {bound:.0f} tokens/s" and line.share == f"{100 * 75.7 / bound:.0f} %"
    assert "TTFT P50, n=100" in found["base@vllm", "First token"].measured
    one_core = bounds.engine_machine(report_data())
    assert one_core.cores == 1, "the engine has one thread by default"
