"""What a task file may say: known keys and values alone, so that what it asks for can be scored and runs no code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from optpipe.errors import did_you_mean
from optpipe.records import Json

LOADERS = ("arrow", "csv", "json", "parquet")
"""What reads the documents: `dataset_path`."""
SPLITS = ("test_split", "validation_split")
OUTPUT_TYPES = ("multiple_choice", "loglikelihood", "generate_until")
METRICS = ("acc_norm", "acc", "acc_bytes", "exact_match")
"""Right or wrong per item; the first of them that a task has is the one that is compared."""
KEYS = frozenset(
    (
        *("task", "tag", "dataset_path", "dataset_kwargs", *SPLITS, "training_split", "fewshot_split", "output_type"),
        *("doc_to_text", "doc_to_choice", "doc_to_target", "process_docs", "description", "num_fewshot"),
        *("target_delimiter", "fewshot_delimiter", "metric_list", "metadata", "generation_kwargs", "filter_list"),
        *("process_results", "fewshot_config"),
        *("should_decontaminate", "doc_to_decontamination_query"),
    )
)
FUNCTIONS = ("doc_to_text", "doc_to_choice", "doc_to_target", "process_docs", "process_results")
"""Keys in which lm-eval takes `!function module.name`."""
ENTRY = {"metric", "aggregation", "higher_is_better"}
EXACTLY = {*ENTRY, "ignore_case", "ignore_punctuation", "ignore_numbers", "regexes_to_ignore"}
"""What an entry of `exact_match` may say."""
FILTERS = ("regex", "take_first", "remove_whitespace", "lowercase", "uppercase", "multi_choice_regex")
"""lm-eval's filters of generated text that run no code of the task's."""
MOST_TOKENS = 32768
FUNCTION = re.compile(r"([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


def problems(config: Json) -> Iterator[tuple[str, str]]:
    """(what is wrong, what to do) of a configuration, one after another."""
    for key in sorted(set(config) - KEYS):
        yield f"{key}: {config[key]!r} is a key that optpipe does not take", did_you_mean(key, sorted(KEYS))
    name = config.get("task")
    if not (isinstance(name, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", name)):
        yield f"task: {name!r} is no name", "a word such as my_task"
    if config.get("dataset_path") not in LOADERS:
        known = ", ".join(LOADERS)
        yield f"dataset_path: {config.get('dataset_path')!r} is none of {known}", "documents come from files"
    yield from _data_problems(config.get("dataset_kwargs"), config)
    if config.get("output_type") not in OUTPUT_TYPES:
        known = " and ".join(OUTPUT_TYPES)
        yield f"output_type: {config.get('output_type')!r} cannot be scored here", f"{known} can"
    for key in ("doc_to_text", "doc_to_target"):
        if key not in config:
            yield f"{key} is missing", f"{key}: a Jinja template over a document's columns"
    yield from _function_problems(config)
    yield from _metric_problems(config.get("metric_list"))
    yield from _generation_problems(config.get("generation_kwargs", {}))
    yield from _filter_problems(config.get("filter_list", []))
    yield from _fewshot_problems(config.get("fewshot_config", {}))


def _data_problems(kwargs: Any, config: Json) -> Iterator[tuple[str, str]]:
    hint = 'dataset_kwargs: {data_files: {test: "documents.jsonl"}} with `test_split: test`'
    files = kwargs.get("data_files") if isinstance(kwargs, dict) else None
    if not isinstance(files, dict) or set(kwargs) != {"data_files"} or not files:
        yield f"dataset_kwargs: {kwargs!r} names no data_files by split, or more than them", hint
        return
    for split, source in files.items():
        named = source if isinstance(source, list) else [source]
        texts = bool(named) and all(isinstance(one, str) for one in named)
        if not (isinstance(split, str) and re.fullmatch(r"\w+", split) and texts):
            yield f"data_files: {split!r}: {source!r} is not a split with its file, or a list of them", hint
    named = [config[key] for key in SPLITS if config.get(key) is not None]
    if not named or any(split not in files for split in named):
        yield f"{' or '.join(SPLITS)} {named} is none of data_files' {sorted(map(str, files))}", hint


def _function_problems(config: Json) -> Iterator[tuple[str, str]]:
    for key, value in config.items():
        if isinstance(value, dict) and "!function" in value:
            if key not in FUNCTIONS:
                yield f"{key}: !function is not taken here", f"it is in {', '.join(FUNCTIONS)}"
            elif not FUNCTION.fullmatch(value["!function"]):
                yield f"{key}: !function {value['!function']!r} is not module.name", "a file beside the task file"
        elif "!function" in repr(value):
            yield f"{key}: !function inside {value!r} is not taken", "give the key itself one"


def _metric_problems(entries: Any) -> Iterator[tuple[str, str]]:
    hint = f"metric_list: [{{metric: acc}}]; right or wrong is told by {', '.join(METRICS)}"
    if not isinstance(entries, list) or not all(
        isinstance(e, dict) and isinstance(e.get("metric"), str) for e in entries
    ):
        yield f"metric_list: {entries!r} is no list of metrics", hint
        return
    for entry in entries:  # lm-eval looks up what it does not know at the hub, and runs it
        allowed = EXACTLY if entry["metric"] == "exact_match" else ENTRY
        if entry["metric"] not in (*METRICS, "perplexity") or not set(entry) <= allowed:
            yield f"metric_list: {entry!r} is not taken", hint
    if not any(entry["metric"] in METRICS for entry in entries):
        yield f"metric_list: {[e['metric'] for e in entries]} say nothing of right or wrong per item", hint


def _generation_problems(given: Any) -> Iterator[tuple[str, str]]:
    """Generated text is decoded greedily: of a sampled one nobody could say whether the model or chance changed."""
    hint = 'generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 256}'
    if not isinstance(given, dict):
        yield f"generation_kwargs: {given!r} is no mapping", hint
        return
    until, most = given.get("until", []), given.get("max_gen_toks", 1)
    for key in sorted(set(given) - {"until", "max_gen_toks", "do_sample", "temperature"}):
        yield f"generation_kwargs: {key}: {given[key]!r} is not taken", hint
    if given.get("do_sample", False) is not False or given.get("temperature", 0) != 0:
        yield "generation_kwargs: text is sampled", "do_sample: false; items are paired, so text is decoded greedily"
    if not (isinstance(until, list) and all(isinstance(one, str) and one for one in until)):
        yield f"generation_kwargs: until: {until!r} is no list of texts to stop at", hint
    if type(most) is not int or not 1 <= most <= MOST_TOKENS:
        yield f"generation_kwargs: max_gen_toks: {most!r} is not 1 to {MOST_TOKENS}", hint


def _filter_problems(given: Any) -> Iterator[tuple[str, str]]:
    hint = "filter_list: [{name: answer, filter: [{function: regex, regex_pattern: ...}, {function: take_first}]}]"
    for entry in given if isinstance(given, list) else [given]:
        steps = entry.get("filter") if isinstance(entry, dict) and set(entry) == {"name", "filter"} else None
        if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
            yield f"filter_list: {entry!r} is no name with a list of filters", hint
            continue
        for step in steps:
            if step.get("function") not in FILTERS:
                yield f"filter_list: {step.get('function')!r} is none of {', '.join(FILTERS)}", hint
            if not valid(step.get("regex_pattern", "")):
                yield f"filter_list: {step.get('regex_pattern')!r} is no regular expression", hint


def _fewshot_problems(given: Any) -> Iterator[tuple[str, str]]:
    hint = "fewshot_config: {sampler: first_n, samples: [{question: ..., answer: ...}]}"
    if not isinstance(given, dict) or not set(given) <= {"sampler", "samples"}:
        yield f"fewshot_config: {given!r} is not taken", hint
        return
    samples = given.get("samples", [])
    if given.get("sampler", "default") not in ("default", "first_n"):
        yield f"fewshot_config: sampler: {given['sampler']!r} is neither default nor first_n", hint
    if not isinstance(samples, list) or not all(isinstance(sample, dict) for sample in samples):
        yield f"fewshot_config: samples: {str(samples)[:80]} is no list of documents", hint


def valid(pattern: Any) -> bool:
    """Whether it is a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, TypeError):
        return False
    return True
