"""One build from a loaded recipe to its report: machine, toolchains, executor, pipeline, records, `keep:`."""

from __future__ import annotations

import dataclasses
import errno
import time
from dataclasses import dataclass
from pathlib import Path

from optpipe import __version__, pipeline
from optpipe.backends.executors.local import LocalExecutor, Site
from optpipe.console import Talk
from optpipe.errors import EnvironmentMissing, Interrupted, OptpipeError
from optpipe.keep import drop_after
from optpipe.model import hardware
from optpipe.outcome import Outcome
from optpipe.recipe.load import Loaded
from optpipe.recipe.schema import Recipe
from optpipe.records import Json, Published
from optpipe.report.data import ReportData
from optpipe.report.markdown import markdown
from optpipe.report.page import html
from optpipe.run import Run, Toolchains
from optpipe.rundir import RunFolder, write_atomic
from optpipe.summary import summary

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
"""Of an OSError: the disk is no place to write any more."""


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
        return summary(self.outcome, self.data, self.folder, self.jobs)


def run_build(loaded: Loaded, artifacts: Path) -> Built:
    """Build a recipe. Raises OptpipeError; what is done by then is kept for the next try."""
    recipe, began = loaded.recipe, time.monotonic()
    machine = hardware.this_machine()
    about = {
        "recipe_path": str(loaded.path),
        "recipe": resolved(recipe),
        "hardware": dataclasses.asdict(machine),
        "versions": {"optpipe": __version__},
    }
    folder = RunFolder(artifacts, recipe.name, about)
    with Talk() as talk:
        chains = Toolchains(recipe.toolchains, talk)
        executor = LocalExecutor(folder.store, chains, Site.here(machine), folder.path / "logs", talk)
        run = Run(folder, executor, machine, talk, loaded.path.parent, chains)
        try:
            with loaded.places():
                out = pipeline.build(run, recipe)
        except KeyboardInterrupt:
            folder.note(error="interrupted", versions=chains.versions())
            raise Interrupted("interrupted; the next build goes on where this one stopped") from None
        except OptpipeError as error:
            folder.note(error=str(error), versions=chains.versions())
            raise
        except OSError as error:
            if error.errno not in FULL:
                raise
            hint = "make room (`optpipe cache gc --max-size 0` drops all that can be made again) and build again"
            raise EnvironmentMissing(f"{error.strerror}: {error.filename}", hint=hint) from None
        finally:
            executor.close()
        drop_after(recipe.keep, out, folder.store)
    seconds = {"install": chains.install_s, "build": time.monotonic() - began - chains.install_s}
    folder.note(seconds=seconds)
    folder.write("publish.json", {"published": out.published})
    data = run.records(out)
    write_atomic(folder.path / "report.md", markdown(data).encode())
    write_atomic(folder.path / "report.html", html(data).encode())
    return Built(folder.path, out, data, {"run": executor.ran, "kept": executor.kept})


def resolved(recipe: Recipe) -> Json:
    """The recipe with every default visible, and the gates' numbers."""
    return recipe.model_dump(mode="json", exclude={"extends"})
