"""What the numbers say, in sentences: no word that an interval does not bear out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clbench.report.comparisons import REFERENCE
from clbench.results.statistics import FEWEST

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Any, Any]


def sentences(comparisons: pd.DataFrame, scenario: str) -> list[str]:
    """The verdict on one scenario.

    Parameters
    ----------
    comparisons
        As `clbench.report.comparisons.comparisons_frame` makes it.
    scenario
        Its name.

    Returns
    -------
    list of str
        One sentence a kind of finding on p_o, each with its numbers, and what it costs in p_s.
    """
    rows = comparisons[comparisons["scenario"] == scenario].to_dict("records")
    old: dict[str, Row] = {row["method"]: row for row in rows if row["score"] == "p_o"}
    new: dict[str, Row] = {row["method"]: row for row in rows if row["score"] == "p_s"}
    if not old:
        return ["No finished cell has the scores of a pair."]
    if REFERENCE not in old:
        return [f"{REFERENCE} was not run here, so nothing is compared with it."]
    compared = {name: row for name, row in old.items() if isinstance(row["verdict"], str)}
    if not compared:
        alone = len(old) == 1
        return [f"Only {REFERENCE} was run here." if alone else f"No seed is that of {REFERENCE}."]
    most = max(int(row["pairs"]) for row in compared.values())
    if most < FEWEST:
        seeds = "1 seed" if most == 1 else f"{most} seeds"
        return [f"No verdict: {seeds}, and a verdict needs {FEWEST} or more."]
    by_verdict: dict[str, list[str]] = {}
    for name, row in compared.items():
        by_verdict.setdefault(row["verdict"], []).append(name)
    made = []
    for verdict, word in (("better", "more"), ("worse", "less")):
        if some := by_verdict.get(verdict):
            some.sort(key=lambda name: -abs(compared[name]["difference"]))
            told = _joined([_told(name, compared[name], new.get(name, {})) for name in some])
            keep = "keeps" if len(some) == 1 else "keep"
            made.append(f"{told} {keep} {word} of the old task than {REFERENCE}.")
    if some := by_verdict.get("no difference shown"):
        told = _joined([_open(name, compared[name]) for name in some])
        made.append(f"No difference in p_o to {REFERENCE} is shown for {told}.")
    if some := by_verdict.get("no verdict"):
        made.append(f"Too few seeds for a verdict on {_joined(some)}.")
    return made


def _told(name: str, row: Row, new: Row) -> str:
    numbers = (
        f"p_o {row['difference']:+.3f}, {row['difference_low']:+.3f} to "
        f"{row['difference_high']:+.3f}"
    )
    if new.get("verdict") not in ("better", "worse"):
        return f"{name} ({numbers})"
    return f"{name} ({numbers}; p_s {new['difference']:+.3f}, {new['verdict']})"


def _open(name: str, row: Row) -> str:
    needed = row["seeds_needed"]
    known = needed is not None and needed == needed  # NaN, as pandas has it, is none
    more = f"; about {int(needed)} seeds would settle it" if known else ""
    return f"{name} ({row['difference']:+.3f}{more})"


def _joined(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
