"""What CI systems are told of a run: JUnit XML, annotations, the summary's limit, outputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from optpipe.cli import told
from optpipe.cli.report import with_gate
from optpipe.errors import InputProblems, Problem
from optpipe.gate import Gated
from optpipe.records import Check
from optpipe.report import ci
from optpipe.report.compare import compare
from optpipe.report.data import rows
from optpipe.report.markdown import markdown
from optpipe.report.side import Side
from tests.report_data import report_data

Golden = Callable[[str, str], None]


def test_junit_has_a_case_per_check_and_counts_them() -> None:
    gate = (Check("goodput", "rejected", "goodput 1 against 2 <requests/s> & more\x1b[0m"),)
    top = ElementTree.fromstring(ci.junit(report_data(), gate).encode())
    suites = {suite.get("name"): suite for suite in top}
    assert "gate" in suites and "base@vllm" in suites
    for suite in suites.values():
        assert int(suite.get("tests", "")) == len(suite)
        for word in ("failure", "error", "skipped"):
            attribute = {"failure": "failures", "error": "errors", "skipped": "skipped"}[word]
            assert int(suite.get(attribute, "")) == len(suite.findall(f"testcase/{word}"))
    failure = suites["gate"].find("testcase/failure")
    assert failure is not None and failure.get("message") == "goodput 1 against 2 <requests/s> & more\ufffd[0m"


def test_a_candidate_that_never_ran_is_skipped_with_its_reason() -> None:
    top = ElementTree.fromstring(ci.junit(report_data()).encode())
    skipped = top.findall(".//skipped")
    assert skipped and all(case.get("message") for case in skipped)


def test_a_problem_is_annotated_at_its_line() -> None:
    problem = Problem("recipes/a b.yaml:5:11: checkpoints.w4.bits", "5 is not 4 or 8", "bits: 4")
    assert str(ci.annotation(problem)) == (
        "::error file=recipes/a b.yaml,line=5,col=11,title=optpipe::checkpoints.w4.bits: 5 is not 4 or 8%0Abits: 4"
    )


@pytest.mark.parametrize("text", ["50 %\nmore", "a::set-output name=x::y", "::stop-commands::word", "\r\n::error::x"])
def test_a_text_from_outside_begins_no_command_of_its_own(text: str) -> None:
    line = str(ci.annotation(Problem("", text)))
    assert "\n" not in line and "\r" not in line and line.startswith("::error title=optpipe::")


def test_a_file_name_from_outside_adds_no_property() -> None:
    line = str(ci.annotation(Problem("x,line=1::y.yaml:3:1: name", "wrong")))
    assert line.startswith("::error file=x%2Cline=1%3A%3Ay.yaml,line=3,col=1,title=optpipe::")


def test_outputs_are_one_line_each() -> None:
    found = ci.outputs(report_data(), "sha256:1", "runs/1/package")
    assert found["digest"] == "sha256:1" and found["winner"].endswith("@vllm")
    assert all("\n" not in value for value in found.values())


@pytest.mark.parametrize("size", [100, 5000, 200_000])
def test_a_text_is_cut_at_a_line_within_the_limit_and_says_so(size: int) -> None:
    text = "größer als zuvor\n" * (size // 10)
    found = ci.cut(text, 2000)
    assert len(found.encode()) <= 2000
    assert found == text if len(text.encode()) <= 2000 else found.endswith(ci.CUT)
    assert text.startswith(found.removesuffix(ci.CUT))


def regressed() -> Gated:
    """A gate that was held by measuring, invented like the rest."""
    checks = (
        Check("perplexity on wiki", "passed", "perplexity on wiki +0.4 % is below the gate", 0.4),
        Check("goodput", "rejected", "goodput 2.1 against the champion's 2.8 requests/s (-25 % [-29, -21])", -25.0),
    )
    data = report_data()
    both = [Side(label, data, next(row for row in rows(data) if row.name == name)) for label, name in NAMED]
    name = "imaginary-135m@champion"
    return Gated("run", "sq-w8a8@vllm", name, "sha256:1", "rejected", checks, compare(*both), True)


NAMED = (("imaginary-135m@champion", "gptq-w4@vllm"), ("artifacts/latest", "sq-w8a8@vllm"))


def test_what_a_pull_request_shows(golden: Golden) -> None:
    """The comment, which is the summary too, as a person reads it; and the same for machines."""
    data, gated = report_data(), regressed()
    golden("report/comment.md", ci.comment(with_gate(markdown(data), gated), data.name))
    golden("report/junit.xml", ci.junit(data, gated.checks))


def test_a_comment_says_whose_it_is_so_that_the_next_one_takes_its_place() -> None:
    assert ci.comment("text", "smollm2-135m").splitlines()[0] == "<!-- optpipe: smollm2-135m -->"


def test_errors_of_a_recipe_are_annotated_on_github_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    error = InputProblems((Problem("r.yaml:5:3: name", "wrong", "right"), Problem("r.yaml:7:3: load", "wrong too")))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    assert told(error, []) == 2 and "::error" not in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    told(error, [])
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("::error")]
    assert [line.split(",")[1] for line in lines] == ["line=5", "line=7"]


def test_places_of_checkpoints_are_those_of_the_recipe(tmp_path: Path) -> None:
    data = report_data()
    rejected = [str(notice) for notice in ci.notices(data, {"awq-w4": "r.yaml:12:3: checkpoints.awq-w4"})]
    assert any(line.startswith("::warning file=r.yaml,line=12,col=3") and "awq-w4@vllm" in line for line in rejected)
