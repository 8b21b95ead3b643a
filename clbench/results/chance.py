"""Methods that end no better than a constant answer."""

from collections.abc import Iterable
from statistics import fmean

from clbench.core.errors import join_names
from clbench.results.cell import CellResult

CHANCE = 0.1
"""Share of the way from a task's floor to 1 below which a score counts as chance."""


def at_chance(cells: Iterable[CellResult]) -> list[str]:
    """Return a line for each scenario and task on which methods end at chance or below.

    Their mean score over seeds after the last stage is then less than `CHANCE` of the way from the
    score of the best constant answer to 1. Tasks without such a floor are left out.
    """
    above: dict[tuple[str, str], dict[str, list[float]]] = {}
    for cell in cells:
        if cell.status != "ok" or cell.reference_of is not None:
            continue
        for task, score, floor in zip(cell.tasks, cell.R[-1], cell.floors, strict=False):
            if score is not None and floor is not None and floor < 1.0:
                by_method = above.setdefault((cell.scenario, task), {})
                by_method.setdefault(cell.baseline, []).append((score - floor) / (1.0 - floor))
    return [
        f"{scenario}: at chance or below on {task} in the end: {join_names(names)}"
        for (scenario, task), by_method in above.items()
        if (names := [name for name, values in by_method.items() if fmean(values) < CHANCE])
    ]
