"""Power: how many seeds a comparison needs to show a difference."""

import math

import pandas as pd

from clbench.results.statistics import ALPHA, LEVEL, POWER, t_quantile
from clbench.suite.schema import FEWEST, MOST_SEEDS


def seeds_needed(
    spread: float,
    difference: float,
    *,
    alpha: float = ALPHA,
    power: float = POWER,
) -> int | None:
    """Return how many seeds show a true mean difference by a two-sided test, at least `FEWEST`.

    `spread` is the standard deviation of a difference between two cells of one seed. None if more
    than `MOST_SEEDS` are needed.
    """
    from scipy.special import nctdtr

    def is_enough(n: int) -> bool:
        noncentrality = abs(difference) / spread * math.sqrt(n) if spread else math.inf
        if noncentrality > 30.0:  # certain, and too large for nctdtr
            return True
        critical = t_quantile(1.0 - alpha, n - 1)
        return bool(1.0 - nctdtr(n - 1, noncentrality, critical) >= power)

    if difference == 0 or not is_enough(MOST_SEEDS):
        return None
    low, high = FEWEST - 1, MOST_SEEDS
    while high - low > 1:  # power grows with the seeds
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def power_frame(
    comparisons: pd.DataFrame, difference: float, power: float = POWER, alpha: float = ALPHA
) -> pd.DataFrame:
    """Return how many seeds show a true difference in each primary comparison of a run.

    `comparisons` come from `clbench.results.comparisons.comparisons_frame`; those of fewer than
    `FEWEST` seeds are left out, as they are from the family of a report. ``seeds`` are what
    `seeds_needed` gives for the observed ``spread`` of a difference between two cells of one seed,
    ``seeds_low`` and ``seeds_high`` for the ends of its 95 % interval for normal differences.
    """
    from scipy.special import chdtri

    table = comparisons[comparisons["primary"] & (comparisons["pairs"] >= FEWEST)]
    rows = []
    for row in table.to_dict("records"):
        freedom = row["pairs"] - 1
        ends = [freedom / chdtri(freedom, q) for q in ((1 - LEVEL) / 2, (1 + LEVEL) / 2)]
        spreads = {"seeds": 1.0, "seeds_low": ends[0], "seeds_high": ends[1]}
        entry = {name: row[name] for name in ("scenario", "method", "score", "pairs", "spread")}
        for name, ratio in spreads.items():
            spread = row["spread"] * math.sqrt(ratio)
            entry[name] = seeds_needed(spread, difference, alpha=alpha / len(table), power=power)
        rows.append(entry)
    return pd.DataFrame(rows, dtype=object)  # None is no NaN
