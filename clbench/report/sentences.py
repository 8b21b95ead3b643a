"""Verdicts in sentences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from clbench.suite.question import FEWEST

if TYPE_CHECKING:
    import pandas as pd

Row = Mapping[Any, Any]


def sentences(comparisons: pd.DataFrame, scenario: str, reference: str) -> list[str]:
    """Return sentences on one scenario, one for each kind of verdict on p_o.

    They claim only what an interval supports, and state a settled difference in p_s.
    """
    rows = comparisons[comparisons["scenario"] == scenario].to_dict("records")
    old: dict[str, Row] = {row["method"]: row for row in rows if row["score"] == "p_o"}
    new: dict[str, Row] = {row["method"]: row for row in rows if row["score"] == "p_s"}
    if not old:
        return ["No finished cell has scores on two tasks."]
    if reference not in old:
        return [f"{reference} was not run, so there is nothing to compare with."]
    compared = {name: row for name, row in old.items() if isinstance(row["verdict"], str)}
    if not compared:
        if len(old) == 1:
            return [f"Only {reference} was run."]
        return [f"No method is compared with {reference} in p_o."]
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
            lines.append(f"{methods} {keep} {word} of the old task than {reference}.")
    if names := by_verdict.get("equivalent"):
        methods = _join([f"{name} ({_interval(compared[name])})" for name in names])
        verb = "differs" if len(names) == 1 else "differ"
        lines.append(f"{methods} {verb} from {reference} in p_o by less than matters.")
    if names := by_verdict.get("no difference shown"):
        methods = _join([f"{name} ({_interval(compared[name])})" for name in names])
        lines.append(f"No difference in p_o from {reference} is shown for {methods}.")
    if names := by_verdict.get("no verdict"):
        lines.append(f"There are too few seeds for a verdict on {_join(names)}.")
    return lines


def _interval(row: Row) -> str:
    low, high = row["difference_low"], row["difference_high"]
    return f"{row['difference']:+.3f}, {low:+.3f} to {high:+.3f}"


def _describe(name: str, row: Row, new: Row) -> str:
    numbers = f"p_o {_interval(row)}"
    if new.get("verdict") in ("better", "worse"):
        numbers += f"; p_s {new['difference']:+.3f}, {new['verdict']}"
    return f"{name} ({numbers})"


def _join(parts: Sequence[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
