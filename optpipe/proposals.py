"""Which engine configuration to measure next: the space's cells and two ways to choose among them. Pure."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from optpipe.records import Json, Trial

Space = Mapping[str, Sequence[Any]]
Refuse = Callable[[Json], str | None]
Method = Literal["gp", "tpe"]

MOST_CELLS = 4096
"""A larger space is searched among so many of its cells, drawn at random."""
DESIGN = (0.6, 0.25)
"""Where in the range of every number the first trials after the default lie."""
NOISE = 0.05
"""Standard deviation of log goodput between two measurements of one configuration that is assumed."""
LENGTHS = (0.25, 0.5, 1.0, 2.0, 6.0)
"""Length scales tried for each setting; 6 means that it does not matter."""


@dataclass(frozen=True)
class Search:
    """What is searched: `space` by setting, None in a configuration's place meaning the engine's own default.

    `default`: the configuration measured first. `ceiling`: goodput that no configuration can exceed, the
    requested rate of an open load. `refuse`: why the engine would not take a configuration, or None.
    """

    candidate: str
    space: Space
    default: Json
    trials: int
    seed: int = 1
    method: Method = "gp"
    ceiling: float | None = None
    refuse: Refuse = lambda config: None
    first: tuple[Json, ...] = ()
    """Configurations to try right after the default: what the engine's backend knows to be promising."""


# ---------------------------------------------------------------- the space


def cells_of(search: Search) -> Iterator[Json]:
    """The default, then every other configuration that the engine would take; each once."""
    names = list(search.space)
    choices = [choices_of(search, name) for name in names]
    start = {name: search.default.get(name) for name in names}
    fixed = {name: value for name, value in search.default.items() if name not in search.space}
    yield fixed | start
    for values in drawn(choices, search.seed):
        cell = fixed | dict(zip(names, values))
        if cell != fixed | start and search.refuse(settings(cell)) is None:
            yield cell


def choices_of(search: Search, name: str) -> list[Any]:
    """The choices of one setting with the default's own first; None where the default leaves it unset."""
    default = search.default.get(name)
    return [default, *(value for value in search.space[name] if value != default)]


def drawn(choices: Sequence[Sequence[Any]], seed: int) -> Iterator[tuple[Any, ...]]:
    """All combinations, or MOST_CELLS distinct ones at random."""
    total = math.prod(len(part) for part in choices)
    if total <= MOST_CELLS:
        yield from itertools.product(*choices)
        return
    for number in random.Random(seed).sample(range(total), MOST_CELLS):
        values = []
        for part in choices:
            number, at = divmod(number, len(part))
            values.append(part[at])
        yield tuple(values)


def settings(cell: Json) -> Json:
    """A cell as an engine configuration: what is None is left to the engine."""
    return {name: value for name, value in cell.items() if value is not None}


def coordinates(search: Search, cells: Sequence[Json]) -> list[list[tuple[float, ...]]]:
    """Every cell as one point per setting: numbers by rank from 0 to 1, an unset one aside, words apart."""
    columns = []
    for name in search.space:
        choices = choices_of(search, name)
        numbers = sorted(value for value in choices if type(value) in (int, float))
        points: dict[str, tuple[float, ...]]
        if len(numbers) > 1 and len(numbers) >= len(choices) - 1:
            points = {repr(v): (i / (len(numbers) - 1), 0.0) for i, v in enumerate(numbers)}
            points = {repr(v): (0.5, 1.0) for v in choices} | points
        else:
            points = {
                repr(v): tuple(0.7 * (i == j) for j in range(len(choices))) for i, v in enumerate(choices)
            }
        columns.append([points[repr(cell[name])] for cell in cells])
    return columns


# ---------------------------------------------------------------- what to measure next


def proposals(search: Search, cells: Sequence[Json], history: Sequence[tuple[int, Trial]]) -> Iterator[int]:
    """Indexes of cells, none twice: the default, the promising, a few spread over the numbers, the model's choice.

    Numbers are spread around whatever was best of the default and the promising.
    """
    known = [0, *(cells.index(cell) for one in search.first if (cell := {**cells[0], **one}) in cells)]
    columns = coordinates(search, cells)
    planned, spread = list(known), False
    while len(history) < len(cells):
        seen = {index for index, _ in history}
        if not spread and seen >= set(known):
            spread = True
            best = max(zip(scores(history), (-index for index, _ in history)))[1]
            planned += designed(search, cells, -best)
        planned = [index for index in planned if index not in seen]
        if planned:
            yield planned.pop(0)
        elif search.method == "tpe":
            yield by_tpe(search, cells, history)
        else:
            yield by_gaussian_process(columns, history)


def designed(search: Search, cells: Sequence[Json], start: int = 0) -> list[int]:
    """Cells with every number at the same height of its range, everything else as cell `start` has it."""
    found: list[int] = []
    for height in DESIGN:
        cell = dict(cells[start])
        for name in search.space:
            numbers = sorted(v for v in choices_of(search, name) if type(v) in (int, float))
            if len(numbers) > 2:
                cell[name] = numbers[round(height * (len(numbers) - 1))]
        if cell in cells and cells.index(cell) not in (0, *found):
            found.append(cells.index(cell))
    return found


def scores(history: Sequence[tuple[int, Trial]]) -> list[float]:
    """Log of each trial's objective, at most 3 below the best; an infeasible one counts as clearly worse."""
    values = [objective(trial) for _, trial in history]
    logs = [math.log(value) if value else None for value in values]
    floor = max((log for log in logs if log is not None), default=0.0) - 3.0
    known = [max(floor, log) for log in logs if log is not None]
    worst = min(known, default=0.0) - 0.3
    return [worst if log is None else max(floor, log) for log in logs]


def objective(trial: Trial) -> float | None:
    """Goodput, with output tokens per second deciding between equal ones; None where it was infeasible."""
    if trial.status == "infeasible" or trial.goodput_per_s is None:
        return None
    tokens = trial.output_tokens_per_s.value if trial.output_tokens_per_s else 0.0
    return trial.goodput_per_s.value + 1e-6 * tokens


def by_gaussian_process(columns: Sequence[Any], history: Sequence[tuple[int, Trial]]) -> int:
    """The unmeasured cell of largest expected improvement; length scales by marginal likelihood.

    Squared-exponential kernel with a scale per setting, fitted by coordinate ascent over LENGTHS under a
    log-normal prior (Rasmussen and Williams 2006, chapters 2 and 5).
    """
    import numpy as np

    seen = [index for index, _ in history]
    y = np.array(scores(history))
    spread = max(float(y.std()), 0.2)
    z = (y - y.mean()) / spread
    squares = np.array([((np.array(c)[:, None] - np.array(c)[None, seen]) ** 2).sum(-1) for c in columns])
    nugget = ((NOISE / spread) ** 2 + 1e-6) * np.eye(len(seen))
    lengths = fitted_lengths(squares[:, seen], z, nugget)
    kernel = np.exp(-0.5 * (squares / lengths[:, None, None] ** 2).sum(0))
    weights = np.linalg.solve(kernel[seen] + nugget, np.column_stack([z, kernel.T]))
    mean = kernel @ weights[:, 0]
    deviation = np.sqrt(np.maximum(1.0 - (kernel * weights[:, 1:].T).sum(1), 1e-9))
    gain = (mean - mean[seen].max()) / deviation
    density = np.exp(-0.5 * gain**2) / math.sqrt(2 * math.pi)
    below = np.array([0.5 * math.erfc(-g / math.sqrt(2)) for g in gain])
    improvement = deviation * (gain * below + density)
    improvement[seen] = -1.0
    return int(improvement.argmax())


def fitted_lengths(squares: Any, z: Any, nugget: Any) -> Any:
    """One length scale per setting; `squares`: squared distances [settings, trials, trials]."""
    import numpy as np

    def loss(lengths: Any) -> float:
        kernel = np.exp(-0.5 * (squares / lengths[:, None, None] ** 2).sum(0)) + nugget
        root = np.linalg.cholesky(kernel)
        fit = np.linalg.solve(root, z)
        return float(0.5 * fit @ fit + np.log(np.diag(root)).sum() + 0.05 * (np.log(lengths) ** 2).sum())

    best = np.ones(len(squares))
    for _ in range(2):
        for at in range(len(best)):
            tries = [np.where(np.arange(len(best)) == at, length, best) for length in LENGTHS]
            best = min([best, *tries], key=loss)
    return best


def by_tpe(search: Search, cells: Sequence[Json], history: Sequence[tuple[int, Trial]]) -> int:
    """Optuna's tree-structured Parzen estimator by ask and tell; cells that are measured are asked past."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    shape = {
        name: optuna.distributions.CategoricalDistribution(range(len(choices_of(search, name))))
        for name in search.space
    }

    def point(cell: Json) -> dict[str, int]:
        return {name: choices_of(search, name).index(cell[name]) for name in search.space}

    sampler = optuna.samplers.TPESampler(seed=search.seed + len(history), n_startup_trials=3)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for (index, _), score in zip(history, scores(history)):
        study.add_trial(
            optuna.trial.create_trial(params=point(cells[index]), distributions=shape, value=score)
        )
    seen = {index for index, _ in history}
    free = {tuple(point(cell).values()): i for i, cell in enumerate(cells) if i not in seen}
    for _ in range(200):
        asked = study.ask(shape)
        found = free.get(tuple(asked.params[name] for name in search.space))
        if found is not None:
            return found
        study.tell(asked, state=optuna.trial.TrialState.FAIL)
    return min(free.values())
