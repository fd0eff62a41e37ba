"""Texts: every source becomes the same JSON Lines, parts never overlap, errors name file and column."""

from __future__ import annotations

import gzip
import json
import platform
import pydoc_data.topics
from pathlib import Path
from typing import Any

import pytest

from optpipe.errors import InputError
from optpipe.model.paragraphs import overlap
from optpipe.model.sources import WheelMember
from optpipe.model.texts import (
    DatasetFile,
    PythonDocs,
    ResolvedText,
    TextPath,
    parse_text,
    resolve_text,
)
from optpipe.records import Artifact
from optpipe.rundir import digest_file

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]


def resolve(tmp_path: Path, source: str, part: Any = None, column: str = "text") -> ResolvedText:
    return resolve_text(parse_text(source, tmp_path), part, column, tmp_path / "home", lambda text: None)


def documents(text: ResolvedText) -> list[Any]:
    return [json.loads(line) for line in text.path.read_text(encoding="utf-8").split("\n")[:-1]]


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def lines(*rows: Any) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


# ---------------------------------------------------------------- sources


def test_each_form_is_a_source_of_its_own_and_prints_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "x")
    forms: dict[str, Any] = {
        "python-docs": PythonDocs(),
        "wheel:words==1.0/data/rows.json.gz": WheelMember("words==1.0", "data/rows.json.gz"),
        f"hf-dataset:me/words@{COMMIT}/data/t.jsonl": DatasetFile("me/words", COMMIT, "data/t.jsonl"),
        str(tmp_path / "a.txt"): TextPath(tmp_path / "a.txt"),
    }
    for text, source in forms.items():
        assert parse_text(text) == source
        assert str(source) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hf-dataset:me/words/data/t.jsonl", "names no revision"),
        ("hf-dataset:me/words@main/../../x.txt", "leads out"),
        ("hf-dataset:me/words@main/data/t.parquet", "Parquet is not read"),
        ("wheel:words==1.0/rows.arrow", "not a text that can be read"),
        ("wheel:words/rows.json", "is not wheel:NAME==VERSION"),
        ("nowhere.txt", "is not there"),
        ("a.pdf", r"read are \.txt, \.md, \.json, \.jsonl"),
    ],
)
def test_what_is_no_text_is_refused_before_anything_is_fetched(tmp_path: Path, text: str, message: str) -> None:
    write(tmp_path / "a.pdf", "x")
    with pytest.raises(InputError, match=message):
        parse_text(text, tmp_path)


# ---------------------------------------------------------------- forms of files


def test_a_text_file_is_one_document_whole(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", b"\xef\xbb\xbfone\r\n\r\ntwo \xe2\x80\xa8 \xc2\xbd\n")
    text = resolve(tmp_path, "a.txt")
    assert documents(text) == [{"text": "one\n\ntwo \u2028 ½\n"}]
    assert text.documents == 1
    assert isinstance(text, Artifact)
    assert text.digest == digest_file(text.path)
    assert text.path.name == text.digest.removeprefix("sha256:") + ".jsonl"


def test_the_same_content_is_the_same_file_wherever_it_came_from(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "one")
    write(tmp_path / "b.jsonl", lines({"text": "one", "id": 7}))
    write(tmp_path / "c.txt.gz", gzip.compress(b"one"))
    assert len({resolve(tmp_path, name).path for name in ("a.txt", "b.jsonl", "c.txt.gz")}) == 1
    assert len(list((tmp_path / "home" / "texts").iterdir())) == 1, "and nothing is left beside it"


def test_a_folder_is_its_txt_and_md_files_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b.txt", "a.md", "sub/c.txt", "z.py", "blank.txt"):
        write(tmp_path / "folder" / name, "" if name == "blank.txt" else name)
    text = resolve(tmp_path, "folder")
    assert [d["text"] for d in documents(text)] == ["a.md", "b.txt", "sub/c.txt"]
    assert text.notes == ("1 blank rows dropped",)


@pytest.mark.parametrize(
    ("value", "column"),
    [
        ([{"extract": "one"}, {"extract": "two"}], "extract"),
        ({"A": {"extract": "one", "title": "A"}, "B": {"extract": "two", "title": "B"}}, "extract"),
        (["one", "two"], "text"),
        ({"A": "one", "B": "two"}, "text"),
    ],
)
def test_json_is_a_list_or_an_object_of_texts_or_rows(tmp_path: Path, value: Any, column: str) -> None:
    write(tmp_path / "a.json", json.dumps(value))
    assert documents(resolve(tmp_path, "a.json", None, column)) == [{"text": "one"}, {"text": "two"}]


def test_chats_are_kept_as_messages(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", lines({"messages": CHAT}, {"messages": []}))
    text = resolve(tmp_path, "a.jsonl", None, "messages")
    assert documents(text) == [{"messages": CHAT}]
    assert text.notes == ("1 blank rows dropped",)


def test_blank_rows_are_dropped_and_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", lines({"text": "one"}, {"text": " \n"}, {"text": None}) + "\n \n" + '{"text": "two"}')
    text = resolve(tmp_path, "a.jsonl")
    assert [d["text"] for d in documents(text)] == ["one", "two"]
    assert text.notes == ("4 blank rows dropped",)


def test_half_of_a_surrogate_pair_becomes_a_replacement_character_and_is_noted(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", '{"text": "a\\ud800b \\ud83d\\ude00"}\n')
    text = resolve(tmp_path, "a.jsonl")
    assert documents(text) == [{"text": "a\ufffdb \U0001f600"}]
    assert "1 documents with lone surrogates" in text.notes[0]


@pytest.mark.parametrize(
    ("name", "content", "column", "message"),
    [
        ("a.jsonl", "", "text", r"empty \(column 'text'\)"),
        ("a.txt", " \n\t", "text", "empty"),
        ("a.json", "[]", "text", "empty"),
        ("a.jsonl", lines({"text": ""}), "text", "empty"),
        ("a.jsonl", lines({"text": "x"}, {"txet": "x"}), "text", r"a\.jsonl:2: no column 'text'; there are txet"),
        ("a.jsonl", lines({"texts": "x"}), "text", "did you mean 'texts'"),
        ("a.jsonl", lines({"messages": CHAT}), "text", "write `column: messages`"),
        ("a.jsonl", lines({"text": 7}), "text", "'text' is '7', expected text"),
        ("a.jsonl", lines({"messages": [{"from": "x"}]}), "messages", "expected text or messages with role"),
        ("a.jsonl", '{"text": "x"\n', "text", r"a\.jsonl:1: not JSON"),
        ("a.json", '{"text"', "text", r"a\.json: not JSON"),
        ("a.json", "7", "text", "the JSON is a int, expected a list or an object"),
        ("a.txt", b"caf\xe9", "text", "not UTF-8: byte 0xe9"),
        ("a.jsonl", b'{"text": "caf\xe9"}', "text", "not UTF-8: byte 0xe9"),
        ("a.txt.gz", b"plain", "text", "not a whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "x"}\n' * 99)[:-9], "text", "not a whole gzip file"),
    ],
)
def test_what_cannot_be_a_text_is_told_with_file_and_column(
    tmp_path: Path, name: str, content: str | bytes, column: str, message: str
) -> None:
    write(tmp_path / name, content)
    with pytest.raises(InputError, match=message) as error:
        resolve(tmp_path, name, None, column)
    assert str(tmp_path / name) in str(error.value)
    assert list((tmp_path / "home").rglob(".text.*")) == []


# ---------------------------------------------------------------- parts


def test_python_docs_are_one_document_per_topic_with_the_version_noted(tmp_path: Path) -> None:
    text = resolve(tmp_path, "python-docs")
    assert text.documents > 40
    assert text.notes[0] == f"python-docs of Python {platform.python_version()}"
    assert any("The standard type hierarchy" in d["text"] for d in documents(text))


def test_a_topic_that_is_a_passage_of_a_longer_one_is_left_out(tmp_path: Path) -> None:
    """Seen: `if` stands word for word in `compound`, so a plain split by topic shares a fifth of its text."""
    topics = pydoc_data.topics.topics
    every = [d["text"] for d in documents(resolve(tmp_path, "python-docs"))]
    assert topics["compound"] in every
    assert topics["if"] not in every
    plain = tmp_path / "plain.jsonl"
    write(plain, lines(*({"text": text} for text in topics.values() if text.strip())))
    sides = [resolve(tmp_path, "plain.jsonl", part).path for part in ("calibrate", "score")]
    assert overlap(*sides) > 0.1


def test_the_two_parts_share_nothing_and_leave_nothing_out(tmp_path: Path) -> None:
    whole, calibrate, score = (resolve(tmp_path, "python-docs", part) for part in (None, "calibrate", "score"))
    sides = [{d["text"] for d in documents(text)} for text in (calibrate, score)]
    assert sides[0] & sides[1] == set()
    assert sides[0] | sides[1] == {d["text"] for d in documents(whole)}
    assert all(len(side) > whole.documents / 4 for side in sides)
    assert overlap(calibrate.path, score.path) < 0.01
    assert overlap(whole.path, score.path) == 1.0


def test_a_document_keeps_its_side_whatever_stands_around_it(tmp_path: Path) -> None:
    rows = [{"text": f"document {i}"} for i in range(100)]
    write(tmp_path / "a.jsonl", lines(*rows))
    write(tmp_path / "b.jsonl", lines(*reversed(rows[:50]), *rows[:50]))
    a, b = ({d["text"] for d in documents(resolve(tmp_path, f, "score"))} for f in ("a.jsonl", "b.jsonl"))
    assert b == a & {row["text"] for row in rows[:50]}, "and copies of it are on the same side"


def test_a_single_document_is_cut_between_paragraphs_near_its_middle(tmp_path: Path) -> None:
    paragraphs = [f"paragraph {i} " + "x" * 50 for i in range(20)]
    write(tmp_path / "a.txt", "\n\n".join(paragraphs) + "\n")
    first, second = (documents(resolve(tmp_path, "a.txt", part)) for part in ("calibrate", "score"))
    assert first == [{"text": "\n\n".join(paragraphs[:10])}]
    assert second == [{"text": "\n\n".join(paragraphs[10:])}]


def test_a_single_document_without_blank_lines_is_cut_between_lines(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "one\ntwo\nthree\nfour")
    assert documents(resolve(tmp_path, "a.txt", "calibrate")) == [{"text": "one\ntwo"}]
    assert documents(resolve(tmp_path, "a.txt", "score")) == [{"text": "three\nfour"}]


def test_what_cannot_be_split_says_so(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "a single line\n")
    with pytest.raises(InputError, match="a single paragraph of 14 characters cannot be split"):
        resolve(tmp_path, "a.txt", "score")
    write(tmp_path / "b.jsonl", lines({"messages": CHAT}))
    with pytest.raises(InputError, match="one chat cannot be split"):
        resolve(tmp_path, "b.jsonl", "score", "messages")
    write(tmp_path / "c.jsonl", lines({"text": "same"}, {"text": "same"}))
    sides = []
    for part in ("calibrate", "score"):
        try:
            sides.append(resolve(tmp_path, "c.jsonl", part).documents)
        except InputError as error:
            sides.append(str(error.message))
    assert sorted(sides, key=str) == [2, "this part of the text has no document"]


def test_overlap_is_the_share_of_the_scored_text_that_was_calibrated_on(tmp_path: Path) -> None:
    paragraph = "This paragraph is long enough that it is not found in two texts by chance, number {}."
    write(tmp_path / "seen.txt", "\n\n".join(paragraph.format(i) for i in range(10)))
    rows = [paragraph.format(i).upper().replace(" ", "  ") for i in (3, 4, 90, 91)]
    write(tmp_path / "scored.jsonl", lines(*({"text": "See also\n\n" + row} for row in rows)))
    seen, scored = resolve(tmp_path, "seen.txt").path, resolve(tmp_path, "scored.jsonl").path
    assert overlap(seen, scored) == pytest.approx(0.5, abs=0.02)
    assert overlap(scored, seen) == pytest.approx(0.2, abs=0.02)
    assert overlap(seen, seen) == 1.0
