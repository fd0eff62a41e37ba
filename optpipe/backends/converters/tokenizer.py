"""Builds a Hugging Face tokenizer from the keys of a GGUF file (byte-level BPE). Runs in a worker."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from optpipe.model.gguf import Gguf
from optpipe.records import Json
from optpipe.worker import Failure

SECTION = "tokenizer.ggml."
CONTROL, USER_DEFINED = 3, 4
"""GGUF token types that a tokenizer takes out of the text before anything else."""

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")


@dataclass(frozen=True)
class Splitting:
    """How text is cut before BPE: digits alone, by a pattern of the model's own, or by GPT-2's."""

    digits: bool = False
    pattern: str | None = None
    nfc: bool = False
    ignore_merges: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> Any:
        from tokenizers import Regex, pre_tokenizers

        byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None)
        steps = [byte_level]
        if self.pattern is not None:
            steps.insert(0, pre_tokenizers.Split(Regex(self.pattern), behavior="isolated"))
        if self.digits:
            steps.insert(0, pre_tokenizers.Digits(individual_digits=True))
        return steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)


KNOWN: dict[str, Splitting] = {
    "gpt-2": Splitting(),
    "smollm": Splitting(digits=True),
    "starcoder": Splitting(digits=True),
    "refact": Splitting(digits=True),
    "llama-bpe": Splitting(pattern=LLAMA3, ignore_merges=True, adds_bos=True),
    "qwen2": Splitting(pattern=QWEN2, nfc=True),
}
"""By the name in `tokenizer.ggml.pre`. Another name means other ids for the same text, so it is an error."""


def splitting(front: Gguf) -> Splitting:
    """What the file's pre-tokenizer name stands for; Failure where that is not known."""
    family = front.metadata.get(f"{SECTION}model")
    if family != "gpt2":
        raise Failure(
            f"tokenizer.ggml.model is {family!r}; only byte-level BPE ('gpt2') is rebuilt",
            hint="use the model's Hugging Face folder or hub id as the source",
        )
    name = front.metadata.get(f"{SECTION}pre")
    if name not in KNOWN:
        raise Failure(
            f"tokenizer.ggml.pre is {name!r}; known: {', '.join(sorted(KNOWN))}",
            hint="use the model's Hugging Face folder or hub id as the source",
        )
    return KNOWN[name]


def write_tokenizer(front: Gguf, out: Path) -> int:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; the number of tokens."""
    split = splitting(front)
    tokens = _list(front, "tokens", str)
    types = _list(front, "token_type", int)
    if len(types) != len(tokens):
        raise Failure(f"{len(tokens)} tokens, but {len(types)} token types")
    specials = {i: _added(tokens[i], kind) for i, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)}
    adds_bos = bool(front.metadata.get(f"{SECTION}add_bos_token", split.adds_bos))
    bos = _token(front, tokens, "bos") if adds_bos else None
    build(split, tokens, _merges(front), specials, bos).save(str(out / "tokenizer.json"))
    config = tokenizer_config(front, tokens, specials)
    text = json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)
    (out / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
    template = front.metadata.get("tokenizer.chat_template")
    if isinstance(template, str):
        (out / "chat_template.jinja").write_bytes(template.encode("utf-8"))
    return len(tokens)


def build(
    split: Splitting,
    tokens: list[str],
    merges: list[tuple[str, str]],
    specials: dict[int, Json],
    bos: str | None,
) -> Any:
    """A `tokenizers.Tokenizer`; `bos` is put before every text where it is given."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

    vocabulary = {token: i for i, token in enumerate(tokens)}
    if len(vocabulary) != len(tokens):
        raise Failure(f"{len(tokens) - len(vocabulary)} of {len(tokens)} tokens stand there twice")
    tokenizer: Any = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=split.ignore_merges))
    tokenizer.pre_tokenizer = split.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    if split.nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_tokens([AddedToken(**specials[i]) for i in sorted(specials)])
    byte_level = processors.ByteLevel(trim_offsets=False)
    if bos is None:
        tokenizer.post_processor = byte_level
    else:
        template = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, vocabulary[bos])]
        )
        tokenizer.post_processor = processors.Sequence([byte_level, template])
    return tokenizer


def tokenizer_config(front: Gguf, tokens: list[str], specials: dict[int, Json]) -> Json:
    """The content of tokenizer_config.json; the class is the generic one, so that no reader re-invents it."""
    named = {
        f"{role}_token": _token(front, tokens, key)
        for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
    }
    return {
        "added_tokens_decoder": {str(i): specials[i] for i in sorted(specials)},
        "clean_up_tokenization_spaces": False,
        "model_max_length": front.get("context_length"),
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{role: token for role, token in named.items() if token is not None},
    }


def _added(content: str, kind: int) -> Json:
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {"content": content, "special": kind == CONTROL, **flags}


def _token(front: Gguf, tokens: list[str], role: str) -> str | None:
    number = front.metadata.get(f"{SECTION}{role}_token_id")
    if number is None:
        return None
    if not 0 <= number < len(tokens):
        raise Failure(f"{SECTION}{role}_token_id is {number}, but there are {len(tokens)} tokens")
    return str(tokens[number])


def _merges(front: Gguf) -> list[tuple[str, str]]:
    pairs = [tuple(merge.split(" ")) for merge in _list(front, "merges", str)]
    wrong = next((pair for pair in pairs if len(pair) != 2), None)
    if wrong is not None:
        raise Failure(f"a merge of {len(wrong)} parts instead of 2: {' '.join(wrong)!r}")
    return [(pair[0], pair[1]) for pair in pairs]


def _list(front: Gguf, name: str, kind: type) -> list[Any]:
    value = front.metadata.get(f"{SECTION}{name}")
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in value):
        raise Failure(f"{SECTION}{name} is not a list of {kind.__name__}: the file has no whole tokenizer")
    return value
