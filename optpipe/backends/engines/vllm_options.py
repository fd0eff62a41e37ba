"""What options the installed vLLM really has, asked of its own parser; and a check of a target against them.

python -m optpipe.backends.engines.vllm_options      (in the toolchain: one line of JSON)
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from optpipe.backends.engines.ask import Question, ask
from optpipe.backends.engines.vllm import Vllm, flags
from optpipe.errors import Problem, did_you_mean
from optpipe.records import Json
from optpipe.rundir import read_json
from optpipe.toolchains import Toolchain

PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")
"""Where `make_arg_parser` lives: since vLLM 0.32, and before."""

OURS = "optpipe sets it"
CODE = "it runs code that a recipe names"
SECRET = "secrets come from the environment, never from a recipe"
REFUSED = {
    **dict.fromkeys(("host", "port", "uds", "grpc", "grpc-port", "headless", "config", "served-model-name"), OURS),
    **dict.fromkeys(("model", "model-tag", "tokenizer", "revision", "code-revision", "hf-config-path"), OURS),
    **dict.fromkeys(("middleware", "logits-processors", "io-processor-plugin", "tool-parser-plugin"), CODE),
    **dict.fromkeys(("reasoning-parser-plugin", "worker-cls", "worker-extension-cls", "scheduler-cls"), CODE),
    **dict.fromkeys(("model-class-overrides", "kv-transfer-config", "ec-transfer-config"), CODE),
    **dict.fromkeys(("api-key", "hf-token"), SECRET),
    "load-format": "weights are safetensors, always",
    "trust-remote-code": "say `model: {trust_remote_code: true}`",
}
QUESTION = Question("vLLM", "optpipe.backends.engines.vllm_options", "vllm-options", {"VLLM_LOGGING_LEVEL": "ERROR"})


# ---------------------------------------------------------------- in the toolchain


def own_options() -> Json:
    """Each option by its first long name: other names, choices, and what it takes."""
    make: Any = importlib.import_module(_parser_module()).make_arg_parser
    parser_class: Any = importlib.import_module("vllm.utils.argparse_utils").FlexibleArgumentParser
    found: Json = {}
    for action in make(parser_class())._actions:
        names = [name.removeprefix("--") for name in action.option_strings if name.startswith("--")]
        if names:
            found[names[0]] = describe(action, names)
    return found


def describe(action: argparse.Action, names: list[str]) -> Json:
    negative = [name for name in names if name.startswith("no-")]
    choices = [str(choice) for choice in action.choices or ()]
    takes = "nothing" if action.nargs == 0 else "several" if action.nargs in ("+", "*") else "one"
    others = [name for name in names[1:] if name not in negative]
    return {"names": others, "negative": bool(negative), "choices": choices, "takes": takes}


def _parser_module() -> str:
    """The first of PARSERS that this vLLM has; ModuleNotFoundError where vLLM itself lacks something."""
    from importlib.util import find_spec

    for name in PARSERS[:-1]:
        try:
            if find_spec(name):
                return name
        except ModuleNotFoundError as error:  # a package of the name is absent: another release; else vLLM is broken
            if error.name in (None, "vllm") or not name.startswith(f"{error.name}."):
                raise
    return PARSERS[-1]


# ---------------------------------------------------------------- in the build


def shipped() -> Json:
    """The options of the vLLM that the managed toolchains lock, so that a plan can refuse what it has not."""
    return dict(read_json(Path(__file__).with_suffix(".json")))


def installed_options(chain: Toolchain) -> Json:
    """The options of this toolchain's vLLM. Raises EnvironmentMissing where it does not say them."""
    return ask(QUESTION, chain)


def check(target: Vllm, options: Mapping[str, Json] | None, place: str) -> tuple[Problem, ...]:
    """What is wrong with the target's `engine_args`, each with its key.

    `options` come from `installed_options`; None checks what holds for every vLLM.
    """
    by_name = _by_name(options or {})
    found = (_check_key(key, f"{place}.engine_args.{key}") for key in target.engine_args)
    problems = [problem for problem in found if problem]
    if options is None or problems:
        return tuple(problems)
    pairs = target.engine_args.items()
    known = (_check_known(key, value, by_name, f"{place}.engine_args.{key}") for key, value in pairs)
    return tuple(problem for problem in known if problem)


def lacking(flat: Json, options: Mapping[str, Json], place: str) -> tuple[Problem, ...]:
    """What of a configuration of ours this vLLM does not take: it is another release than optpipe was written for."""
    by_name = _by_name(options)
    found = (_check_known(key, value, by_name, place) for key, value in flat.items())
    return tuple(Problem(place, f"{one.message}, which optpipe writes", "a newer vLLM") for one in found if one)


def _by_name(options: Mapping[str, Json]) -> dict[str, Json]:
    return {name: one for first, one in options.items() for name in (first, *one["names"])}


def _check_key(key: str, place: str) -> Problem | None:
    """Options that are never a recipe's to give."""
    bare = key.replace("_", "-").partition(".")[0].removeprefix("no-")
    if bare in REFUSED:
        return Problem(place, f"{key} cannot be given: {REFUSED[bare]}")
    if bare in {field.name.replace("_", "-") for field in dataclasses.fields(Vllm)}:
        own = bare.replace("-", "_")
        return Problem(place, f"{key} is a key of the target itself", f"write `{own}:` beside `engine:`")
    return None


def _check_known(key: str, value: Any, by_name: Mapping[str, Json], place: str) -> Problem | None:
    (flag,) = flags({key: True})
    name, dot, _ = flag.partition(".")
    negated = by_name.get(flag.removeprefix("no-"), {"negative": False})
    one = by_name.get(name) or (negated if negated["negative"] else None)
    if one is None:
        return Problem(place, f"this vLLM has no option --{name}", did_you_mean(name, list(by_name)))
    return None if dot else _check_value(key, value, one, place)


def _check_value(key: str, value: Any, one: Json, place: str) -> Problem | None:
    if one["takes"] == "nothing":
        if not isinstance(value, bool):
            return Problem(place, f"{value!r} is not true or false")
        if value is False and not one["negative"]:
            return Problem(place, f"{key} can be switched on only", "leave the line out")
    elif isinstance(value, bool):
        return Problem(place, f"{key} takes a value, not {str(value).lower()}")
    elif one["choices"] and str(value) not in one["choices"]:
        return Problem(place, f"{value!r} is not a choice of {key}", did_you_mean(str(value), one["choices"]))
    return None


if __name__ == "__main__":
    sys.stdout.write(json.dumps(own_options()) + "\n")
