"""Checks of a tokenizer against the model's rows, and of the chat template beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from optpipe.errors import InputError, Problem
from optpipe.model.config import LFS_POINTER, Shape, read_mapping
from optpipe.records import Json

REFETCH = "fetch the file again"
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
TEMPLATE = "chat_template.jinja"


def tokenizer_problems(folder: Path, shape: Shape) -> list[Problem]:
    """A tokenizer that is missing, unreadable, or has more tokens than the model has rows."""
    try:
        place, tokens = highest_id(folder)
    except InputError as error:
        return [Problem(error.place or str(folder), error.message, error.hint)]
    if tokens < shape.vocabulary:
        return []
    text = f"has token ids up to {tokens}, but the model has {shape.vocabulary} rows (vocab_size)"
    hint = "resize the model's embeddings to its tokenizer, or take the tokenizer that belongs to the model"
    return [Problem(str(place), text, hint)]


def highest_id(folder: Path) -> tuple[Path, int]:
    """The tokenizer's file and its highest token id; padded rows above it are fine."""
    path = folder / "tokenizer.json"
    if path.exists() or path.is_symlink():
        return path, max(fast_ids(path), default=-1)
    if (folder / "tokenizer.model").exists():
        path = folder / "tokenizer.model"
        return path, max(pieces(path) - 1, *added_ids(folder), -1)
    if (folder / "vocab.json").exists():
        path = folder / "vocab.json"
        return path, max(*numbers(read_mapping(path, REFETCH)), *added_ids(folder), -1, -1)
    raise InputError(
        "has no tokenizer (tokenizer.json, tokenizer.model or vocab.json)",
        place=str(folder),
        hint="copy the tokenizer's files from the model's source",
    )


def fast_ids(path: Path) -> Iterator[int]:
    """Every id of a tokenizer.json: the model's vocabulary and the added tokens."""
    value = read_mapping(path, REFETCH)
    model = value.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocabulary, dict | list) or not vocabulary:
        raise InputError("model.vocab: no vocabulary is there", place=str(path), hint=REFETCH)
    if isinstance(vocabulary, dict):
        yield from numbers(vocabulary)
    else:
        yield len(vocabulary) - 1
    yield from (token["id"] for token in added_tokens(value) if isinstance(token.get("id"), int))


def added_tokens(tokenizer: Json) -> list[Json]:
    """The mappings among what stands in a tokenizer.json as its added tokens."""
    found = tokenizer.get("added_tokens")
    return [token for token in found if isinstance(token, dict)] if isinstance(found, list) else []


def added_ids(folder: Path) -> list[int]:
    path = folder / "added_tokens.json"
    return numbers(read_mapping(path, REFETCH)) if path.exists() else []


def numbers(mapping: Json) -> list[int]:
    return [value for value in mapping.values() if isinstance(value, int)]


def pieces(path: Path) -> int:
    """How many pieces a SentencePiece model has: fields number 1 of the outermost protocol buffer."""
    data, at, count = path.read_bytes(), 0, 0
    while at < len(data):
        key, at = varint(data, at, path)
        if key & 7 != 2:
            if key & 7 != 0:
                break
            _, at = varint(data, at, path)
            continue
        length, at = varint(data, at, path)
        count += key >> 3 == 1
        at += length
    if not count or at != len(data):
        raise InputError(f"{len(data)} bytes that are no SentencePiece model", place=str(path), hint=REFETCH)
    return count


def varint(data: bytes, at: int, path: Path) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at
    raise InputError(f"ends within a number at byte {at}", place=str(path), hint=REFETCH)


# ---------------------------------------------------------------- special tokens


def special_problems(folder: Path, shape: Shape) -> list[Problem]:
    """Special tokens that the vocabulary lacks: loading the tokenizer gives them ids above the model's rows."""
    path, vocabulary = folder / "tokenizer_config.json", folder / "tokenizer.json"
    if not path.exists() and not path.is_symlink():
        return []
    try:
        config = read_mapping(path, REFETCH)
        if not vocabulary.is_file():
            return []
        known = tokens_of(read_mapping(vocabulary, REFETCH))
        first = max(fast_ids(vocabulary), default=-1) + 1
    except InputError as error:
        return [Problem(error.place or str(path), error.message, error.hint)]
    named = {text: key for key in SPECIAL if (text := token_text(config.get(key))) is not None}
    new = [text for text in named if text not in known]
    for number, text in enumerate(new):
        if first + number >= shape.vocabulary:
            what = f"{named[text]}: {text!r} is not in the vocabulary; it would get the id {first + number}, but the"
            hint = "name a token that is there, or resize the model's embeddings to its tokenizer"
            return [Problem(str(path), f"{what} model has {shape.vocabulary} rows (vocab_size)", hint)]
    added = config.get("added_tokens_decoder")
    ids = [int(key) for key in (added if isinstance(added, dict) else {}) if key.isdecimal() and len(key) < 20]
    if ids and max(ids) >= shape.vocabulary:
        what = f"added_tokens_decoder has the id {max(ids)}, but the model has {shape.vocabulary} rows (vocab_size)"
        return [Problem(str(path), what, "take the tokenizer that belongs to the model")]
    return []


def token_text(value: Any) -> str | None:
    """A special token's text, from a string or an AddedToken's mapping."""
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else None


def tokens_of(tokenizer: Json) -> set[str]:
    """Every token of a tokenizer.json by its text."""
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    listed = vocabulary if isinstance(vocabulary, list) else []
    pieces = [piece[0] for piece in listed if isinstance(piece, list) and piece]
    texts = vocabulary if isinstance(vocabulary, dict) else pieces
    added = [token.get("content") for token in added_tokens(tokenizer)]
    return {text for text in (*texts, *added) if isinstance(text, str)}


# ---------------------------------------------------------------- chat template


def template_problems(folder: Path, *, syntax: bool) -> list[Problem]:
    """Templates that cannot be read, or (with `syntax`, which loads Jinja) cannot be parsed."""
    try:
        found = templates(folder)
    except InputError as error:
        return [Problem(error.place or str(folder), error.message, error.hint)]
    if not syntax:
        return []
    problems = []
    for place, text in found:
        if fault := syntax_fault(text):
            hint = "mend the template, or take the one of the model's source"
            problems.append(Problem(place, f"the chat template cannot be parsed: {fault}", hint))
    return problems


def templates(folder: Path) -> list[tuple[str, str]]:
    """(place, text) of each chat template: chat_template.jinja, and those in tokenizer_config.json."""
    found, path = [], folder / TEMPLATE
    if path.exists() or path.is_symlink():
        found.append((str(path), template_file(path)))
    path = folder / "tokenizer_config.json"
    value = read_mapping(path, REFETCH).get("chat_template") if path.is_file() else None
    if value is None:
        return found
    named = value if isinstance(value, list) else [{"name": "default", "template": value}]
    for item in named:
        text = item.get("template") if isinstance(item, dict) else None
        if not isinstance(text, str):
            raise InputError(
                f"chat_template: {value!r:.60} is neither a text nor a list of names and templates",
                place=str(path),
                hint=REFETCH,
            )
        found.append((f"{path}: chat_template", text))
    return found


def template_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", place=str(path), hint=REFETCH) from None
    if text.startswith(LFS_POINTER):
        hint = "run `git lfs pull` in the model's folder"
        raise InputError("this is a Git LFS pointer, not the file", place=str(path), hint=hint)
    return text


def syntax_fault(text: str) -> str | None:
    """Why Jinja cannot parse a template, with the line; the tags that transformers adds are known."""
    from jinja2 import Environment, TemplateSyntaxError, nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser

    class Generation(Extension):
        """`{% generation %}`: what transformers marks as the assistant's own tokens."""

        tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

        def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    try:
        Environment(extensions=[Generation, "jinja2.ext.loopcontrols"], autoescape=False).parse(text)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {error.message}"
    return None
