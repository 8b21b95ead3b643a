"""Every method beside vanilla, seed by seed, a row for each scenario × method × score."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clbench.results.statistics import (
    FEWEST,
    LEVEL,
    MOST_SEEDS,
    Comparison,
    compare,
    holm,
    summarise,
)

if TYPE_CHECKING:
    import pandas as pd

REFERENCE = "vanilla"
SCORES = ("p_o", "p_s", "forgetting")
HIGHER_IS_BETTER = {"p_o": True, "p_s": True, "forgetting": False}
COLUMNS = (
    *("scenario", "shift", "method", "score", "n", "mean", "median", "deviation"),
    *("minimum", "maximum", "low", "high"),
    *("pairs", "difference", "difference_low", "difference_high", "level"),
    *("p", "p_holm", "verdict", "seeds_needed", "why"),
)


def comparisons_frame(frame: pd.DataFrame, reference: str = REFERENCE) -> pd.DataFrame:
    """Summaries of all methods, and their differences to one of them.

    Differences are taken seed by seed. For the m methods that are compared with the reference in
    one scenario, intervals have the level 1 − 0.05/m, so that together they hold with 95 %
    (Bonferroni), and p is corrected after Holm. The verdict says what the interval says.

    Parameters
    ----------
    frame
        As `clbench.results.scores.scores_frame` makes it; cells that failed do not count.
    reference
        The method that others are compared with.

    Returns
    -------
    pandas.DataFrame
        Columns as in `COLUMNS`: of the score (``n`` seeds, mean, median, deviation, range,
        bootstrap 95 % interval) and of its difference to the reference (``pairs`` common seeds,
        mean, paired interval and its level, sign-flip p, the same after Holm, verdict, seeds
        needed to settle it, and ``why`` there is no verdict). Fractions.
    """
    import pandas as pd

    good = frame[frame["status"] == "ok"]
    rows: list[dict[str, Any]] = []
    for (scenario, shift), group in good.groupby(["scenario", "shift"], sort=False):
        for score in SCORES:
            values = {
                str(method): _by_seed(some, score)
                for method, some in group.groupby("method", sort=False)
            }
            values = {method: seeds for method, seeds in values.items() if seeds}
            rows += [
                {"scenario": scenario, "shift": shift, "score": score, **row}
                for row in _rows(values, score, reference)
            ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _by_seed(frame: pd.DataFrame, score: str) -> dict[int, float]:
    known = frame.dropna(subset=[score])
    return {
        int(seed): float(value) for seed, value in zip(known["seed"], known[score], strict=True)
    }


def _rows(values: dict[str, dict[int, float]], score: str, reference: str) -> list[dict[str, Any]]:
    others = [
        name
        for name, seeds in values.items()
        if name != reference and seeds.keys() & values.get(reference, {}).keys()
    ]
    level = 1.0 - (1.0 - LEVEL) / max(len(others), 1)
    made = {
        name: compare(
            values[name],
            values[reference],
            level=level,
            higher_is_better=HIGHER_IS_BETTER[score],
        )
        for name in others
    }
    corrected = holm({name: comparison.p for name, comparison in made.items()})
    rows = []
    for name, seeds in values.items():
        row: dict[str, Any] = {"method": name, **asdict(summarise(list(seeds.values())))}
        comparison = made.get(name)
        if comparison is None:
            row["why"] = "the reference" if name == reference else _why(values, name, reference)
        else:
            row |= {
                "pairs": comparison.n,
                "difference": comparison.mean,
                "difference_low": comparison.low,
                "difference_high": comparison.high,
                "level": comparison.level,
                "p": comparison.p,
                "p_holm": corrected[name],
                "verdict": comparison.verdict,
                "seeds_needed": comparison.needed,
                "why": _why_open(comparison),
            }
        rows.append(row)
    return rows


def _why_open(comparison: Comparison) -> str:
    """Why there is no verdict, or no number of seeds that would give one."""
    if comparison.n < FEWEST:
        return f"{comparison.n} common seeds are too few; {FEWEST} are the least"
    if comparison.verdict == "no difference shown" and comparison.needed is None:
        return (
            "every seed differs by exactly 0"
            if comparison.low == comparison.high == 0
            else f"more than {MOST_SEEDS} seeds would be needed to settle it"
        )
    return ""


def _why(values: dict[str, dict[int, float]], name: str, reference: str) -> str:
    if reference not in values:
        return f"{reference} was not run"
    return f"no seed in common with {reference}"
