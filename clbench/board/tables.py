"""Tables of the board: the methods of all entries of a suite that can be compared."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from clbench.board.agreement import largest_gap
from clbench.board.entries import Entry
from clbench.board.manifest import GRADES, UNVERIFIED
from clbench.core.errors import count, join_names
from clbench.results.cell import CellResult, without_extra_points
from clbench.results.ranks import Ranking, rank_methods
from clbench.results.resume import first_difference
from clbench.results.score_tables import means, score_rows
from clbench.results.store import Store
from clbench.suite.read import packaged_files, read_suite
from clbench.suite.scores import SCORE, Score

COSTS = {
    "train_seconds": "train s",
    "training_memory_mb": "memory MB",
    "search_seconds": "search s",
}
COLUMNS = {
    "average": "average",
    "p_o": "p_o",
    "p_s": "p_s",
    "mean_forgetting": "forgetting",
} | COSTS
"""Titles of scores and costs that tables show as means, without verdicts."""


@dataclass(frozen=True)
class Row:
    """A method of an entry in a table, and `also` later entries that have no other cells of it.

    `label` is its baseline, with the entry's name if another row is called so, and the baseline of
    its `cells`. `means` has the `COLUMNS`, over seeds and then over scenarios.
    """

    label: str
    entry: Entry
    cells: tuple[CellResult, ...]
    means: Mapping[str, float]
    also: tuple[Entry, ...] = ()

    @property
    def seeds(self) -> int:
        """Number of seeds with a finished cell."""
        return len({cell.seed for cell in self.cells if cell.status == "ok"})


@dataclass(frozen=True)
class Table:
    """Rows under equal conditions, best first, ranked by one score with the error rate `alpha`.

    `note` says what differs from an earlier table of this title; `is_first` whether no other table
    has all its scenarios; `reference` is the label of the row with which the page compares.
    """

    title: str
    note: str
    scenarios: tuple[str, ...]
    is_first: bool
    score: Score
    reference: str | None
    alpha: float
    ranking: Ranking
    rows: tuple[Row, ...]
    disagreements: tuple[str, ...] = ()

    @property
    def heading(self) -> str:
        """Title and note."""
        return f"{self.title} ({self.note})" if self.note else self.title

    @property
    def leaders(self) -> list[str]:
        """Labels of the rows that no other is shown to beat; none without a comparison."""
        best = {name: ranks[0] for name, ranks in self.ranking.ranges.items()}
        return [row.label for row in self.rows if self.ranking.family and best.get(row.label) == 1]

    @property
    def cells(self) -> list[CellResult]:
        """All finished cells, best row first."""
        return [cell for row in self.rows for cell in row.cells if cell.status == "ok"]


def suite_tables(entries: Iterable[Entry]) -> list[Table]:
    """Return the tables of the entries of one suite; those over several scenarios first.

    Cells are compared only under equal conditions: rows, model and protocol. The entries of the
    highest grade come first, of these the methods with most cells, and no cell is shown twice.
    """
    results = [each for each in entries if each.is_result]
    results.sort(key=_below_best)
    conditions: dict[str, Mapping[str, Any]] = {}
    scenarios: dict[str, str] = {}
    wholes: dict[frozenset[str], tuple[str, ...]] = {}  # entries may order scenarios differently
    for each in results:
        conditions = {**each.conditions, **conditions}
        cells = [cell for cell in each.cells if cell.reference_of is None]
        own = {each.condition[cell.key]: cell.scenario for cell in cells}
        scenarios |= own
        if len({*own.values()}) == len(own) > 1:
            wholes.setdefault(frozenset(own), tuple(own))
    tables, earlier = [], dict[str, Mapping[str, Any]]()
    for scope in (*wholes.values(), *((key,) for key in scenarios)):
        if rows := _rows(results, scope):
            names, now = tuple(scenarios[key] for key in scope), conditions[scope[0]]
            title = names[0] if len(names) == 1 else f"mean over {len(names)} scenarios"
            text = first_difference(now, earlier.setdefault(title, now), sections=[*now]) or ""
            note = text.removeprefix("was run with ").replace(", now ", " instead of ")
            is_first = not any({*scope} < whole for whole in wholes)
            table = _table(rows, title, note, names, is_first)
            tables.append(replace(table, disagreements=_disagreements(results, scope)))
    times = Counter(table.heading for table in tables)
    return [_with_names(table) if times[table.heading] > 1 else table for table in tables]


def _below_best(entry: Entry) -> int:
    """Return how many grades an entry is below the highest."""
    return (*reversed(GRADES), UNVERIFIED).index(entry.grade)


def _with_names(table: Table) -> Table:
    """Return a table whose note also names its entries, to tell it from one of the same title."""
    names = dict.fromkeys(each.name for row in table.rows for each in (row.entry, *row.also))
    return replace(table, note="; ".join(filter(None, [table.note, f"of {', '.join(names)}"])))


def _disagreements(results: Sequence[Entry], scope: Sequence[str]) -> tuple[str, ...]:
    """Return a line on every two entries whose cells of one recipe differ by more than machines do.

    How far machines differ is in `clbench.board.agreement.NOISE`.
    """
    first: dict[tuple[str, str], tuple[Entry, CellResult]] = {}
    gaps: dict[tuple[str, str], dict[str, float]] = {}
    for each in results:
        for cell in each.cells:
            if cell.status != "ok" or each.condition[cell.key] not in scope:
                continue
            entry, theirs = first.setdefault((cell.key, cell.fingerprint), (each, cell))
            if gap := largest_gap(theirs, cell):
                gaps.setdefault((entry.name, each.name), {})[cell.key] = gap
    return tuple(
        f"{one} and {other} do not agree on {count(len(own), 'cell')} of the same recipe: scores "
        f"differ by up to {max(own.values()):.3f}, more than machines do ({join_names(own)})."
        for (one, other), own in gaps.items()
    )


def _table(
    rows: list[Row], title: str, note: str, scenarios: tuple[str, ...], is_first: bool
) -> Table:
    first = rows[0].entry
    is_packaged = first.suite["name"] in packaged_files("scenarios")
    question = read_suite(first.suite["name"]).file.asked if is_packaged else first.question
    score = SCORE[question.scores[0] if len(question.scores) == 1 else "average"]
    alpha = min(Store(row.entry.path).alpha(row.seeds) for row in rows)
    cells = [cell for row in rows for cell in row.cells if cell.status == "ok"]
    # Of equal references the last counts, so that of the highest grade.
    alone = [c for row in rows[::-1] for c in row.entry.cells if c.reference_of is not None]
    ranking = rank_methods([*cells, *alone], score.name, alpha=alpha, margin=question.margin)
    sign = -1.0 if score.higher_is_better else 1.0
    order = {name: sign * found.mean for name, found in ranking.summaries.items()}
    rows.sort(key=lambda row: order.get(row.label, math.inf))
    reference = question.reference if question.reference in order else None
    about = title, note, scenarios, is_first, score
    return Table(*about, reference, alpha, ranking, tuple(rows))


def _rows(results: Sequence[Entry], scope: Sequence[str]) -> list[Row]:
    """Return the methods that have all conditions of a table; none if one has no finished cell."""
    samples: list[tuple[Entry, str, list[CellResult]]] = []
    for each in results:
        by_baseline: dict[str, list[CellResult]] = {}
        for cell in without_extra_points(each.cells):
            if cell.reference_of is None and each.condition[cell.key] in scope:
                by_baseline.setdefault(cell.baseline, []).append(cell)
        samples += [
            (each, baseline, cells)
            for baseline, cells in by_baseline.items()
            if {each.condition[cell.key] for cell in cells} == {*scope}
        ]
    samples.sort(key=lambda sample: (_below_best(sample[0]), -len(sample[2])))
    rows, shown = list[Row](), set[tuple[str, str]]()
    for each, baseline, cells in samples:
        for number, row in enumerate(rows):
            if _repeats(cells, row.cells):
                rows[number] = replace(row, also=(*row.also, each))
                break
        else:
            new = [cell for cell in cells if (cell.key, cell.fingerprint) not in shown]
            if {each.condition[cell.key] for cell in new} != {*scope}:
                continue
            label = baseline
            while any(row.label == label for row in rows):
                label = f"{label} ({each.name})"
            own = tuple(cell.model_copy(update={"baseline": label}) for cell in new)
            shown |= {(cell.key, cell.fingerprint) for cell in own}
            some = means(score_rows(own))
            mean = {name: fmean(row[f"{name}_mean"] for row in some) for name in COLUMNS}
            rows.append(Row(label, each, own, {n: m for n, m in mean.items() if m == m}))
    good = (cell.scenario for row in rows for cell in row.cells if cell.status == "ok")
    return rows if len({*good}) == len(scope) else []


def _repeats(cells: Iterable[CellResult], earlier: Iterable[CellResult]) -> bool:
    """Whether all cells are among earlier ones: of one key, and of one recipe or equal scores."""
    known = {cell.key: cell for cell in earlier}
    return all(
        (same := known.get(cell.key)) and (cell.fingerprint == same.fingerprint or cell.R == same.R)
        for cell in cells
    )
