"""One build from a loaded recipe to its report: machine, toolchains, executor, pipeline, records, `keep:`."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from optpipe import __version__, pipeline
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.compared import Made, Spent, compared, disk_used
from optpipe.console import Talk
from optpipe.errors import InputError, Interrupted, OptpipeError, did_you_mean, of_system
from optpipe.inuse import InUse
from optpipe.keep import drop_after
from optpipe.model import hardware
from optpipe.outcome import Outcome
from optpipe.recipe.load import Loaded
from optpipe.recipe.schema import Recipe
from optpipe.records import Compared, Json, Published
from optpipe.report.data import ESTIMATES, ReportData
from optpipe.report.markdown import markdown
from optpipe.report.page import html
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder, write_atomic
from optpipe.summary import broken_off, summary


@dataclass(frozen=True)
class Built:
    """What a build ended with."""

    folder: Path
    outcome: Outcome
    data: ReportData
    jobs: dict[str, int]

    @property
    def verdict(self) -> str:
        return self.data.verdict

    @property
    def published(self) -> list[Published]:
        return self.outcome.published

    @property
    def markdown(self) -> str:
        return markdown(self.data)

    def summary(self) -> Json:
        """The document of `--json`."""
        return summary(self.data, self.folder, self.jobs)


def run_build(
    loaded: Loaded, artifacts: Path, required: Sequence[str] = (), *, allow_commands: bool = False
) -> Built:
    """Build a recipe. Raises OptpipeError with what is known by then; what is done is kept for the next try.

    `required`: targets whose engine must be there. `allow_commands`: run the programs that the recipe names as
    evaluators.
    """
    recipe, began = loaded.recipe, time.monotonic()
    for target in required:
        if target not in recipe.targets:
            hint = did_you_mean(target, list(recipe.targets))
            raise InputError(f"{target!r} is no target of this recipe", place="--require-target", hint=hint)
    if recipe.tasks.commands and not allow_commands:
        refuse_commands(loaded)
    machine = hardware.this_machine()
    about = {
        "recipe_path": str(loaded.path),
        "recipe": resolved(recipe),
        "hardware": dataclasses.asdict(machine),
        "versions": {"optpipe": __version__},
    }
    folder = RunFolder(artifacts, recipe.name, about)
    with Talk() as talk, InUse(folder.store.root) as in_use:
        chains = Toolchains(recipe.toolchains, talk)
        executor = LocalExecutor(folder.store, chains, Site.here(machine), folder.path / "logs", talk)
        run = Run(folder, executor, machine, talk, loaded.path.parent, chains, in_use, frozenset(required))
        try:
            with broken_off_as_json(run, began), loaded.places():
                out = pipeline.build(run, recipe)
            for check in out.open_checks:
                talk.say(f"warning: not decided: {check.reason}")
        finally:
            executor.close()
        run.record(ESTIMATES, compare(run, out, began))
        drop_after(recipe.keep, out, folder.store, in_use, talk.say)
    folder.note(seconds=spent(run, began))
    data = run.records(out)
    write_atomic(folder.path / "report.md", markdown(data).encode())
    write_atomic(folder.path / "report.html", html(data).encode())
    return Built(folder.path, out, data, jobs(run))


def refuse_commands(loaded: Loaded) -> NoReturn:
    """A recipe may come from a stranger's pull request, so its word alone starts no program."""
    name, given = next(iter(loaded.recipe.tasks.commands.items()))
    with loaded.places():
        raise InputError(
            f"the recipe runs {shlex.join(given.argv)!r} to evaluate, and this build does not allow it",
            place=f"tasks.commands.{name}",
            hint="read what it runs; where you trust the recipe: `optpipe build --allow-commands`",
        )


def compare(run: Run, out: Outcome, began: float) -> tuple[Compared, ...]:
    """The plan beside what it took, before `keep:` drops anything; of the whole only where nothing was kept."""
    made = [Made(entry.planned, entry.checkpoint, entry.evaluation, entry.serving) for entry in out.entries]
    whole = Spent()
    if run.executor.kept == 0:
        shipped = [Path(one.location) for one in out.published]
        whole = Spent(spent(run, began)["build"], disk_used(run.folder, run.executor.used, shipped))
    return compared(out.plan, made, whole, run.folder.store)


@contextmanager
def broken_off_as_json(run: Run, began: float) -> Iterator[None]:
    """What ends a build early, as an error that knows what is done by then; the run's folder keeps it too."""
    try:
        yield
    except (KeyboardInterrupt, OptpipeError, OSError) as cause:
        error = known(cause)
        if error is None:
            raise
        if not isinstance(cause, OSError):  # on a full disk there is no place to note anything
            run.folder.note(error=str(error), versions=run.toolchains.versions(), seconds=spent(run, began))
        error.document = broken_off(run.folder.path, jobs(run), spent(run, began))
        raise error from None


def known(cause: BaseException) -> OptpipeError | None:
    """The error that a user is told; None for a bug."""
    if isinstance(cause, OptpipeError):
        return cause
    if isinstance(cause, KeyboardInterrupt):
        return Interrupted("interrupted; the next build goes on where this one stopped")
    return of_system(cause) if isinstance(cause, OSError) else None


def jobs(run: Run) -> dict[str, int]:
    return {"run": run.executor.ran, "kept": run.executor.kept}


def spent(run: Run, began: float) -> dict[str, float]:
    """Seconds of installing, and of all the rest."""
    install = run.toolchains.install_s
    return {"install": install, "build": time.monotonic() - began - install}


def resolved(recipe: Recipe) -> Json:
    """The recipe with every default visible, and the gates' numbers."""
    return recipe.model_dump(mode="json", exclude={"extends"})
