"""What types alone cannot say of a recipe: values of one key, keys that speak against each other, sources.

Places are dotted paths of the recipe; load.py gives them file, line and column.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from optpipe.backends.engines import ENGINES
from optpipe.backends.evaluators import command
from optpipe.backends.quantizers.libraries import LIBRARIES
from optpipe.backends.registries import storage_of
from optpipe.backends.registries.references import checked_name
from optpipe.errors import InputError, Problem, did_you_mean
from optpipe.model import sources, task_hub, tasks, texts
from optpipe.model.selectors import pattern_of, text_of
from optpipe.recipe.schema import Recipe, Text
from optpipe.toolchains import Image, get, known
from optpipe.toolchains import managed as managed_toolchains

REVISIONS = "pin it by a commit: hf:owner/name@<40 hexadecimal digits>"


def value_problems(recipe: Recipe) -> Iterator[Problem]:
    """Everything that is wrong whatever the model and the machine are."""
    yield from model_problems(recipe)
    yield from checkpoint_problems(recipe)
    yield from target_problems(recipe)
    yield from measuring_problems(recipe)
    yield from toolchain_problems(recipe)
    for number, registry in enumerate(recipe.publish):
        if registry.promote is not None:
            yield from raised(partial(checked_name, registry.promote, "alias"), f"publish.{number}.promote")
        if registry.registry != "mlflow" or registry.uri is not None:  # else the publishing machine's variable says it
            yield from raised(partial(storage_of, registry, Path()), f"publish.{number}")


def model_problems(recipe: Recipe) -> Iterator[Problem]:
    source = recipe.model.source
    if recipe.model.trust_remote_code and source.startswith("hf:"):
        revision = source.rpartition("@")[2]
        if not sources.COMMIT.fullmatch(revision):
            yield Problem("model.trust_remote_code", f"true, but {revision!r} can change", REVISIONS)


def checkpoint_problems(recipe: Recipe) -> Iterator[Problem]:
    if "base" in recipe.checkpoints:
        yield Problem("checkpoints.base", "'base' is the unquantized model itself", "choose another name")
    for name, scheme in recipe.checkpoints.items():
        for found in LIBRARIES[scheme.library].validate(scheme):
            yield Problem(f"checkpoints.{name}.{found.place}", found.message, found.hint)
        for key in ("ignore", "int8"):
            for number, selector in enumerate(getattr(scheme, key, ())):
                if text_of(selector).startswith("re:"):
                    yield from raised(partial(pattern_of, text_of(selector)), f"checkpoints.{name}.{key}.{number}")
        if scheme.needs_calibration and recipe.calibration is None:
            yield Problem(
                f"checkpoints.{name}.method",
                f"{scheme.method} needs calibration text, and the recipe has none",
                "add `calibration: {text: {source: ...}}`, or use int8, fp8 or rtn",
            )


def target_problems(recipe: Recipe) -> Iterator[Problem]:
    """Targets against their engine's options, and against the lengths that will be measured."""
    load, scoring = recipe.load, recipe.scoring
    longest = max(load.input_tokens + load.output_tokens, scoring.unit_tokens + 1)
    for name, target in recipe.targets.items():
        for found in ENGINES[target.engine].problems(target, f"targets.{name}", managed(recipe, target.engine)):
            yield Problem(found.place, found.message, found.hint or "leave it out")
        if target.max_model_len is not None and target.max_model_len < longest:
            yield Problem(
                f"targets.{name}.max_model_len",
                f"{target.max_model_len} is less than is measured: {load.input_tokens} + {load.output_tokens} tokens "
                f"of load, {scoring.unit_tokens} + 1 of scoring",
                f"max_model_len: {longest}",
            )


def managed(recipe: Recipe, role: str) -> bool:
    """Whether a role's toolchain is a lock of optpipe's own, under its name or a lock's."""
    names = (role, *managed_toolchains.ROLES.get(role, {}).values())
    chosen = [recipe.toolchains[name] for name in names if name in recipe.toolchains]
    return all(one.kind == "managed" for one in chosen)


def measuring_problems(recipe: Recipe) -> Iterator[Problem]:
    if not recipe.slo.bounds():
        text = "there is no bound, so there is no goodput"
        yield Problem("slo", text, "for example `slo: {ttft_ms: {p90: 2000}}`")
    if recipe.scoring.max_units < recipe.scoring.units:
        text = f"{recipe.scoring.max_units} is below units, {recipe.scoring.units}"
        yield Problem("scoring.max_units", text, f"max_units: {recipe.scoring.units} or more")
    if recipe.calibration is not None:
        for name, text_ in recipe.texts.items():
            yield from shared_text(f"texts.{name}", recipe.calibration.text, text_)


def shared_text(place: str, calibration: Text, scored: Text) -> Iterator[Problem]:
    """The same text on both sides: only its two parts may stand there."""
    same = (calibration.source, calibration.column) == (scored.source, scored.column)
    if same and {calibration.part, scored.part} != {"calibrate", "score"}:
        text = f"{scored.source!r} is also calibrated on, so its score would flatter"
        yield Problem(place, text, "say `part: calibrate` there and `part: score` here")


def toolchain_problems(recipe: Recipe) -> Iterator[Problem]:
    for name, kind in recipe.toolchains.items():
        place = f"toolchains.{name}"
        names = sorted({*known(), *ENGINES})
        if name not in names:
            yield Problem(place, "no such toolchain", did_you_mean(name, names))
        elif isinstance(kind, Image):
            yield from raised(partial(get, name, recipe.toolchains), place)


def source_problems(recipe: Recipe, folder: Path) -> Iterator[Problem]:
    """Sources that cannot be read as such, or are not there; relative ones below `folder`, then here."""
    yield from raised(partial(sources.parse, recipe.model.source, folder), "model.source")
    yield from task_problems(recipe, folder)
    yield from command_problems(recipe, folder)
    named = {f"texts.{name}": text for name, text in recipe.texts.items()}
    if recipe.calibration is not None:
        named["calibration.text"] = recipe.calibration.text
    for key, text in named.items():
        place = f"{key}.source"
        yield from raised(partial(texts.parse_text, text.source, folder), place)


def task_problems(recipe: Recipe, folder: Path) -> Iterator[Problem]:
    """Task files that are not there, are no task, run code that is not allowed, or bear one name twice; numbers of
    documents of no task."""
    seen: dict[str, str] = {}
    for number, name in enumerate(recipe.tasks.names):
        place = f"tasks.names.{number}"
        try:
            of_hub = task_hub.parse(name)
            task = of_hub[0] if of_hub else tasks.read(name, folder, tuple(recipe.tasks.allow), place).name
        except InputError as error:
            yield Problem(place, error.message, error.hint)
            continue
        if task in seen:
            yield Problem(place, f"{name!r} is the task {task!r}, as {seen[task]!r} is", "give each a name of its own")
        seen[task] = name
    for name in sorted(recipe.tasks.documents_of.keys() - seen.keys()):
        hint = did_you_mean(name, list(seen)) if seen else "name tasks in `tasks.names`"
        yield Problem(f"tasks.documents_of.{name}", f"{name!r} is none of the recipe's tasks", hint)


def command_problems(recipe: Recipe, folder: Path) -> Iterator[Problem]:
    """Evaluators of one's own whose files are not there, that say nothing of when they change, or share a name."""
    for name, given in recipe.tasks.commands.items():
        place = f"tasks.commands.{name}"
        if name in recipe.tasks.names:
            yield Problem(place, f"{name!r} is a task already", "give the command another name")
        for number, file in enumerate(given.files):
            if not (folder / file).is_file():
                yield Problem(f"{place}.files.{number}", f"{file!r} is no file here", "it lies beside the recipe")
        if given.version is None and not command.files_of(given, folder):
            text = f"{given.argv} names no file beside the recipe, so nothing says when it has changed"
            yield Problem(f"{place}.argv", text, "name its file, or add a `version:` of your own")


def raised(read: Callable[[], object], place: str) -> Iterator[Problem]:
    """The InputError that `read` raises, as a problem at `place`."""
    try:
        read()
    except InputError as error:
        yield Problem(place, error.message, error.hint)
