"""What a report contains: the cells of its runs, and what they say."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import pandas as pd

from clbench.core.errors import RunFolderError, join_names
from clbench.methods.base import METHODS
from clbench.report.pictures import sparklines
from clbench.report.sentences import mark, paper_frame
from clbench.results import score_tables
from clbench.results.cell import CellResult, plain, summarizer, without_extra_points
from clbench.results.comparisons import FIELDS, comparisons_frame, controls_frame
from clbench.results.fronts import fronts_frame, points_frame
from clbench.results.matched import matched_frame
from clbench.results.published import compare_published
from clbench.results.reading import Cells
from clbench.results.resume import first_difference
from clbench.results.statistics import ALPHA, summarise
from clbench.results.store import Store
from clbench.suite.schema import FEWEST, Question
from clbench.suite.scores import SCORE, SCORES, Score
from clbench.training.protocol import Protocol

COSTS = {
    "train_seconds": ("train s", "seconds of training, without scoring"),
    "search_seconds": ("search s", "seconds of the search for the method’s settings"),
    "training_memory_mb": ("memory MB", "peak size of a training step’s tensors, in 10⁶ bytes"),
}
"""Columns of costs on the page: title and meaning."""


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

    def cards(self) -> list[dict[str, Any]]:
        """Return a card for each scenario and method, with the row of each of its scores."""
        cards: dict[tuple[str, str], dict[str, Any]] = {}
        for row in self.rows("cards"):
            key = row["scenario"], row["method"]
            card = cards.setdefault(key, {"scenario": key[0], "method": key[1], "scores": {}})
            card["seeds"] = row["seeds"]
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
        "overall": score_tables.overall_frame(main, question.reference, question.scores),
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
    good = [cell for cell in cells if cell.status == "ok" and cell.reference_of is None]
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

    ``mean`` is over seeds, ``low`` to ``high`` its 95 % interval by Student's t, NaN for fewer than
    three seeds.
    """
    values: dict[tuple[str, str, str], list[float]] = {}
    for row in score_tables.score_rows(cells):
        if row.get("divergence") is None:  # a cell whose model was not measured
            continue
        for score in card_scores():
            if (value := row.get(score.name)) is not None:
                key = row["scenario"], row["method"], score.name
                values.setdefault(key, []).append(value)
    rows = []
    for (scenario, method, name), some in values.items():
        found = summarise(some)
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


MOST_DETAILS = 500
"""Above this number of cells, the page shows details of failed ones only."""
MOST_SCENARIOS = 6
"""Number of scenarios, from the first, that have figures of their own on the page."""

Meanings = dict[tuple[str, str], Any]
"""What names stand for: settings, by kind (``method`` or ``scenario``) and name."""


def read_runs(stores: Sequence[Store]) -> tuple[list[CellResult], list[str], bool]:
    """Return the cells of all runs, notes on them, and whether a cell is damaged or missing.

    If a name means different things in two runs, the name of the later run is added to it: to a
    scenario with other rows or settings, to a method with other settings or with a seed that an
    earlier run has too, and to all methods of a run whose protocol differs from the first run's.
    Cells keep their curves only if the report shows them.

    Raises
    ------
    RunFolderError
        If a folder is not a run or has no cell.
    """
    cells: list[CellResult] = []
    notes: list[str] = []
    is_damaged = False
    keys: set[str] = set()
    earlier: Meanings = {}
    labels = run_labels(stores)
    summarize = summarizer(_curve_filter())
    for store, label in zip(stores, labels, strict=True):
        run, meanings = _read_run(store, summarize)
        notes += run.broken_lines(())
        is_damaged = is_damaged or bool(run.broken or run.missing)
        pairs = {key: (earlier.get(key, value), value) for key, value in meanings.items()}
        texts = {key: _difference(*pair) for key, pair in pairs.items() if pair[0] != pair[1]}
        changed = {key: text.removeprefix("was run with ") for key, text in texts.items() if text}
        what = {"method": "settings", "scenario": "tasks or settings"}
        notes += [
            f"{name} in {label} has other {what[kind]} than in earlier runs: {text}."
            for (kind, name), text in changed.items()
        ]
        clashing = {cell.baseline for cell in run.cells if cell.key in keys}
        clashing |= {name for kind, name in changed if kind == "method"}
        if _protocol_differences([stores[0], store], ["first", "this"]):
            clashing |= {cell.baseline for cell in run.cells}
        families = {cell.family for cell in run.cells if cell.family and cell.baseline in clashing}
        keys |= {cell.key for cell in run.cells}
        for cell in run.cells:
            changes = {}
            if ("scenario", cell.scenario) in changed:
                changes = {"scenario": f"{cell.scenario} ({label})"}
            elif cell.baseline in clashing or cell.family in families:
                changes = {"baseline": f"{cell.baseline} ({label})"}
                if cell.family:
                    changes["family"] = f"{cell.family} ({label})"
            cells.append(cell.model_copy(update=changes) if changes else cell)
        earlier = meanings | earlier
    if differences := _protocol_differences(stores, labels):
        notes.append(
            f"The protocols differ ({'; '.join(differences)}), so differences between these runs "
            "are not due to their methods alone."
        )
    notes += [
        f"{store.suite_path} cannot be read, so its question, looks and protocol are unknown."
        for store in stores
        if store.suite_path.exists() and not store.read_suite()
    ]
    plans = [(s.questions()[-1], s.looks()) for s in stores if s.read_suite()]
    notes += [
        f"The {what} of these runs differ; the verdicts are for those of {labels[0]}."
        for what, position in (("questions", 0), ("looks", 1))
        if any(plan[position] != plans[0][position] for plan in plans)
    ]
    tuned_on: dict[str, set[int]] = {}
    for cell in cells:
        if cell.seed in cell.search.get("seeds", ()):
            tuned_on.setdefault(cell.baseline, set()).add(cell.seed)
    notes += [
        f"{name}: its settings were tuned on seeds that are shown here "
        f"({join_names(map(str, sorted(seeds)))}), so its scores on them are too good by chance."
        for name, seeds in tuned_on.items()
    ]
    return cells, notes, is_damaged


def _read_run(
    store: Store, summarize: Callable[[CellResult], CellResult]
) -> tuple[Cells, Meanings]:
    meanings: Meanings = {}

    def record(cell: CellResult) -> CellResult:
        if cell.status == "ok" and cell.reference_of is None:
            method = {"name": cell.method, "settings": cell.settings.get("method")}
            meanings.setdefault(("method", cell.baseline), {"method": method})
        sections = {key: cell.recipe.get(key) for key in ("scenario", "shift", "files", "tasks")}
        meanings.setdefault(("scenario", cell.scenario), sections)
        return summarize(cell)

    store.require()
    run = store.read(transform=record)
    if not run.cells:
        broken = "".join(f" {line}" for line in list(run.broken_lines(()))[:1])
        raise RunFolderError(f"{store.out} has no finished cell yet. Run it first.{broken}")
    return run, meanings


def _difference(before: Any, now: Any) -> str | None:
    """Return how two meanings differ; a setting of a method that one of them lacks is its default.

    An earlier version of clbench may have had no such setting.
    """
    name, both = now.get("method", {}).get("name"), [before, now]
    settings: list[Any] = [each.get("method", {}).get("settings") or {} for each in both]
    if settings[0].keys() != settings[1].keys() and name in METHODS:
        fields = METHODS.get(name).settings_model().model_fields.items()
        added = plain({n: field.get_default(call_default_factory=True) for n, field in fields})
        both = [
            {"method": {**each["method"], "settings": {**added, **own}}}
            for each, own in zip(both, settings, strict=True)
        ]
    return first_difference(*both)


def _curve_filter() -> Callable[[CellResult], bool]:
    """Return a function that tells whether the page shows a cell's curves anywhere."""
    count = 0
    scenarios: set[str] = set()

    def is_shown(cell: CellResult) -> bool:
        nonlocal count
        count += 1
        if cell.status == "ok" and len(scenarios) < MOST_SCENARIOS:
            scenarios.add(cell.scenario)
        return count <= MOST_DETAILS or cell.status == "failed" or cell.scenario in scenarios

    return is_shown


def run_labels(stores: Sequence[Store]) -> list[str]:
    """Return the names of the folders, with as many parents as are needed to tell them apart."""
    parts = [store.out.resolve().parts for store in stores]
    for count in range(1, max(map(len, parts)) + 1):
        labels = ["/".join(each[-count:]) for each in parts]
        if len(set(labels)) == len(labels):
            break
    return labels


def _protocol_differences(stores: Sequence[Store], labels: Sequence[str]) -> list[str]:
    """Return the settings of the protocol that differ between the runs in which it is known."""
    all_protocols = {
        label: store.read_suite().get("protocol", {})
        for label, store in zip(labels, stores, strict=True)
    }
    # A run of an earlier version may lack a setting, which then had its present default.
    fields = Protocol.model_fields.items()
    added = plain({name: field.get_default(call_default_factory=True) for name, field in fields})
    protocols = {label: {**added, **own} for label, own in all_protocols.items() if own}
    differences = []
    for key in dict.fromkeys(key for protocol in protocols.values() for key in protocol):
        values = {label: protocol.get(key) for label, protocol in protocols.items()}
        if any(value != next(iter(values.values())) for value in values.values()):
            each = ", ".join(f"{value} in {label}" for label, value in values.items())
            differences.append(f"{key}: {each}")
    return differences
