"""The scores: what suites, tables, pages and comparisons do with each.

Formulas and their symbols are those of `clbench.suite.formulas`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from clbench.suite.formulas import (
    area,
    average_over_time,
    backward_transfer,
    features_forgetting,
    forward_transfer,
    gain,
    gap,
    head_gap,
    mean_forgetting,
    mean_metric,
    mean_of_known,
    measure_change,
    plasticity,
    rows_to_relearn,
)
from clbench.training.protocol import Protocol

References = bool | str
"""Whether a run also trains the last task alone, or ``all`` later ones."""


class Need(NamedTuple):
    """What a score is computed from besides R.

    Attributes
    ----------
    option
        The option of `clbench.results.scores.scores_of` that holds it.
    is_met
        Whether a run with this protocol and these references has it.
    remedy, cause
        What to do if it is not met, and why no cell has the score then; empty for what all runs
        have.
    """

    option: Literal[
        "alone", "curves", "floors", "measures", "metrics", "probes", "reference", "relearning"
    ]
    is_met: Callable[[Protocol, References], object] = lambda protocol, references: True
    remedy: str = ""
    cause: str = ""


class Steps(NamedTuple):
    """The smallest changes that the scores of a cell can show; its methods give them by score.

    Attributes
    ----------
    tasks
        Those of the score on each task, 1 / rows. The pretraining, where it is the first task, has
        no rows, and counts as 0.
    measure
        That of an accuracy on the rows that measure a language model.
    """

    tasks: Sequence[float]
    measure: float

    def first(self) -> float:
        """Return the step of the first task."""
        return self.tasks[0]

    def last(self) -> float:
        """Return the step of the last task."""
        return self.tasks[-1]

    def mean(self) -> float:
        """Return the step of a mean over tasks, here of the task with the fewest rows."""
        return max(self.tasks) / len(self.tasks)

    def mean_over_time(self) -> float:
        """Return the step of a mean over tasks and stages."""
        return max(self.tasks) / len(self.tasks) ** 2

    def mean_of_earlier(self) -> float:
        """Return the step of a mean over all tasks but the last."""
        return max(self.tasks[:-1], default=0.0) / max(1, len(self.tasks) - 1)

    def mean_of_later(self) -> float:
        """Return the step of a mean over all tasks but the first."""
        return max(self.tasks[1:], default=0.0) / max(1, len(self.tasks) - 1)

    def of_measure(self) -> float:
        """Return the step of an accuracy that measures a language model."""
        return self.measure

    def none(self) -> float:
        """Return 0: losses and divergences are means of numbers without steps."""
        return 0.0


@dataclass(frozen=True)
class Score:
    """A score. Add one by adding an entry to `SCORES`.

    Attributes
    ----------
    name, label, meaning
        Field of ``scores.csv`` and key in cell files; heading in tables; explanation.
    formula
        Function of R, as a `Triangle`, and of what it `needs`; None for a `ratio`.
    step
        The smallest change that it can show, as a method of `Steps`. A question may ask for the
        scores that have one.
    needs
        What else `formula` takes. Scores with needs are not in the cell files.
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
        for these on the ``page`` only, or never. The page shows sparse ones for pairs, too, and the
        terminal those that the question asks for.
    on_card
        Whether the report's capability cards show it.
    compared
        Whether the report compares methods by it even if the question does not ask for it.
    subject
        What a line of the verdict is about; by default the label.
    sparse
        Whether ``scores.csv`` has a field for it only if a cell has a value.
    """

    name: str
    label: str
    meaning: str
    formula: Callable[..., float | None] | None
    step: Callable[[Steps], float] | None = None
    higher_is_better: bool = True
    single_task: bool = False
    needs: tuple[Need, ...] = ()
    ratio: tuple[str, str] | None = None
    visibility: Literal["always", "pairs", "sequences", "page", "never"] = "never"
    on_card: bool = False
    compared: bool = False
    subject: str = ""
    sparse: bool = False

    def __post_init__(self) -> None:
        if self.compared and self.step is None:
            raise ValueError(f"{self.name}: a score that is compared needs a step")


_OPTION = " in the suite, and leave out the option references"
_ALONE = "it needs the score of each task when trained alone (references)"
LAST_ALONE = Need(
    "alone", lambda _, references: references, f"Set references = true{_OPTION}.", _ALONE
)
ALL_ALONE = Need(
    "alone", lambda _, references: references == "all", f'Set references = "all"{_OPTION}.', _ALONE
)
CURVES = Need(
    "curves",
    lambda protocol, _: protocol.curve_points,
    "Set curve_points above 0 in [protocol].",
    "it needs curves (curve_points)",
)
FLOORS = Need("floors")
MEASURES = Need(
    "measures",
    lambda protocol, _: protocol.capability_rows,
    "Set capability_rows in [protocol].",
    "it needs a language model that is measured (capability_rows)",
)
KL = Need(
    "measures",
    lambda protocol, _: protocol.kl_rows,
    "Set kl_rows in [protocol].",
    "it needs a language model that is compared with its base (kl_rows)",
)
METRICS = Need(
    "metrics",
    lambda protocol, _: not protocol.is_language_model or protocol.answer_by != "generation",
    'Set answer_by = "likelihood" in [protocol].',
    "no two of its tasks share a head and differ in classes",
)
PROBES = Need(
    "probes",
    lambda protocol, _: protocol.probe_rows,
    "Set probe_rows in [protocol].",
    "it needs probes (probe_rows)",
)
REFERENCE = Need("reference")
RELEARNING = Need(
    "relearning",
    lambda protocol, _: protocol.relearn_rows,
    "Set relearn_rows in [protocol].",
    "it needs relearn_rows",
)

_SCORES = (
    # p_o and p_s: Kenneweg et al. 2022, section 3
    Score("p_o", "p_o", "score on the old task", lambda r: r[-1][0], Steps.first,
          visibility="always", compared=True, subject="p_o, the old task"),
    Score("p_s", "p_s", "score on the new task", lambda r: r[-1][-1], Steps.last,
          single_task=True, visibility="always", compared=True, subject="p_s, the new task"),
    Score("p", "p", "p_o + p_s", lambda r: r[-1][0] + r[-1][-1]),
    Score("p_o_before", "p_o before", "p_o before any later task", lambda r: r[0][0]),
    Score("forgetting", "forgetting", "score lost on the first task", lambda r: r[0][0] - r[-1][0],
          Steps.first, higher_is_better=False, visibility="pairs", compared=True),
    Score("bwt", "BWT", "backward transfer", backward_transfer, Steps.mean_of_earlier,
          visibility="sequences"),
    Score("average", "average", "mean score over all tasks", lambda r: math.fsum(r[-1]) / len(r),
          Steps.mean, single_task=True, visibility="sequences", on_card=True),
    Score("average_over_time", "over time", "mean, over the stages, of the mean score over the "
          "tasks so far", average_over_time, Steps.mean_over_time, visibility="sequences"),
    Score("area", "area", "mean score over the tasks so far, over all training steps: the area "
          "under its curve", lambda _, curves: area(curves), Steps.mean_over_time,
          needs=(CURVES,), visibility="page"),
    Score("mean_forgetting", "mean forg.", "mean drop of the earlier tasks from their best score",
          mean_forgetting, Steps.mean_of_earlier, higher_is_better=False, visibility="sequences"),
    # Means over j of metrics[L, j]; Kim et al. 2022 (arXiv 2211.02633), section 3: within-task and
    # task-id prediction
    Score("told", "task-IL", "mean final accuracy among the classes of a row’s own task, as if the "
          "task were told (task-incremental)", lambda _, metrics: mean_metric(metrics, "told"),
          Steps.mean, needs=(METRICS,), visibility="always"),
    Score("elsewhere", "wrong task", "mean final share of rows taken for a class of another task",
          lambda _, metrics: mean_metric(metrics, "elsewhere"), needs=(METRICS,),
          higher_is_better=False, visibility="always"),
    # Chaudhry et al. 2018, section 3: R*[L] - R[L, L]
    Score("intransigence", "intrans.", "score on the last task when trained alone, minus p_s",
          lambda r, alone: gap(r, alone, [len(r) - 1]), Steps.last, needs=(LAST_ALONE,),
          higher_is_better=False, single_task=True, visibility="always"),
    Score("plasticity", "plasticity", "mean, over the later tasks, of the score right after the "
          "task, minus that when trained alone", plasticity, Steps.mean_of_later,
          needs=(ALL_ALONE,), visibility="page"),
    # Sums over j < L of R[j, j] - f[j] and of R[L, j] - f[j]
    Score("old_gain", "old gain", "sum of the scores of the earlier tasks above their floors, each "
          "right after the task", needs=(FLOORS,),
          formula=lambda r, floors: gain([r[j][j] for j in range(len(r) - 1)], floors[:-1])),
    Score("old_gain_left", "old gain left", "sum of the final scores of the earlier tasks above "
          "their floors", needs=(FLOORS,),
          formula=lambda r, floors: gain(r[-1][:-1], floors[:-1])),
    # R[L, L] - f[L], of the method and of the reference method
    Score("new_gain", "new gain", "p_s above its floor", needs=(FLOORS,), single_task=True,
          formula=lambda r, floors: gain(r[-1][-1:], floors[-1:])),
    Score("reference_gain", "reference gain", "p_s of the reference method above its floor",
          single_task=True, needs=(FLOORS, REFERENCE),
          formula=lambda r, floors, reference: gain([reference], floors[-1:])),
    Score("retained", "retained", "share of what was learned of the earlier tasks above their "
          "floors that is left at the end", None,
          ratio=("old_gain_left", "old_gain"), visibility="always"),
    Score("learned", "learned", "p_s above its floor, as a share of the reference method’s", None,
          ratio=("new_gain", "reference_gain"), single_task=True, visibility="always"),
    Score("features_forgetting", "features forget", "score that linear probes of the earlier tasks "
          "lost: what the features forgot", features_forgetting, needs=(PROBES,),
          higher_is_better=False, visibility="always"),
    Score("head_gap", "head gap", "final score of linear probes of the earlier tasks, minus that "
          "of the heads: what the heads miss in the features", head_gap, needs=(PROBES,),
          higher_is_better=False, visibility="always"),
    Score("forward_transfer", "FWT", "score of a linear probe of each later task right before the "
          "task, minus that of the pretrained model", forward_transfer, Steps.mean_of_later,
          needs=(PROBES,), visibility="always"),
    # Mean over j > 0 of R[j - 1, j] - the base model's score on task j, as `forward_transfer`
    Score("zero_shot_transfer", "zero-shot FWT", "zero-shot score of each later task right "
          "before the task, minus that of the base model",
          lambda _, measures: mean_of_known(stage.get("ahead") for stage in measures),
          Steps.mean_of_later, needs=(MEASURES,), visibility="page", on_card=True),
    Score("gained", "gained", "mean score over all tasks, minus that of the base model",
          lambda r, measures: math.fsum(r[-1]) / len(r) - measures[0]["average"]
          if "average" in measures[0] else None, Steps.mean, needs=(MEASURES,), single_task=True,
          visibility="page", on_card=True),
    # What a language model lost: its measures after the last stage, against the base model's
    Score("text_loss_added", "text loss +", "increase of the loss on held-out text by training, in "
          "nats per token", lambda _, measures: measure_change(measures, "text_loss"), Steps.none,
          needs=(MEASURES,), higher_is_better=False, single_task=True, visibility="always",
          on_card=True),
    Score("zero_shot_lost", "zero-shot lost", "zero-shot accuracy lost on text continuations and "
          "on tasks that the scenario does not train",
          lambda _, measures: measure_change(measures, "zero_shot", -1.0), Steps.of_measure,
          needs=(MEASURES,), higher_is_better=False, single_task=True, visibility="always",
          on_card=True),
    Score("divergence", "KL from base", "mean KL(base ‖ current) of the next-token distributions "
          "on held-out text, in nats", lambda _, measures: measures[-1].get("divergence"),
          Steps.none, needs=(MEASURES,), higher_is_better=False, single_task=True,
          visibility="page", on_card=True),
    Score("same_token", "same token", "share of positions in held-out text where the most "
          "probable next token is the base model’s",
          lambda _, measures: measures[-1].get("same_token"), Steps.of_measure,
          needs=(MEASURES,), single_task=True, visibility="page", on_card=True),
    Score("obedience", "valid answers", "share of generated answers that are among the "
          "allowed ones", lambda _, measures: measures[-1].get("obedience"), Steps.of_measure,
          needs=(MEASURES,), single_task=True, visibility="page", on_card=True),
    # Zheng et al. 2025 (arXiv 2501.13453), spurious forgetting
    Score("relearned_rows", "rows to relearn", "rows of the first task on which the final model "
          "must be trained again to get its score back, twice the most tried if none suffice",
          lambda _, relearning: rows_to_relearn(relearning),
          needs=(RELEARNING,), higher_is_better=False, visibility="page", sparse=True),
    # Shenfeld et al. 2025 (arXiv 2509.04259), section 4: KL from the base model on the new task
    *(Score(f"{direction}_kl{suffix}", f"{direction} KL{mark}", f"mean KL({between}) of the "
            f"next-token distributions on {answers} to prompts of the last task, in nats per token",
            lambda _, measures, name=f"{direction}_kl{suffix}": measures[-1].get(name),
            Steps.none, needs=(KL,), higher_is_better=False, single_task=True, visibility="page",
            sparse=True)
      for suffix, mark, answers in (
          ("", "", "the right answers"),
          ("_base", ", base’s answers", "answers drawn from the base model"),
          ("_own", ", own answers", "answers drawn from the model itself"))
      for direction, between in (("forward", "base ‖ current"), ("reverse", "current ‖ base"))),
)  # fmt: skip
SCORE: dict[str, Score] = {score.name: score for score in _SCORES}
"""All scores by name, in the order of their fields in tables."""
SCORES = SCORE.values()
