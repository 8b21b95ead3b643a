"""Which trained stages the cells of a run can share."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from contextlib import suppress

from clbench.boundary import user_code
from clbench.errors import ClbenchError
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
        key: group if stages else None for key, (group, stages) in _vanilla_stages(cells).items()
    }


def stages_to_share(cells: Sequence[Cell]) -> dict[str, int]:
    """Return for each cell how many of its first stages another one of `cells` can use.

    Cells are left out for which that is at most the first stage.
    """
    by_group: dict[Hashable, dict[str, int]] = defaultdict(dict)
    for key, (group, stages) in _vanilla_stages(cells).items():
        by_group[group][key] = stages
    shared = {}
    for counts in by_group.values():
        for key, stages in counts.items():
            others = max((n for other, n in counts.items() if other != key), default=0)
            if min(stages, others) > 1:
                shared[key] = min(stages, others)
    return shared


def _vanilla_stages(cells: Sequence[Cell]) -> dict[str, tuple[Hashable, int]]:
    """Return for each cell scenario, seed and flat rate, and `vanilla_stages`."""
    numbers: dict[tuple[str, str], int] = {}
    rates: dict[tuple[str, str], float] = {}
    result: dict[str, tuple[Hashable, int]] = {}
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
        group = scenario.name, cell.seed, rates.get(kind)
        result[cell.key] = group, numbers[kind] if usable else 0
    return result
