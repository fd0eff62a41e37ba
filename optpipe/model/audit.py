"""The full check of a model folder before any work: complete, consistent, finite; every fault at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from optpipe.errors import InputError, Problem
from optpipe.model.architectures import tied_by_default
from optpipe.model.audit_config import config_problems, generation_problems
from optpipe.model.audit_extras import code_problems, extra_notes
from optpipe.model.audit_stored import stored_problems
from optpipe.model.audit_tokenizer import special_problems, template_problems, tokenizer_problems
from optpipe.model.config import Shape, quantization_of, read_config, shape_of
from optpipe.model.expected import expected_tensors, missing_hint, surplus_layers
from optpipe.model.fetching import Headers
from optpipe.model.finite import nonfinite
from optpipe.model.folder import (
    INDEX,
    WEIGHTS,
    WeightFiles,
    missing_shard_hint,
    read_index,
    weight_files,
)
from optpipe.model.linears import is_head
from optpipe.model.safetensors import Header, map_tensor, read_header
from optpipe.records import Json, TensorFact

MOST = 20
"""Problems of one kind that are listed; the rest is counted."""


@dataclass(frozen=True)
class Weights:
    """The readable weight files of a folder: headers by file, tensors by name."""

    files: WeightFiles
    headers: dict[str, Header]

    @property
    def names(self) -> set[str]:
        return {fact.name for header in self.headers.values() for fact in header.tensors}

    @property
    def whole(self) -> bool:
        return len(self.headers) == len(self.files.files)


def audit(folder: Path, *, trust_remote_code: bool = False, values: bool = True) -> tuple[Problem, ...]:
    """Every fault of a model folder, each with file, value and hint; `values=False` leaves weights unread."""
    problems: list[Problem] = []
    config = gathered(problems, lambda: read_config(folder))
    shape = gathered(problems, lambda: shape_of(config, str(folder / "config.json"))) if config else None
    files = gathered(problems, lambda: weight_files(folder))
    weights = read_weights(files, problems) if files else None
    if weights:
        problems += weight_problems(weights, config, shape)
        if values:
            problems += capped(list(value_problems(weights, shape)), str(folder))
    problems += small_file_problems(folder, config, shape, syntax=values)
    if config:
        problems += code_problems(folder, config, trust_remote_code)
    return tuple(problems)


def audit_headers(headers: Headers, *, trust_remote_code: bool = False) -> tuple[Problem, ...]:
    """The same for a model whose small files are here and whose weights are elsewhere, known by their headers."""
    folder = headers.folder
    if folder is None:  # one GGUF file
        return ()
    problems: list[Problem] = []
    shape = gathered(problems, lambda: shape_of(headers.config, "config.json"))
    by_file: dict[str, list[TensorFact]] = {}
    for fact in headers.tensors:
        by_file.setdefault(fact.file, []).append(fact)
    found = {file: Header(file, tuple(facts), {}, {}) for file, facts in by_file.items()}
    weight_map = read_index(folder / INDEX) if (folder / INDEX).is_file() else None
    weights = Weights(WeightFiles(folder, tuple(found), weight_map), found)
    problems += weight_problems(weights, headers.config, shape)
    problems += small_file_problems(folder, headers.config, shape, syntax=False)
    problems += code_problems(folder, headers.config, trust_remote_code, headers.files)
    return tuple(problems)


def weight_problems(weights: Weights, config: Json | None, shape: Shape | None) -> list[Problem]:
    """What headers, index and configuration have against each other."""
    place = str(weights.files.folder)
    problems = capped(list(file_problems(weights.files)), place) + capped(list(index_problems(weights)), place)
    if config and shape and weights.whole:
        problems += capped(list(shape_problems(weights, config, shape)), place)
        facts = {fact.name: fact for header in weights.headers.values() for fact in header.tensors}
        problems += capped(list(stored_problems(facts, config, place)), place)
    return problems


def small_file_problems(folder: Path, config: Json | None, shape: Shape | None, *, syntax: bool) -> list[Problem]:
    """What is wrong beside the weights."""
    problems: list[Problem] = []
    if config and shape:
        problems += config_problems(config, shape, str(folder / "config.json"))
        problems += tokenizer_problems(folder, shape) or special_problems(folder, shape)
    problems += template_problems(folder, syntax=syntax)
    return problems + generation_problems(folder, shape)


def audit_notes(folder: Path) -> tuple[str, ...]:
    """What is unusual in a folder but no fault: pickles beside safetensors, ignored sampling settings."""
    return tuple(extra_notes(folder, read_config(folder)))


def gathered(problems: list[Problem], read: Callable[[], Any]) -> Any:
    """What `read` returns; its InputError becomes one of the problems, and None comes back."""
    try:
        return read()
    except InputError as error:
        problems.append(Problem(error.place or "", error.message, error.hint))
        return None


def capped(problems: list[Problem], place: str) -> list[Problem]:
    if len(problems) <= MOST:
        return problems
    rest = Problem(place, f"and {len(problems) - MOST} more of this kind", problems[MOST].hint)
    return [*problems[:MOST], rest]


# ---------------------------------------------------------------- files against index


def file_problems(files: WeightFiles) -> Iterator[Problem]:
    """Files that libraries would not find, or of which they would take different ones."""
    place, number = str(files.folder), len(files.files)
    if files.weight_map is None:
        if files.files != (WEIGHTS,):
            text = f"{number} weight files ({', '.join(files.files[:3])}), but no {INDEX} says what is in them"
            hint = f"fetch {INDEX} from the model's source" + (
                f", or rename the file to {WEIGHTS}" if number == 1 else ""
            )
            yield Problem(place, text, hint)
    elif WEIGHTS not in files.files and (files.folder / WEIGHTS).exists():
        text = f"{WEIGHTS} stands beside {INDEX}, which names other files: libraries differ in which they read"
        yield Problem(str(files.folder / WEIGHTS), text, "remove the one that is left over")


def read_weights(files: WeightFiles, problems: list[Problem]) -> Weights:
    """The headers of the files that can be read; a problem for each of the others."""
    headers = {}
    for file in files.files:
        path = files.folder / file
        if not path.is_file():
            what = "is a link that leads nowhere" if path.is_symlink() else "is missing"
            what = "is no file" if path.exists() else what
            problems.append(Problem(str(path), what, missing_shard_hint(files, file)))
        elif header := gathered(problems, lambda path=path: read_header(path)):  # type: ignore[misc]
            headers[file] = header
    return Weights(files, headers)


def index_problems(weights: Weights) -> Iterator[Problem]:
    """Where the index and the shards disagree."""
    holders: dict[str, str] = {}
    for file, header in weights.headers.items():
        for fact in header.tensors:
            if fact.name in holders:
                text = f"{fact.name} stands in {holders[fact.name]} too"
                yield Problem(weights.files.place(file), text, "one of the two is left over: fetch the model again")
            holders[fact.name] = file
    if weights.files.weight_map is None:
        return
    for name, file in weights.files.weight_map.items():
        if file in weights.headers and holders.get(name) != file:
            where = f"it stands in {holders[name]}" if name in holders else "no shard holds it"
            hint = "fetch this shard again: it is not the one that the index was written for"
            yield Problem(weights.files.place(file), f"{name} is missing here, where the index has it; {where}", hint)
    for name in sorted(holders.keys() - weights.files.weight_map.keys()):
        hint = "fetch the index again: it was written for other shards"
        yield Problem(weights.files.place(holders[name]), f"{name} is not in the index", hint)


# ---------------------------------------------------------------- tensors against configuration


def shape_problems(weights: Weights, config: Json, shape: Shape) -> Iterator[Problem]:
    """Tensors that the configuration asks for and no file holds, or holds in another shape."""
    facts = {fact.name: fact for header in weights.headers.values() for fact in header.tensors}
    place = str(weights.files.folder)
    for layer, name in surplus_layers(shape, list(facts)):
        text = f"{name} is of layer {layer}; the configuration has {shape.layers} layers (0 to {shape.layers - 1})"
        yield Problem(weights.files.place(facts[name].file), text, "config.json and weights are of two models")
    expected = expected_tensors(shape, facts, quantized=quantization_of(config) is not None)
    for name, sizes in expected.items():
        if name not in facts:
            yield Problem(place, f"{name} is missing", missing_hint(name, shape))
        elif sizes and facts[name].shape != sizes:
            text = f"{name} is {list(facts[name].shape)}; the configuration asks for {list(sizes)}"
            yield Problem(weights.files.place(facts[name].file), text, "config.json and weights are of two models")


def value_problems(weights: Weights, shape: Shape | None) -> Iterator[Problem]:
    """Values that are not finite, and a head that should be the embedding but is not."""
    for file, header in weights.headers.items():
        path = weights.files.folder / file
        for fact, index, word in nonfinite(path, header):
            at = f"{fact.name}[{', '.join(map(str, index))}] is {word} ({fact.dtype})"
            yield Problem(str(path), at, "the weights are damaged, or overflowed when they were trained or cast")
    if shape is not None and (tied_by_default(shape.model_type) if shape.tied is None else shape.tied):
        yield from tied_problems(weights)


def tied_problems(weights: Weights) -> Iterator[Problem]:
    """Tied by configuration, yet with a head of its own: engines differ in which of the two they use."""
    found = [(file, fact) for file, header in weights.headers.items() for fact in header.tensors]
    heads = [(file, fact) for file, fact in found if is_head(fact.name.removesuffix(".weight"))]
    inputs = [(file, fact) for file, fact in found if fact.name.endswith(("embed_tokens.weight", "wte.weight"))]
    for (file, head), (other, embedding) in zip(heads, inputs, strict=False):
        one = map_tensor(weights.files.folder / file, weights.headers[file], head)
        two = map_tensor(weights.files.folder / other, weights.headers[other], embedding)
        if one.dtype != two.dtype or not np.array_equal(one, two):
            text = f"{head.name} differs from {embedding.name}, but config.json ties them (tie_word_embeddings)"
            yield Problem(weights.files.place(file), text, "set tie_word_embeddings: false, or remove the head")
