"""Capability cards: what each method gained on the tasks, and what the base model lost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from clbench.report.content import number
from clbench.results.cell import CellResult
from clbench.results.score_tables import score_rows
from clbench.results.scores import SCORE
from clbench.results.statistics import summarise

if TYPE_CHECKING:
    import pandas as pd

CARD = (
    "average",
    "gained",
    "zero_shot_transfer",
    "text_loss_added",
    "zero_shot_lost",
    "divergence",
    "same_token",
    "obedience",
)
"""Scores of a card."""


def cards_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return a row for each scenario, method and score of a card; empty if nothing was measured.

    ``mean`` is over seeds, ``low`` to ``high`` its 95 % interval by Student's t, NaN for fewer than
    three seeds.
    """
    import pandas as pd

    values: dict[tuple[str, str, str], list[float]] = {}
    for row in score_rows(cells):
        if row.get("divergence") is None:
            continue
        for name in CARD:
            if (value := row.get(name)) is not None:
                values.setdefault((row["scenario"], row["method"], name), []).append(value)
    rows = []
    for (scenario, method, score), some in values.items():
        found = summarise(some)
        rows.append({"scenario": scenario, "method": method, "score": score, "seeds": found.n})
        rows[-1] |= {"mean": found.mean, "low": found.low, "high": found.high}
    columns = ["scenario", "method", "score", "seeds", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def card_rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a row for each scenario and method, with mean and interval of each score of a card."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in frame.to_dict("records"):
        key = row["scenario"], row["method"]
        entry = rows.setdefault(key, {"scenario": key[0], "method": key[1], "scores": {}})
        entry["seeds"] = row["seeds"]
        ends = None if math.isnan(row["low"]) else (row["low"], row["high"])
        entry["scores"][row["score"]] = (number(row["mean"]), ends)
    return list(rows.values())


def card_titles() -> dict[str, tuple[str, str]]:
    """Return label and meaning of each score of a card."""
    return {name: (SCORE[name].label, SCORE[name].meaning) for name in CARD}
