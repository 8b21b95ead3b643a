"""Methods against the cheapest control of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import fmean
from typing import TYPE_CHECKING

from clbench.results.cell import CellResult
from clbench.results.comparisons import score_steps
from clbench.results.statistics import ALPHA, Differences, compare

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = (
    *("scenario", "control", "time", "method", "pairs", "difference", "spread", "freedom"),
    *("difference_low", "difference_high", "level", "p", "p_family", "verdict"),
)


def controls_frame(
    cells: Sequence[CellResult], reference: str = "vanilla", alpha: float = ALPHA
) -> pd.DataFrame:
    """Compare the methods of each scenario with its cheapest control in p = p_o + p_s.

    The cheapest control is the one with the least mean ``train_seconds``; controls that keep rows
    are upper bounds and do not count. The comparisons are exploratory: one family over all
    scenarios, apart from that of the question, with the error rate `alpha`.

    Parameters
    ----------
    cells
        Cells of a run; failed ones and single-task references are ignored.
    reference
        The method whose time is the unit.
    alpha
        Error rate of the family.

    Returns
    -------
    pandas.DataFrame
        Columns as in `COLUMNS`: the ``control``, its ``time`` as a multiple of the reference's,
        and for each method that is no control the fields of `Comparison`; ``better`` means that it
        beats the control. Empty if no control was run.
    """
    import pandas as pd

    by_name: dict[str, dict[str, list[CellResult]]] = {}
    for cell in cells:
        if cell.status == "ok" and cell.reference_of is None and len(cell.R) > 1:
            by_name.setdefault(cell.scenario, {}).setdefault(cell.baseline, []).append(cell)
    groups: dict[str, dict[str, Differences]] = {}
    controls: dict[str, tuple[str, float]] = {}
    for scenario, methods in by_name.items():
        seconds = {name: fmean(c.train_seconds for c in some) for name, some in methods.items()}
        cheap = [
            name for name, (cell, *_) in methods.items() if cell.control and not cell.keeps_rows
        ]
        if not cheap:
            continue
        control = min(cheap, key=lambda name: seconds[name])
        unit = seconds.get(reference, 0.0)
        controls[scenario] = control, seconds[control] / unit if unit else math.nan
        base = {cell.seed: _p(cell) for cell in methods[control]}
        steps = score_steps(methods[control][0])
        step = math.hypot(steps.get("p_o", 0.0), steps.get("p_s", 0.0))
        groups[scenario] = {
            name: Differences(tuple(_p(c) - base[c.seed] for c in some if c.seed in base), step)
            for name, some in methods.items()
            if not some[0].control
        }
    rows = [
        {
            "scenario": scenario,
            "control": controls[scenario][0],
            "time": controls[scenario][1],
            "method": method,
            **asdict(comparison),
        }
        for (scenario, method), comparison in compare(groups, alpha=alpha).items()
    ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _p(cell: CellResult) -> float:
    """Return p_o + p_s."""
    old, new = cell.R[-1][0], cell.R[-1][-1]
    assert old is not None
    assert new is not None
    return old + new
