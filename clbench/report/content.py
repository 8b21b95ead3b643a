"""What a report contains: the cells of its runs, and what they say."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from clbench.report.pictures import sparklines
from clbench.report.sentences import mark, paper_frame
from clbench.results import score_tables
from clbench.results.cell import CellResult, steps_by_scenario, without_extra_points
from clbench.results.comparisons import FIELDS, comparisons_frame, controls_frame
from clbench.results.fronts import fronts_frame, points_frame
from clbench.results.matched import matched_frame
from clbench.results.overall import overall_frame
from clbench.results.published import compare_published
from clbench.results.statistics import ALPHA, summarise
from clbench.suite.formulas import measure_change
from clbench.suite.schema import FEWEST, Question
from clbench.suite.scores import SCORE, SCORES, Score

COSTS = {
    "train_seconds": ("train s", "seconds of training, without scoring"),
    "search_seconds": ("search s", "seconds of the search for the method’s settings"),
    "training_memory_mb": ("memory MB", "peak size of a training step’s tensors, in 10⁶ bytes"),
}
"""Columns of costs on the page: title and meaning."""


ONE_TASK = "zero_shot: "
"""How the names of measures begin that are the accuracy on texts, or on one untrained task."""
MOST_DETAILS = 500
"""Above this number of cells, the page shows details of failed ones only."""
MOST_SCENARIOS = 6
"""Number of scenarios, from the first, that have figures of their own on the page."""


@dataclass(frozen=True)
class Content:
    """Everything in a report but its figures: the cells, references included, and its tables.

    Tables by name: `scores` has a row for each cell, `means` for each method; `comparisons` are
    with the reference of the `question`, `overall` over all scenarios, `controls` with the
    controls; `paper` has texts for a paper's table; `floors` has a row for each task, `fronts` one
    for each trade-off curve, `points` for each of its points, and `matched` what it forgets where
    as much is learned; `cards` has what a language model
    gained and lost, and `published` what papers found. Points of sweeps are only in `cells`,
    `scores`, `fronts`, `points` and `matched`.
    """

    question: Question
    cells: tuple[CellResult, ...]
    tables: dict[str, pd.DataFrame]

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, with None in place of NaN."""
        return [
            {str(key): None if value != value else value for key, value in row.items()}
            for row in self.tables[table].to_dict("records")
        ]

    def overview(self) -> dict[str, Any]:
        """Return counts and other facts that the page states once."""
        frame, comparisons = self.tables["scores"], self.tables["comparisons"]
        return {
            "cells": len(frame),
            "failed": int((frame["status"] != "ok").sum()),
            "scenarios": frame["scenario"].nunique(),
            "methods": self.tables["means"]["method"].nunique(),
            "seeds": frame["seed"].nunique(),
            "models": list(dict.fromkeys(map(_model, self.cells))),
            "failures": score_tables.failures(self.cells),
            "compared": int((comparisons["primary"] & (comparisons["pairs"] >= FEWEST)).sum()),
            "averaged": [
                name
                for name in dict.fromkeys(cell.scenario for cell in self.cells)
                if self.question.mean_over_scenarios and self.question.covers(name)
            ],
        }

    def methods(self) -> list[dict[str, Any]]:
        """Return the rows of the table of scores: means, marks and the answers of the question."""
        answers = {
            (row["scenario"], row["method"], row["score"]): row for row in self.rows("comparisons")
        }
        rows = self.rows("means")
        for row in rows:
            row["marks"] = score_tables.marks(flag for flag in score_tables.MARKS if row[flag])
            row["answers"] = [
                answers.get((row["scenario"], row["method"], score), dict.fromkeys(FIELDS))
                for score in self.question.scores
            ]
            for answer in row["answers"]:
                answer["mark"] = mark(answer["verdict"]) if answer["primary"] else ""
        return rows

    def scores(self) -> list[Score]:
        """Return the scores of the table of scores, the question's first; cards have the others."""
        asked = [SCORE[name] for name in self.question.scores]
        others = score_tables.visible_scores(self.rows("means"), page=True)
        return asked + [s for s in others if s not in asked and not (s.on_card and s.needs)]

    def costs(self) -> dict[str, tuple[str, str]]:
        """Return the costs that the table of scores shows, with title and meaning."""
        rows = self.rows("means")
        return {
            name: cost
            for name, cost in COSTS.items()
            if score_tables.has_value(rows, f"{name}_mean")
        }

    def card_tasks(self) -> dict[str, str]:
        """Return the tasks on the capability cards by the name of their score."""
        names = [row["score"] for row in self.rows("cards")]
        return {n: n.removeprefix(ONE_TASK) for n in names if n.startswith(ONE_TASK)}

    def cards(self) -> list[dict[str, Any]]:
        """Return a card for each scenario and method, with the row of each of its scores."""
        cards: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.rows("cards"):
            key = row["scenario"], row["method"]
            card = cards.setdefault(key, {"scenario": key[0], "method": key[1], "scores": {}})
            card["seeds"] = max(row["seeds"], card.get("seeds", 0))
            card["scores"][row["score"]] = row
        return list(cards.values())

    def flips(self) -> list[dict[str, Any]]:
        """Return the comparisons of p_o with counts of flipped rows that the question asks for."""
        question = self.question
        return [
            row
            for row in self.rows("comparisons")
            if (row["score"], row["rows_lost"] is None) == ("p_o", False)
            and (
                row["method"] == question.reference
                or question.depends_on(row["scenario"], "p_o", row["method"])
            )
        ]

    def details(self) -> list[tuple[CellResult, list[dict[str, Any]]]]:
        """Return cells with the rows of R and their stages; of too many only failed ones."""
        cells = list(self.cells)
        if len(cells) > MOST_DETAILS:
            cells = [cell for cell in cells if cell.status == "failed"][:MOST_DETAILS]
        return [(cell, [_stage(cell, row) for row in range(len(cell.R))]) for cell in cells]


def _model(cell: CellResult) -> str:
    """Return a cell's model, with what `auto` chose for it; older cells do not say all of it."""
    chosen = [str(cell.settings.get("precision") or "")]
    if pooling := cell.settings.get("pooling"):
        chosen.append(f"{pooling} of the tokens" if pooling == "mean" else f"{pooling} token")
    return f"{cell.model} ({', '.join(filter(None, chosen))})" if any(chosen) else cell.model


def gather(
    cells: Sequence[CellResult],
    question: Question = Question(),  # noqa: B008 - immutable
    alpha: float = ALPHA,
    suites: Sequence[str] = (),
) -> Content:
    """Return the tables and statistics of cells of these suites; see `comparisons_frame`."""
    main = without_extra_points(cells)
    published = [compare_published(name, cells) for name in dict.fromkeys(suites)]
    comparisons = comparisons_frame(main, question, alpha)
    tables = {
        "scores": score_tables.scores_frame(cells, question.reference),
        "means": score_tables.summary(score_tables.scores_frame(main, question.reference)),
        "comparisons": comparisons,
        "paper": paper_frame(comparisons, question),
        "overall": overall_frame(main, question.reference, question.scores),
        "controls": controls_frame(main, question, alpha),
        "floors": floors_frame(main),
        "fronts": fronts_frame(cells, question.reference, alpha),
        "points": points_frame(cells),
        "matched": matched_frame(cells, question.reference, alpha),
        "cards": cards_frame(main),
        "published": pd.DataFrame([r for frame in published for r in frame.to_dict("records")]),
    }
    return Content(question, tuple(cells), tables)


def floors_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return the floors of each scenario's tasks, a row for each; empty if no cell has floors.

    ``constant`` is the score of always predicting the majority class, and ``frozen`` that of the
    method of this name after all training, as a mean over seeds, where it was run.
    """
    good = [cell for cell in cells if cell.is_scored]
    ends: dict[str, list[list[float | None]]] = {}
    for cell in good:
        if cell.method == "frozen":
            ends.setdefault(cell.scenario, []).append(cell.R[-1])
    rows = []
    for cell in {cell.scenario: cell for cell in good if cell.floors}.values():
        for j, (task, floor) in enumerate(zip(cell.tasks, cell.floors, strict=True)):
            scores = [end[j] for end in ends.get(cell.scenario, [])]
            frozen = fmean(score or 0.0 for score in scores) if scores else None
            rows.append({"scenario": cell.scenario, "task": task, "constant": floor})
            rows[-1]["frozen"] = frozen
    if all(row["constant"] is row["frozen"] is None for row in rows):
        rows = []
    return pd.DataFrame(rows, columns=["scenario", "task", "constant", "frozen"])


def card_scores() -> list[Score]:
    """Return the scores of a capability card."""
    return [score for score in SCORES if score.on_card]


def cards_frame(cells: Sequence[CellResult]) -> pd.DataFrame:
    """Return a row for each scenario, method and score of a card; empty if nothing was measured.

    After the scores comes the accuracy that was lost on each task answered without training, as
    ``zero_shot: NAME``, if there are several. ``mean`` is over seeds, ``low`` to ``high`` its 95 %
    interval by Student's t, with the step of the score (for tasks that of ``capability_rows``,
    though some have fewer rows); NaN for fewer than three seeds.
    """
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in score_tables.score_rows(cells):
        if row.get("divergence") is None:  # a cell whose model was not measured
            continue
        for name in (score.name for score in card_scores()):
            if (value := row.get(name)) is not None:
                values.setdefault((row["scenario"], row["method"], name), []).append(value)
    good = [cell for cell in cells if cell.is_scored]
    for cell in good:
        names = [key for key in (*cell.capabilities, {})[0] if key.startswith(ONE_TASK)]
        for name in names if len(names) > 1 else []:
            if (value := measure_change(cell.capabilities, name, -1.0)) is not None:
                values.setdefault((cell.scenario, cell.baseline, name), []).append(value)
    rows, steps = [], steps_by_scenario(cells)
    for (scenario, method, name), some in values.items():
        score = "zero_shot_lost" if name.startswith(ONE_TASK) else name
        found = summarise(some, steps[scenario].get(score, 0.0))
        rows.append({"scenario": scenario, "method": method, "score": name, "seeds": found.n})
        rows[-1] |= {"mean": found.mean, "low": found.low, "high": found.high}
    fields = ["scenario", "method", "score", "seeds", "mean", "low", "high"]
    return pd.DataFrame(rows, columns=fields)


def finished_scenarios(cells: Sequence[CellResult]) -> list[str]:
    """Return the scenarios with a finished cell, in order."""
    return list(dict.fromkeys(cell.scenario for cell in cells if cell.status == "ok"))


def _stage(cell: CellResult, row: int) -> dict[str, Any]:
    """Return a row of R, and its stage with the sparklines of its curves."""
    # Where the pretraining is the first task, its row has no stage.
    index = row - len(cell.R) + len(cell.stages)
    stage = cell.stages[index] if 0 <= index < len(cell.stages) else None
    return {
        "task": cell.tasks[row] if stage is None else stage.task,
        "scores": cell.R[row],
        "record": stage,
        "curves": [] if stage is None else sparklines(stage),
    }
