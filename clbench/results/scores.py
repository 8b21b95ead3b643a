"""Scores computed from the score matrix.

R[i][j] is the score on task j after stage i, 0-based; with T tasks, L = T - 1 is the last stage.
f[j] is the floor of task j: the score of always predicting the majority class. P[i][j] is the score
of a linear probe of task j on the features after stage i.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from clbench.results.formulas import (
    Curves,
    Floors,
    Measures,
    Metrics,
    Probes,
    Triangle,
    area,
    average_over_time,
    backward_transfer,
    features_forgetting,
    final_measure,
    forward_transfer,
    gain,
    gap,
    head_gap,
    mean_forgetting,
    mean_metric,
    measure_change,
    plasticity,
    zero_shot_transfer,
)

LEAST_GAIN = 0.02
"""Score above the floors, summed over tasks, from which shares of it are given."""

Matrix = Sequence[Sequence[float | None]]
Need = Literal["alone", "curves", "floors", "measures", "metrics", "probes", "reference"]


@dataclass(frozen=True)
class Score:
    """A score. Add one by adding an entry to `SCORES`.

    Attributes
    ----------
    name, label, meaning
        Column of ``scores.csv`` and key in cell files; heading in tables; explanation.
    formula
        Function of `Triangle` and of what it `needs`; None for a `ratio`.
    needs
        What else `formula` takes, of the options of `scores_of`. Such scores are not in the cell
        files.
    ratio
        Names of the two scores whose quotient it is. Tables over seeds show the quotient of the
        sums, since the quotient of a single seed is noisy.
    higher_is_better
        Direction, for verdicts.
    single_task
        Whether the score is defined for a scenario of one task.
    visibility
        When the terminal and the report show a column for it, if it has a value: always, for
        ``pairs`` (on the page also for longer sequences), for ``sequences`` of more than two tasks,
        for these on the ``page`` only, or never.
    compared
        Whether the report compares methods by it.
    """

    name: str
    label: str
    meaning: str
    formula: Callable[..., float | None] | None
    higher_is_better: bool = True
    single_task: bool = False
    needs: tuple[Need, ...] = ()
    ratio: tuple[str, str] | None = None
    visibility: Literal["always", "pairs", "sequences", "page", "never"] = "never"
    compared: bool = False


SCORES = (
    # p_o and p_s: Kenneweg et al. 2022, section 3
    Score("p_o", "p_o", "score on the old task", lambda r: r[-1][0],
          visibility="always", compared=True),
    Score("p_s", "p_s", "score on the new task", lambda r: r[-1][-1],
          single_task=True, visibility="always", compared=True),
    Score("p", "p", "p_o + p_s", lambda r: r[-1][0] + r[-1][-1]),
    Score("p_o_before", "p_o before", "p_o before any later task", lambda r: r[0][0]),
    Score("forgetting", "forgetting", "score lost on the first task", lambda r: r[0][0] - r[-1][0],
          higher_is_better=False, visibility="pairs", compared=True),
    # Lopez-Paz & Ranzato 2017, equation 3: mean over j < L of R[L, j] - R[j, j]
    Score("bwt", "BWT", "backward transfer", backward_transfer, visibility="sequences"),
    Score("average", "average", "mean score over all tasks", lambda r: sum(r[-1]) / len(r),
          single_task=True, visibility="sequences"),
    # Rebuffi et al. 2017, section 4: mean over i of the mean over j <= i of R[i, j]
    Score("average_over_time", "over time", "mean, over the stages, of the mean score over the "
          "tasks so far", average_over_time, visibility="sequences"),
    # Koh et al. 2022, section 3.2, over training steps
    Score("area", "area", "mean score over the tasks so far, over all training steps: the area "
          "under its curve", lambda _, curves: area(curves), needs=("curves",),
          visibility="page"),
    # Chaudhry et al. 2018, section 3: mean over j < L of max over j <= l < L of R[l, j] - R[L, j]
    Score("mean_forgetting", "mean forg.", "mean drop of the earlier tasks from their best score",
          mean_forgetting, higher_is_better=False, visibility="sequences"),
    # Means over j of metrics[L, j]; Kim et al. 2022 (arXiv 2211.02633), section 3: within-task and
    # task-id prediction
    Score("told", "task-IL", "mean final accuracy among the classes of a row’s own task, as if the "
          "task were told (task-incremental)", lambda _, metrics: mean_metric(metrics, "told"),
          needs=("metrics",), visibility="always"),
    Score("elsewhere", "wrong task", "mean final share of rows taken for a class of another task",
          lambda _, metrics: mean_metric(metrics, "elsewhere"), needs=("metrics",),
          higher_is_better=False, visibility="always"),
    # Chaudhry et al. 2018, section 3: R*[L] - R[L, L]
    Score("intransigence", "intrans.", "score on the last task when trained alone, minus p_s",
          lambda r, alone: gap(r, alone, [len(r) - 1]),
          higher_is_better=False, single_task=True, needs=("alone",), visibility="always"),
    # Mean over j > 0 of R[j, j] - R*[j]
    Score("plasticity", "plasticity", "mean, over the later tasks, of the score right after the "
          "task, minus that when trained alone", plasticity,
          needs=("alone",), visibility="page"),
    # Sums over j < L of R[j, j] - f[j] and of R[L, j] - f[j]
    Score("old_gain", "old gain", "sum of the scores of the earlier tasks above their floors, each "
          "right after the task", needs=("floors",),
          formula=lambda r, floors: gain([r[j][j] for j in range(len(r) - 1)], floors[:-1])),
    Score("old_gain_left", "old gain left", "sum of the final scores of the earlier tasks above "
          "their floors", needs=("floors",),
          formula=lambda r, floors: gain(r[-1][:-1], floors[:-1])),
    # R[L, L] - f[L], of the method and of the reference method
    Score("new_gain", "new gain", "p_s above its floor", needs=("floors",), single_task=True,
          formula=lambda r, floors: gain(r[-1][-1:], floors[-1:])),
    Score("reference_gain", "reference gain", "p_s of the reference method above its floor",
          single_task=True, needs=("floors", "reference"),
          formula=lambda r, floors, reference: gain([reference], floors[-1:])),
    Score("retained", "retained", "share of what was learned of the earlier tasks above their "
          "floors that is left at the end", None,
          ratio=("old_gain_left", "old_gain"), visibility="always"),
    Score("learned", "learned", "p_s above its floor, as a share of the reference method’s", None,
          ratio=("new_gain", "reference_gain"), single_task=True, visibility="always"),
    # Mean over j < L of P[j, j] - P[L, j] and of P[L, j] - R[L, j]
    Score("features_forgetting", "features forget", "score that linear probes of the earlier tasks "
          "lost: what the features forgot", features_forgetting, needs=("probes",),
          higher_is_better=False, visibility="always"),
    Score("head_gap", "head gap", "final score of linear probes of the earlier tasks, minus that "
          "of the heads: what the heads miss in the features", head_gap, needs=("probes",),
          higher_is_better=False, visibility="always"),
    # Mean over j > 0 of P[j - 1, j] - P of the pretrained model (Lopez-Paz & Ranzato 2017, eq. 4)
    Score("forward_transfer", "FWT", "score of a linear probe of each later task right before the "
          "task, minus that of the pretrained model", forward_transfer, needs=("probes",),
          visibility="always"),
    Score("zero_shot_transfer", "zero-shot FWT", "zero-shot score of each later task right "
          "before the task, minus that of the base model",
          lambda _, measures: zero_shot_transfer(measures), needs=("measures",),
          visibility="page"),
    Score("gained", "gained", "mean score over all tasks, minus that of the base model",
          lambda r, measures: sum(r[-1]) / len(r) - measures[0]["average"]
          if "average" in measures[0] else None, needs=("measures",), single_task=True,
          visibility="page"),
    # What a language model lost: its measures after the last stage, against the base model's
    Score("text_loss_added", "text loss +", "increase of the loss on held-out text by training, in "
          "nats per token", lambda _, measures: measure_change(measures, "text_loss"),
          needs=("measures",), higher_is_better=False, single_task=True, visibility="always"),
    Score("zero_shot_lost", "zero-shot −", "zero-shot accuracy lost on text continuations and "
          "on tasks that the scenario does not train",
          lambda _, measures: measure_change(measures, "zero_shot", -1.0), needs=("measures",),
          higher_is_better=False, single_task=True, visibility="always"),
    Score("divergence", "KL from base", "mean KL(base ‖ current) of the next-token distributions "
          "on held-out text, in nats", lambda _, measures: final_measure(measures, "divergence"),
          needs=("measures",), higher_is_better=False, single_task=True, visibility="page"),
    Score("same_token", "same token", "share of positions in held-out text where the most "
          "probable next token is the base model’s",
          lambda _, measures: final_measure(measures, "same_token"),
          needs=("measures",), single_task=True, visibility="page"),
    Score("obedience", "valid answers", "share of generated answers that are among the "
          "allowed ones", lambda _, measures: final_measure(measures, "obedience"),
          needs=("measures",), single_task=True, visibility="page"),
)  # fmt: skip
"""All scores in the order of their columns."""
SCORE: Mapping[str, Score] = {score.name: score for score in SCORES}


def scores_of(
    matrix: Matrix,
    *,
    alone: Mapping[int, float] = MappingProxyType({}),
    curves: Sequence[Curves] = (),
    floors: Floors | None = None,
    measures: Measures = (),
    metrics: Metrics = (),
    probes: Probes = (),
    reference: float | None = None,
    file_scores: Mapping[str, float | None] = MappingProxyType({}),
) -> dict[str, float | None]:
    """Return the scores of one cell by name; most are None for a single task.

    Scores that need what is not given are left out.

    Parameters
    ----------
    matrix
        T rows of T entries; only those above the diagonal may be None.
    alone
        R*[j], the score of task j when trained alone, by j.
    curves
        For each stage the points (step, score) of each task so far.
    floors
        The floor of each task; None where it has none.
    measures
        Measures of a language model by name, before training and after each stage.
    metrics
        All metrics of each task after the last stage.
    probes
        Scores of linear probes: a row before training, then one for each stage.
    reference
        The reference method's score on the last task, p_s.
    file_scores
        Scores of the cell file, which are not computed again.

    Raises
    ------
    ValueError
        If the matrix is empty, not square or lacks an entry on or below the diagonal.
    """
    r: Triangle = [[v for v in row[: i + 1] if v is not None] for i, row in enumerate(matrix)]
    square = all(len(row) == len(matrix) for row in matrix)
    if not r or not square or any(len(row) != i for i, row in enumerate(r, 1)):
        raise ValueError("a score matrix must be square, with every score up to its diagonal")
    options = {
        "alone": alone or None,
        "curves": curves if curves and all(curves) else None,
        "floors": floors or None,
        "measures": measures or None,
        "metrics": metrics or None,
        "probes": probes or None,
        "reference": reference,
    }
    scores = dict(file_scores)
    for score in SCORES:
        if score.name in file_scores:
            continue
        values = [options[name] for name in score.needs]
        if None in values or (score.ratio and not scores.keys() >= set(score.ratio)):
            continue
        scores[score.name] = None
        if len(r) > 1 or score.single_task:
            if score.ratio:
                scores[score.name] = quotient([scores], score.ratio)
            elif score.formula:
                scores[score.name] = score.formula(r, *values)
    return scores


def quotient(rows: Iterable[Mapping[Any, Any]], names: tuple[str, str]) -> float | None:
    """Return Σ first / Σ second over the rows that have both.

    None if Σ second is below `LEAST_GAIN` a row: a share of next to nothing is noise.
    """
    pairs = [[row.get(name) for name in names] for row in rows]
    pairs = [pair for pair in pairs if not any(v is None or math.isnan(v) for v in pair)]
    first, second = (math.fsum(values) for values in zip(*pairs, strict=True)) if pairs else (0, 0)
    return first / second if pairs and second >= LEAST_GAIN * len(pairs) else None
