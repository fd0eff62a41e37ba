"""What a CI job shows of a run: JUnit XML, annotations at the recipe's lines, a summary, outputs for later steps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from xml.etree import ElementTree

from optpipe.errors import Problem
from optpipe.records import Check
from optpipe.report.data import ReportData, Row, rows

SUMMARY_LIMIT = 1 << 20
"""Bytes that GitHub takes of a step's summary."""
COMMENT_LIMIT = 65_000
"""Characters; GitHub takes 65,536 of a comment."""
CUT = "\n\n(cut: the whole report is among the run's artifacts)\n"
ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, escaped or not."""
PLACE = re.compile(r"(?P<file>.+?):(?P<line>\d+)(?::(?P<column>\d+))?(?:: (?P<key>.*))?")


# ---------------------------------------------------------------- JUnit


def junit(data: ReportData, gate: Sequence[Check] = ()) -> str:
    """A test case per check of each candidate, and per check of the gate; what was not decided is an error."""
    top = ElementTree.Element("testsuites", name=f"optpipe {data.name}")
    for row in rows(data):
        checks = row.evaluation.checks if row.evaluation else ()
        suite(top, row.name, (*checks, *unrun(row)))
    if gate:
        suite(top, "gate", gate)
    ElementTree.indent(top)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(top, encoding="unicode") + "\n"


def unrun(row: Row) -> Iterator[Check]:
    """Of a candidate that was refused or that a backend failed for, the reason as a check."""
    if row.status in ("skipped", "failed"):
        yield Check("the line", row.status, "; ".join(row.reasons))


TAGS = {"rejected": "failure", "failed": "error", "inconclusive": "error", "skipped": "skipped"}


def suite(top: ElementTree.Element, name: str, checks: Sequence[Check]) -> None:
    counts = {tag: sum(TAGS.get(check.status) == tag for check in checks) for tag in ("failure", "error", "skipped")}
    attributes = {"failures": counts["failure"], "errors": counts["error"], "skipped": counts["skipped"]}
    told = {key: str(value) for key, value in {"tests": len(checks), **attributes}.items()}
    found = ElementTree.SubElement(top, "testsuite", {"name": legal(name), **told})
    for check in checks:
        case = ElementTree.SubElement(found, "testcase", {"classname": legal(name), "name": legal(check.name)})
        if check.status in TAGS:
            ElementTree.SubElement(case, TAGS[check.status], {"message": legal(check.reason), "type": check.status})


def legal(text: str) -> str:
    return ILLEGAL.sub("\N{REPLACEMENT CHARACTER}", text)


# ---------------------------------------------------------------- GitHub


@dataclass(frozen=True)
class Annotation:
    """A message at a place in the repository; GitHub shows it in the diff."""

    level: str
    message: str
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """The workflow command; what would end it is escaped, as GitHub's own toolkit does."""
        places = {"file": self.file, "line": self.line, "col": self.column, "title": "optpipe"}
        told = ",".join(f"{key}={escaped(str(value), True)}" for key, value in places.items() if value is not None)
        return f"::{self.level} {told}::{escaped(self.message)}"


def escaped(text: str, inside: bool = False) -> str:
    """`inside`: among the command's properties, where a colon or comma ends one."""
    found = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return found.replace(":", "%3A").replace(",", "%2C") if inside else found


def annotation(problem: Problem, level: str = "error") -> Annotation:
    """A problem of a recipe at its line and column."""
    found = PLACE.fullmatch(problem.place)
    message = f"{problem.message}\n{problem.hint}" if problem.hint else problem.message
    if found is None:
        return Annotation(level, f"{problem.place}: {message}" if problem.place else message)
    key = f"{found['key']}: " if found["key"] else ""
    column = int(found["column"]) if found["column"] else None
    return Annotation(level, f"{key}{message}", found["file"], int(found["line"]), column)


def notices(data: ReportData, places: Mapping[str, str]) -> Iterator[Annotation]:
    """A line for each candidate that did not pass, at its checkpoint in the recipe (`places`: file:line:column)."""
    for row in rows(data):
        if row.status == "passed":
            continue
        checkpoint = row.candidate.checkpoint if row.candidate else row.name.partition("@")[0]
        level = "notice" if row.status == "skipped" else "warning"
        problem = Problem(places.get(checkpoint, ""), f"{row.name}: {row.status}: {'; '.join(row.reasons)}")
        yield annotation(problem, level)


def outputs(data: ReportData, digest: str | None, bundle: str | None) -> dict[str, str]:
    """What later steps of a job are told; each value is one line."""
    winner = next((row for row in rows(data) if row.winner), None)
    found = {
        "verdict": data.verdict,
        "winner": winner.name if winner else "",
        "digest": digest or "",
        "bundle": bundle or "",
        "model-digest": (winner.model_digest if winner else None) or "",
    }
    return {name: " ".join(value.split()) for name, value in found.items()}


def comment(text: str, name: str) -> str:
    """The report as a comment that the next one takes the place of: its first line says whose it is."""
    return f"<!-- optpipe: {name} -->\n{cut(text, COMMENT_LIMIT)}"


def cut(text: str, limit: int) -> str:
    """`text` in at most `limit` bytes of UTF-8, cut at a line, saying so."""
    data = text.encode()
    if len(data) <= limit:
        return text
    room = limit - len(CUT.encode())
    head = data[:room].decode("utf-8", "ignore")
    return head.rpartition("\n")[0] + CUT
