"""What stands on the page, as plain values for the template."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from clbench.report.comparisons import REFERENCE, SCORES, comparisons_frame
from clbench.report.curves import lines
from clbench.report.verdict import sentences
from clbench.results.cell import CellResult
from clbench.results.scores import failures, scores_frame, summary
from clbench.results.statistics import LEVEL

if TYPE_CHECKING:
    import pandas as pd

MOST_SCENARIOS = 6
"""Scenarios with figures of their own on the page; the first ones."""
MOST_DETAILS = 500
"""Cells whose details stand on the page; of more, only those that failed."""


@dataclass(frozen=True)
class Content:
    """Everything that a report is made of, but for its figures.

    Attributes
    ----------
    cells
        Of all runs, references included.
    frame, means, comparisons
        One row a cell; means over seeds; differences to vanilla.
    """

    cells: tuple[CellResult, ...]
    frame: pd.DataFrame
    means: pd.DataFrame
    comparisons: pd.DataFrame

    @property
    def scenarios(self) -> list[str]:
        """Those with a finished cell, in order."""
        return finished_scenarios(self.cells)


def finished_scenarios(cells: Sequence[CellResult]) -> list[str]:
    """Scenarios with a finished cell, in order."""
    return list(dict.fromkeys(cell.scenario for cell in cells if cell.status == "ok"))


def gather(cells: Sequence[CellResult]) -> Content:
    """Tables and statistics of cells."""
    from threadpoolctl import threadpool_limits

    # Its many products are small: several threads would only wait for each other.
    with threadpool_limits(limits=1, user_api="blas"):
        frame = scores_frame(cells)
        return Content(tuple(cells), frame, summary(frame), comparisons_frame(frame))


def verdicts(content: Content) -> list[tuple[str, list[str]]]:
    """For each scenario its sentences."""
    return [(name, sentences(content.comparisons, name)) for name in content.scenarios]


def table_rows(content: Content) -> list[dict[str, Any]]:
    """Rows of the large table: numbers to sort by, and texts to show."""
    verdict = {
        (row["scenario"], row["method"]): row
        for row in content.comparisons[content.comparisons["score"] == "p_o"].to_dict("records")
    }
    rows = []
    for row in content.means.to_dict("records"):
        beside = verdict.get((row["scenario"], row["method"]), {})
        shown: dict[str, Any] = {
            "scenario": row["scenario"],
            "shift": row["shift"],
            "method": row["method"],
            "model": row["model"],
            "keeps_rows": row["keeps_rows"],
            "seeds": row["seeds"],
            "failed": row["failed"],
            "verdict": _verdict(_text(beside.get("verdict")), _text(beside.get("why"))),
            "p_holm": _number(beside.get("p_holm")),
            "difference": _number(beside.get("difference")),
            "interval": [_number(beside.get(k)) for k in ("difference_low", "difference_high")],
        }
        for name in (
            *SCORES,
            "average",
            "bwt",
            "train_seconds",
            "training_memory_mb",
            "search_seconds",
        ):
            shown[name] = _number(row[f"{name}_mean"])
            shown[f"{name}_std"] = _number(row[f"{name}_std"])
        rows.append(shown)
    return rows


def _verdict(verdict: str, why: str) -> str:
    """What stands in a row: the verdict, and why there is none."""
    return f"{verdict}: {why}" if verdict == "no verdict" and why else verdict or why


def published_rows(content: Content, suites: Sequence[str]) -> list[dict[str, Any]]:
    """Published figures of the suites beside ours; empty where no suite follows a paper."""
    from clbench.results.published import beside

    rows: list[dict[str, Any]] = []
    for suite in dict.fromkeys(suites):
        rows += beside(suite, content.cells).to_dict("records")  # type: ignore[arg-type]
    return rows


def details(content: Content) -> tuple[list[dict[str, Any]], int]:
    """Details of single cells, and how many were left out for their number."""
    chosen = list(content.cells)
    if len(chosen) > MOST_DETAILS:
        chosen = [cell for cell in chosen if cell.status == "failed"][:MOST_DETAILS]
    made = [
        {
            "key": cell.key,
            "status": cell.status,
            "reason": cell.reason,
            "settings": json.dumps(cell.settings, indent=1),
            "versions": json.dumps({**cell.versions, **cell.host}, indent=1),
            "tasks": cell.tasks,
            "stages": [_stage(cell, number) for number in range(len(cell.R))],
            "curve_rows": cell.settings.get("protocol", {}).get("curve_rows", "some"),
            "notes": cell.notes,
            "search": {name: value for name, value in cell.search.items() if value is not None},
            "training_memory_mb": cell.training_memory_mb,
            "peak_memory_mb": cell.peak_memory_mb,
            "started": cell.started,
        }
        for cell in chosen
    ]
    return made, len(content.cells) - len(made)


def _stage(cell: CellResult, number: int) -> dict[str, Any]:
    """A row of R with what its stage took, as far as that is known."""
    # Where the pretraining is the first task, its row has no stage.
    place = number - len(cell.R) + len(cell.stages)
    stage = cell.stages[place] if 0 <= place < len(cell.stages) else None
    return {
        "task": cell.tasks[number] if stage is None else stage.task,
        "scores": [_number(score) for score in cell.R[number]],
        "rows": None if stage is None else float(stage.rows),
        "steps": None if stage is None else float(stage.steps),
        "seconds": None if stage is None else stage.train_seconds,
        "cached": stage is not None and stage.cached,
        "curves": [] if stage is None else lines(stage),
    }


def overview(content: Content) -> dict[str, Any]:
    """Counts for the head of the page."""
    frame = content.frame
    return {
        "cells": len(frame),
        "failed": int((frame["status"] != "ok").sum()),
        "scenarios": frame["scenario"].nunique(),
        "methods": frame["method"].nunique(),
        "seeds": frame["seed"].nunique(),
        "models": list(dict.fromkeys(frame["model"])),
        "failures": failures(content.cells),
        "reference": REFERENCE,
        "searched": bool(frame["search_seconds"].notna().any()),
        "level": round(100 * LEVEL),
    }


def _number(value: Any) -> float | None:
    return None if value is None or math.isnan(value) else float(value)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
