"""How many seeds a planned comparison needs, estimated from the spread of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clbench.results.statistics import ALPHA, POWER, seeds_needed, spread_interval
from clbench.suite.question import FEWEST

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ("scenario", "method", "score", "pairs", "spread", "seeds", "seeds_low", "seeds_high")


def power_frame(
    comparisons: pd.DataFrame, difference: float, power: float = POWER, alpha: float = ALPHA
) -> pd.DataFrame:
    """Return how many seeds show a true difference in each primary comparison of a run.

    Comparisons of fewer than `FEWEST` seeds are left out, as they are from the family of a report.

    Parameters
    ----------
    comparisons
        Result of `clbench.results.comparisons.comparisons_frame`.
    difference
        True mean difference from the reference, as a fraction.
    power, alpha
        Probability of showing it, and error rate of all primary comparisons together.

    Returns
    -------
    pandas.DataFrame
        ``seeds`` for the observed ``spread`` of a difference between two cells of one seed, and
        for the ends of the spread's 95 % interval; None if more than
        `clbench.suite.question.MOST_SEEDS` are needed.
    """
    import pandas as pd

    table = comparisons[comparisons["primary"] & (comparisons["pairs"] >= FEWEST)]
    primary = table.to_dict("records")
    rows = []
    for row in primary:
        spreads = (row["spread"], *spread_interval(row["spread"], row["pairs"] - 1))
        seeds = [
            seeds_needed(spread, difference, alpha=alpha / len(primary), power=power)
            for spread in spreads
        ]
        names = {name: row[name] for name in COLUMNS[:5]}
        rows.append({**names, **dict(zip(COLUMNS[5:], seeds, strict=True))})
    return pd.DataFrame(rows, columns=list(COLUMNS), dtype=object)  # None is no NaN
