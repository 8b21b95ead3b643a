"""The declared comparisons of SmolLM2's three tasks, of the suite ``findings-smollm2``.

What is compared, and by which scores, was fixed in the suite before the first cell; this module was
written when no score had been compared. The baselines of `FIRST` and of `LATER` have families of
intervals of their own. Nothing is compared before all of a family have `SEEDS` seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pandas as pd

from clbench.results.cell import cell_scores
from clbench.results.statistics import Comparison, Differences, compare
from clbench.results.store import Store
from tools.equal_learning import against, at_equal_learning, by_seed, complete
from tools.findings import REFERENCE
from tools.findings_smollm2 import RATES

FOLDER = REFERENCE / "findings-smollm2"
TASKS = ("FOMC", "BoolQ", "titles")
FIRST = (*RATES, "wise-ft", "ewc-fewer", "replay", "lora-fast", "generic-replay-tenth", "dft")
LATER = ("kl-anchor", "self-replay-tenth", "asft", "self-replay-half")
"""Baselines that were run after `FIRST`, as the suite declares."""
LOST = ("text_loss_added", "mean_forgetting")
"""The primary and the secondary score, of what is lost; less is better."""
LEARNED = "learned"
SCORED = 150
"""Rows of each task that are scored."""
STEPS = {
    LEARNED: 1 / (SCORED * len(TASKS)),
    "text_loss_added": 0.0,
    "mean_forgetting": 1 / (SCORED * (len(TASKS) - 1)),
}
"""The smallest change of each score that is compared."""
SEEDS = 5
"""How many seeds the suite declares, from 0 on."""


@cache
def kept() -> pd.DataFrame:
    """Return the scores of the finished cells.

    Beside the cell's own: `LEARNED`, the mean of the scores right after each task, and each task's
    score before all training and right after it.
    """
    rows = []
    for cell in (cell for cell in Store(FOLDER).read().cells if cell.status == "ok"):
        after = np.diagonal(np.array(cell.R, np.float64))
        own = {"baseline": cell.baseline, "seed": cell.seed, LEARNED: after.mean()}
        for task, *scores in zip(TASKS, cell.untrained, after, strict=True):
            own |= zip((f"{task} untrained", f"{task} after"), scores, strict=True)
        rows.append({**cell_scores(cell), **own})
    return pd.DataFrame(rows)


@cache
def compared(names: Sequence[str]) -> pd.DataFrame:
    """Return the scores of `names` and of all rates, of the seeds that all of them have.

    Raises a ValueError if they lack some of the seeds that the suite declares; others do not count.
    """
    declared = kept()[kept()["seed"] < SEEDS]
    frame = complete(declared[declared["baseline"].isin({*names, *RATES})])
    seeds = frame["seed"].nunique() if {*names} <= {*frame["baseline"]} else 0
    if seeds < SEEDS:
        raise ValueError(f"{FOLDER.name}: {seeds} of {SEEDS} seeds; nothing is compared before.")
    return frame


@cache
def on_curve(names: tuple[str, ...] = FIRST) -> dict[tuple[str, str], Comparison | int]:
    """Return what each method loses less than plain fine-tuning that learned as much.

    By score and baseline, as one family; see `at_equal_learning`.
    """
    by_score = {score: by_seed(compared(names), score) for score in (LEARNED, *LOST)}
    lost = {score: (by_score[score], STEPS[score]) for score in LOST}
    return at_equal_learning(by_score[LEARNED], lost, RATES, methods(names))


def methods(names: Sequence[str]) -> list[str]:
    """Return `names` without the rates of plain fine-tuning."""
    return [name for name in names if name not in RATES]


@cache
def against_rates(names: tuple[str, ...] = FIRST) -> dict[tuple[str, str, str], Comparison]:
    """Return what differs from each rate, by score, rate and baseline, as one family.

    With `FIRST`, the lower rates are compared with the full one, too.
    """
    lower = RATES[:-1] if names == FIRST else ()
    pairs = {rate: [*methods(names), *(lower if rate == "vanilla" else ())] for rate in RATES}
    return against(compared(names), pairs, STEPS, [*LOST])


@cache
def against_untrained(names: tuple[str, ...] = FIRST) -> dict[tuple[str, str], Comparison]:
    """Return what differs from the untrained model right after each task, as one family."""
    own = dict(list(compared(names).groupby("baseline")))
    groups = {
        task: {
            name: Differences(
                tuple(own[name][f"{task} after"] - own[name][f"{task} untrained"]), 1 / SCORED
            )
            for name in names
        }
        for task in TASKS
    }
    return compare(groups)
