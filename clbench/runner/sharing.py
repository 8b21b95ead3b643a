"""Which trained stages the cells of a run can share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress

from clbench.core.errors import ClbenchError
from clbench.core.user_code import user_code
from clbench.methods.base import METHODS, Method, at_rate
from clbench.methods.vanilla import Vanilla
from clbench.suite.plan import Cell
from clbench.suite.validation import stages_of


def vanilla_stages(method: Method, stages: int) -> int:
    """Return how many of the first `stages` vanilla's training serves.

    In these stages the method trains as vanilla does, from the weights that vanilla has.
    """
    first = next((index for index in range(stages) if method.acts_in(index)), stages)
    if method.only_consolidates:
        return min(stages, first + 1)
    return first if type(method) is Vanilla else min(stages, first, 1)


def stage_groups(cells: Sequence[Cell]) -> dict[str, Hashable | None]:
    """Return scenario, seed and rate of each cell that vanilla's first stage serves, or None."""
    return {
        key: (cell.scenario.name, cell.seed, rate) if stages else None
        for key, (cell, rate, stages) in _vanilla_stages(cells).items()
    }


def stages_to_share(cells: Sequence[Cell]) -> dict[str, int]:
    """Return for each cell how many of its first stages another one of `cells` can use.

    A stage serves cells with the same seed and the same tasks so far, in orders of one sequence,
    too: those with the same baseline, and while vanilla's training serves both, any at the same
    rate. Cells are left out for which that is at most the first stage, unless it is of an order.
    """
    counts: Counter[Hashable] = Counter()
    stages: dict[str, list[Hashable]] = {}
    for key, (cell, rate, vanilla) in _vanilla_stages(cells).items():
        if cell.reference_of is None:
            stages[key] = list(_stage_keys(cell, rate, vanilla))
            counts.update(stages[key])
    shared = {}
    for cell in cells:
        usable = sum(counts[stage] > 1 for stage in stages.get(cell.key, ()))
        if usable > ("order" not in cell.scenario.settings):
            shared[cell.key] = usable
    return shared


def _stage_keys(cell: Cell, rate: float | None, vanilla: int) -> Iterator[Hashable]:
    """Yield what decides each stage of a cell, as far as cells of one run differ."""
    spec = cell.scenario
    tasks = spec.task_names if "order" in spec.settings else (spec.name,) * stages_of(spec)
    for position in range(len(tasks)):
        method = rate if position < vanilla else cell.baseline.name
        yield spec.series, cell.seed, tasks[: position + 1], position < vanilla, method


def _vanilla_stages(cells: Sequence[Cell]) -> dict[str, tuple[Cell, float | None, int]]:
    """Return for each cell its flat rate and `vanilla_stages`."""
    numbers: dict[tuple[str, str], int] = {}
    rates: dict[tuple[str, str], float] = {}
    result: dict[str, tuple[Cell, float | None, int]] = {}
    for cell in cells:
        scenario, baseline = cell.scenario, cell.baseline
        kind = scenario.name, baseline.name
        if kind not in numbers:
            numbers[kind] = 0  # after an error: the cells will fail with it
            with suppress(ClbenchError), user_code("acts_in"):
                method = METHODS.get(baseline.method)(**baseline.settings)
                stages = stages_of(scenario) if cell.reference_of is None else 1
                rates[kind] = at_rate(method, cell.protocol).lr
                numbers[kind] = vanilla_stages(method, stages)
        usable = cell.reference_of in (None, 0)
        result[cell.key] = cell, rates.get(kind), numbers[kind] if usable else 0
    return result
