"""Whether cells that were trained again agree with those of a submission."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from clbench.board.submission import Outcome
from clbench.core.errors import count, join_names
from clbench.core.files import plain
from clbench.methods.base import METHODS
from clbench.results.cell import TOLERANCE, CellResult, cell_scores, unpack_rows
from clbench.results.resume import defaults_of

LEVEL = 0.001
"""Error rate of the test of whether rows that differ favour the submission."""
FACTS = ("keeps_rows", "needs_task_id", "control", "tasks", "floors")
"""Fields of a cell that must be equal."""


@dataclass(frozen=True)
class Noise:
    """How far two trainings of one cell may differ: the share of rows, and scores.

    Scores above 1, such as losses in nats, may differ by that share of themselves.
    """

    rows: float
    score: float

    def allows(self, theirs: float, ours: float) -> bool:
        """Whether two scores differ by no more than machines do; NaN never does."""
        return abs(theirs - ours) <= self.score * max(1.0, abs(ours))


NOISE = {"float32": Noise(rows=0.02, score=0.02), "bf16": Noise(rows=0.04, score=0.03)}
"""By precision: twice the largest differences that were measured in bf16, and half of that in
float32, in which none was found; see docs/submit.md."""


def noise_of(*cells: CellResult) -> Noise:
    """Return how far two trainings of a cell may differ: as with bf16 if one of them used it."""
    precisions = [str(cell.settings.get("precision", "float32")) for cell in cells]
    return NOISE["bf16" if "bf16" in precisions else "float32"]


def largest_gap(theirs: CellResult, ours: CellResult) -> float:
    """Return the largest difference of their R that machines do not explain; 0 without one."""
    noise = noise_of(theirs, ours)
    pairs = zip(chain(*theirs.R), chain(*ours.R), strict=False)
    scores = [(a, b) for a, b in pairs if a is not None and b is not None]
    return max((abs(a - b) for a, b in scores if not noise.allows(a, b)), default=0.0)


def _measures(cell: CellResult) -> dict[str, float]:
    """Return what a cell measured beside R and its metrics, by name.

    All other scores follow from these, from R and from the metrics.
    """
    found: dict[str, float | None] = {}
    for stage, row in enumerate(cell.capabilities):
        found |= {f"{name} after {count(stage, 'stage')}": value for name, value in row.items()}
    for stage, scores in enumerate(cell.probes):
        after = f"after {count(stage, 'stage')}"
        found |= {f"probe of task {j + 1} {after}": score for j, score in enumerate(scores)}
    for task, values in cell.lm_eval.items():
        found |= {f"{name} of {task}": value for name, value in values.items()}
    if cell.reference_of is None:
        found["area"] = cell_scores(cell).get("area")
    return {name: value for name, value in found.items() if value is not None}


@dataclass
class Pair:
    """A cell of a submission and the same cell trained here.

    Attributes
    ----------
    flips
        How many rows of a score are right there alone, right here alone, and kept by both. The key
        is what was scored and which rows were right, so cells that share a stage have it in common.
    largest
        The largest difference of a score.
    wrong
        What differs by more than machines do.
    """

    theirs: CellResult
    ours: CellResult
    flips: dict[tuple[Any, ...], tuple[int, int, int]] = field(default_factory=dict)
    largest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        theirs, ours, key = self.theirs, self.ours, self.theirs.key
        noise = noise_of(theirs, ours)
        self.wrong += [
            f"{key}: {name} is {getattr(ours, name)} here."
            for name in FACTS
            if plain(getattr(theirs, name)) != plain(getattr(ours, name))
        ]
        shown, true = (plain(cell.settings.get("method", {})) for cell in (theirs, ours))
        before = shown
        if theirs.method in METHODS:  # a setting may be newer than the cell
            before = {**defaults_of(METHODS.get(theirs.method).settings_model()), **shown}
        if others := [name for name in {**shown, **true} if before.get(name) != true.get(name)]:
            self.wrong.append(f"{key} shows other settings: {join_names(others)}.")
        if [len(row) for row in theirs.R] != [len(row) for row in ours.R]:
            self.wrong.append(f"{key} has another matrix here.")
            return
        for i, row in enumerate(ours.R):
            for j, score in enumerate(row):
                if score is not None:
                    self._compare(i, j, score, noise)
        there, here = (_measures(cell) for cell in (theirs, ours))
        for name, value in there.items():  # earlier versions measure less
            self._agree(f"{key}: {name}", value, here.get(name), noise)
        again, true_again = (cell.relearning.get("scores", []) for cell in (theirs, ours))
        for number, (one, other) in enumerate(zip(again, true_again, strict=False), 1):
            self._agree(f"{key}: relearned score {number}", one, other, noise)
        if bool(theirs.relearning) != bool(ours.relearning) or not _relearns_alike(theirs, ours):
            self.wrong.append(
                f"{key}: rows to relearn do not follow from its scores, or are others here."
            )
        better, worse, rows = _sums(self.flips)
        if better + worse > math.ceil(noise.rows * rows):
            self.wrong.append(
                f"{key}: {better + worse} of {rows} rows are right in one training alone, more "
                f"than the {noise.rows:.0%} by which machines differ."
            )

    def _compare(self, i: int, j: int, score: float, noise: Noise) -> None:
        """Compare one score, by its rows if both keep them."""
        where, given = f"{self.theirs.key}: R[{i}][{j}]", self.theirs.R[i][j]
        if given is None:
            self.wrong.append(f"{where} is missing.")
            return
        self.largest = max(self.largest, abs(given - score))
        self._agree(where, given, score, noise)
        cells = (self.theirs, self.ours)
        shown, true = ((cell.metrics[i][j] if cell.metrics else None) or {} for cell in cells)
        for name in sorted({*shown, *true}):
            self._agree(f"{where}, {name},", shown.get(name), true.get(name), noise)
        texts = [cell.correct[i][j] if cell.correct else None for cell in cells]
        if texts.count(None) == 1:
            self.wrong.append(f"{where} has rows in one training alone.")
        if None in texts:
            return
        there, here = (unpack_rows(str(text)) for text in texts)
        if len(there) != len(here):
            self.wrong.append(f"{where} is of {len(there)} rows, and of {len(here)} here.")
            return
        key = (self.theirs.scenario, self.theirs.seed, i, j, *texts)
        self.flips[key] = (int((there & ~here).sum()), int((here & ~there).sum()), len(here))

    def _agree(self, what: str, theirs: float | None, ours: float | None, noise: Noise) -> None:
        """Note two numbers of which one is missing, or which differ by more than machines do."""
        if theirs is None or ours is None:
            if theirs is not ours:
                self.wrong.append(f"{what} is {theirs}, and {ours} here.")
        elif not noise.allows(theirs, ours):
            self.wrong.append(f"{what} is {theirs:.4f}, and {ours:.4f} here.")


def _relearns_alike(theirs: CellResult, ours: CellResult) -> bool:
    """Whether both try the same rows as far as they go, and theirs recover when they say so.

    Without recovery, theirs must try at least as many rows as ours. Where ours do not recover, all
    rows are tried, so theirs cannot try more. True without relearning.
    """
    if not theirs.relearning:
        return True
    rows, scores = theirs.relearning["rows"], theirs.relearning.get("scores", [])
    here = ours.relearning["rows"]
    both = min(len(rows), len(here))
    if len(rows) != len(scores) or rows[:both] != here[:both] or rows != sorted({*rows}):
        return False
    if len(rows) > len(here) and not ours.relearning["recovered"]:
        return False
    if not theirs.relearning["recovered"]:
        return bool(rows[-1] >= here[-1])
    needed = theirs.relearning.get("needed", rows[-1])
    first = len(theirs.tasks) - len(theirs.stages)  # after the pretraining, if that is a task
    margin = theirs.recipe.get("protocol", {}).get("relearn_margin", 0.02)
    enough = (theirs.R[first][first] or 0.0) - max(margin, 0.0) - TOLERANCE
    return any(n == needed and score >= enough for n, score in zip(rows, scores, strict=True))


def _sums(flips: Mapping[Any, tuple[int, int, int]]) -> tuple[int, ...]:
    """Return the sums of `Pair.flips`."""
    return tuple(map(sum, zip((0, 0, 0), *flips.values(), strict=True)))


def compare(
    theirs: Sequence[CellResult], ours: Sequence[CellResult], keys: Sequence[str]
) -> Outcome:
    """Compare cells of a submission with the same cells trained here.

    A cell agrees if it differs by no more than `NOISE`: in the share of rows that are right in one
    of the two alone, and in every score. Over all cells, the rows that are right there
    alone must not be more than those that are right here alone (exact sign test at `LEVEL`).
    """
    from scipy.stats import binomtest

    here = {cell.key: cell for cell in ours}
    wrong = [
        f"{key} failed here: {here[key].reason if key in here else 'no result'}"
        for key in keys
        if key not in here or here[key].status != "ok"
    ]
    good = [(cell, here[cell.key]) for cell in theirs if cell.key in keys and cell.key in here]
    pairs = [Pair(cell, mine) for cell, mine in good if mine.status == "ok"]
    wrong += [line for pair in pairs for line in pair.wrong]
    better, worse, rows = _sums({key: n for pair in pairs for key, n in pair.flips.items()})
    if better > worse and binomtest(better, better + worse).pvalue < LEVEL:
        wrong.append(
            f"{better} rows are right there and wrong here, and only {worse} the other way round."
        )
    names = join_names([pair.theirs.key for pair in pairs])
    largest = max((pair.largest for pair in pairs), default=0.0)
    says = (
        f"{count(len(pairs), 'cell')} trained again ({names}): {better + worse} of {rows} rows "
        f"differ, scores by up to {largest:.4f}"
    )
    return Outcome(wrong, [], says)
