"""Compare every method with vanilla, seed by seed: a table and sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from clbench.results.scores import SCORES, Score
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
COLUMNS = (
    *("scenario", "shift", "method", "score", "n", "mean", "median", "deviation"),
    *("minimum", "maximum", "low", "high"),
    *("pairs", "difference", "difference_low", "difference_high", "level"),
    *("p", "p_holm", "verdict", "seeds_needed", "why"),
)
Row = Mapping[Any, Any]


def comparisons_frame(frame: pd.DataFrame, reference: str = REFERENCE) -> pd.DataFrame:
    """Return summaries of all methods, and their differences from a reference.

    Differences are taken seed by seed. If m methods are compared in a scenario, intervals have the
    level 1 − 0.05/m, so that they hold jointly at 95 % (Bonferroni); p is corrected after Holm.

    Parameters
    ----------
    frame
        Result of `clbench.results.scores.scores_frame`; failed cells are ignored.
    reference
        The method that the others are compared with.

    Returns
    -------
    pandas.DataFrame
        Columns as in `COLUMNS`; scores are fractions. For each score that is `compared`: ``n``
        seeds, mean, median, deviation, range, bootstrap 95 % interval. For its difference from
        the reference: common seeds (``pairs``), mean, paired interval and its level, sign-flip p,
        p after Holm, verdict, seeds needed to settle it, and ``why`` there is no verdict.
    """
    import pandas as pd

    good = frame[frame["status"] == "ok"]
    rows: list[dict[str, Any]] = []
    for (scenario, shift), group in good.groupby(["scenario", "shift"], sort=False):
        for score in (score for score in SCORES if score.compared):
            values: dict[str, dict[int, float]] = {}
            for method, some in group.dropna(subset=[score.name]).groupby("method", sort=False):
                values[str(method)] = dict(zip(some["seed"], some[score.name], strict=True))
            names = {"scenario": scenario, "shift": shift, "score": score.name}
            rows += [{**names, **row} for row in _rows(values, score, reference)]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def _rows(
    values: Mapping[str, Mapping[int, float]], score: Score, reference: str
) -> list[dict[str, Any]]:
    """Return a row for each method from its scores by seed."""
    baseline = values.get(reference, {})
    others = [
        name for name, seeds in values.items() if name != reference and seeds.keys() & baseline
    ]
    level = 1.0 - (1.0 - LEVEL) / max(len(others), 1)
    better = score.higher_is_better
    compared = {
        name: compare(values[name], baseline, level=level, higher_is_better=better)
        for name in others
    }
    corrected = holm({name: comparison.p for name, comparison in compared.items()})
    rows = []
    for name, seeds in values.items():
        row: dict[str, Any] = {"method": name, **asdict(summarise(list(seeds.values())))}
        if name == reference:
            row["why"] = "the reference"
        elif (comparison := compared.get(name)) is None:
            none = f"no seed in common with {reference}"
            row["why"] = none if baseline else f"{reference} was not run"
        else:
            row |= asdict(comparison)
            row |= {"p_holm": corrected[name], "why": _why(comparison)}
        rows.append(row)
    return rows


def _why(comparison: Comparison) -> str:
    """Return why there is no verdict, or no number of seeds that would give one."""
    if comparison.pairs < FEWEST:
        seeds = f"{comparison.pairs} common seed{'' if comparison.pairs == 1 else 's'}"
        return f"only {seeds}; at least {FEWEST} are needed"
    if comparison.verdict != "no difference shown" or comparison.seeds_needed is not None:
        return ""
    if comparison.difference_low == comparison.difference_high == 0:
        return "the difference is exactly 0 on every seed"
    return f"more than {MOST_SEEDS} seeds would be needed to settle it"


def sentences(comparisons: pd.DataFrame, scenario: str) -> list[str]:
    """Return sentences on one scenario, one for each kind of verdict on p_o.

    They claim nothing that an interval does not support, and name the cost in p_s.
    """
    rows = comparisons[comparisons["scenario"] == scenario].to_dict("records")
    old: dict[str, Row] = {row["method"]: row for row in rows if row["score"] == "p_o"}
    new: dict[str, Row] = {row["method"]: row for row in rows if row["score"] == "p_s"}
    if not old:
        return ["No finished cell has scores on two tasks."]
    if REFERENCE not in old:
        return [f"{REFERENCE} was not run, so there is nothing to compare with."]
    compared = {name: row for name, row in old.items() if isinstance(row["verdict"], str)}
    if not compared:
        if len(old) == 1:
            return [f"Only {REFERENCE} was run."]
        return [f"No method has a seed in common with {REFERENCE}."]
    most = max(int(row["pairs"]) for row in compared.values())
    if most < FEWEST:
        return [f"No verdict: at least {FEWEST} common seeds are needed (here {most})."]
    by_verdict: dict[str, list[str]] = {}
    for name in sorted(compared, key=lambda name: -abs(compared[name]["difference"])):
        by_verdict.setdefault(compared[name]["verdict"], []).append(name)
    lines = []
    for verdict, word in (("better", "more"), ("worse", "less")):
        if names := by_verdict.get(verdict):
            keep = "keeps" if len(names) == 1 else "keep"
            methods = _join([_describe(name, compared[name], new.get(name, {})) for name in names])
            lines.append(f"{methods} {keep} {word} of the old task than {REFERENCE}.")
    if names := by_verdict.get("no difference shown"):
        methods = _join([_describe_open(name, compared[name]) for name in names])
        lines.append(f"No difference in p_o from {REFERENCE} is shown for {methods}.")
    if names := by_verdict.get("no verdict"):
        lines.append(f"There are too few seeds for a verdict on {_join(names)}.")
    return lines


def _describe(name: str, row: Row, new: Row) -> str:
    low, high = row["difference_low"], row["difference_high"]
    numbers = f"p_o {row['difference']:+.3f}, {low:+.3f} to {high:+.3f}"
    if new.get("verdict") in ("better", "worse"):
        numbers += f"; p_s {new['difference']:+.3f}, {new['verdict']}"
    return f"{name} ({numbers})"


def _describe_open(name: str, row: Row) -> str:
    needed = row["seeds_needed"]
    enough = needed is not None and needed == needed  # pandas has NaN for None
    more = f"; about {int(needed)} seeds would settle it" if enough else ""
    return f"{name} ({row['difference']:+.3f}{more})"


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
