"""Score the tasks of a cell after a stage: a row of R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import nn

from clbench.measure.capabilities import CapabilityData
from clbench.measure.writer import Writer, as_outputs, chosen_answers
from clbench.methods.base import Method
from clbench.models.prompt_rows import PromptRows
from clbench.results.correct import correct_rows, pack_rows
from clbench.shifts.scenario import Scenario
from clbench.tasks.metrics import score, told_scores
from clbench.tasks.task import IntArray
from clbench.tasks.text_metrics import right_texts, score_texts
from clbench.training import hook_checks
from clbench.training.batches import TaskData
from clbench.training.device import Precision
from clbench.training.stage import Context

Row = list[dict[str, float] | None]


class ColumnScorer(Protocol):
    """Scores a backbone on something that is not a task of the scenario.

    Attributes
    ----------
    part_tokens
        Number of tokens, without padding, that `score` reads with `part`.
    """

    part_tokens: int

    def score(
        self,
        backbone: nn.Module,
        *,
        part: bool = False,
        precision: Precision,
        device: torch.device,
    ) -> dict[str, float]:
        """Return all metrics of the backbone, which is on `device` and has its whole vocabulary.

        With `part`, score on a part of the data only, for the points of curves.
        """

    def describe(self, initial: dict[str, float] | None = None) -> str:
        """Return one line about what is scored and the scores before training."""


@dataclass(frozen=True)
class PreparedScenario:
    """A scenario ready for training.

    Attributes
    ----------
    train, scored, curve
        For each task its training rows, the rows that R is scored on, and a stratified
        subset of those for the points of curves.
    vocabulary
        Ids of the tokens that occur, ascending; None if the embedding table stays whole.
    scorers
        Scorers of the columns of R before those of the tasks.
    probed
        For each task a stratified subset of the training rows, for linear probes; empty without
        probes.
    floors
        For each column of R the score of always predicting the training rows' majority class;
        None for the columns of scorers, and for tasks whose classes are a part of a head's: among
        all of them, scores can fall far below that.
    writer
        How a language model writes texts; None for other models.
    notes
        Lines for the readers of all cells.
    capabilities
        What a language model is measured on besides the tasks; None measures nothing.
    """

    scenario: Scenario
    train: tuple[TaskData, ...]
    scored: tuple[TaskData, ...]
    curve: tuple[TaskData, ...]
    vocabulary: IntArray | None
    scorers: tuple[ColumnScorer, ...] = ()
    floors: tuple[float | None, ...] = ()
    probed: tuple[TaskData, ...] = ()
    writer: Writer | None = None
    notes: tuple[str, ...] = ()
    capabilities: CapabilityData | None = None

    def shown(self, count: int) -> dict[str, int]:
        """Return the outputs in use of each growing head after `count` tasks."""
        shown: dict[str, int] = {}
        for task in self.scenario.tasks[:count]:
            if task.seen is not None:
                shown[task.head] = max(task.seen, shown.get(task.head, 0))
        return shown


@dataclass(frozen=True)
class RowScorer:
    """Scores the model of `context`, with the weights that the method has for each task.

    A reference, which trains `task` alone, is scored on that task only.
    """

    scenario: PreparedScenario
    method: Method
    context: Context
    task: int | None

    def tasks(self, index: int) -> Sequence[int]:
        """Return the tasks to score after stage `index`: all so far, or that of a reference."""
        return range(index + 1) if self.task is None else [index]

    def row(
        self, index: int, *, curve: bool = False, correct: list[str | None] | None = None
    ) -> Row:
        """Return the row of R after stage `index`; with `curve`, on the rows for curves only.

        If `correct` is given, add to it which rows of each task are right.
        """
        context, data = self.context, self.scenario.curve if curve else self.scenario.scored
        row: Row = [None] * len(data)
        packed: list[str | None] = [None] * len(data)
        writer = self.scenario.writer
        for j in self.tasks(index):
            metrics = self.scenario.scenario.tasks[j].metrics
            rows, own = data[j].rows, self.scenario.scenario.tasks[j].own
            with hook_checks.scoring(self.method.scoring(j)):
                if writer is not None and writer.writes(data[j]):
                    assert isinstance(rows, PromptRows)
                    texts = writer.texts(context, data[j])
                    if rows.targets is not None:
                        row[j] = score_texts(metrics, texts, rows.targets)
                        packed[j] = pack_rows(right_texts(texts, rows.targets))
                        continue
                    choices = chosen_answers(texts, rows)
                    outputs, own = as_outputs(choices, rows), ()  # no second choice is written
                else:
                    outputs = context.outputs(data[j])
            labels = rows.labels
            scores = score(metrics, outputs, labels, data[j].rows.groups)
            if own:
                scores |= told_scores(outputs, labels, np.asarray(own))
            row[j] = scores
            if not self.scenario.scenario.tasks[j].regression:
                packed[j] = pack_rows(correct_rows(outputs, data[j].rows.labels))
        if correct is not None:
            correct += [*[None] * len(self.scenario.scorers), *packed]
        return [*self.extra_columns(part=curve), *row]

    def main_score(self, task: int) -> float:
        """Return the main score of a task, trained or not."""
        row = replace(self, task=task).row(task)
        score = self.scenario.scenario.main_scores(row)[len(self.scenario.scorers) + task]
        assert score is not None
        return score

    def extra_columns(self, *, part: bool = False) -> Row:
        """Return the row's extra columns, scored on a `part` or all; None for references."""
        context = self.context
        row: Row = [None] * len(self.scenario.scorers)
        for j, scorer in enumerate(self.scenario.scorers if self.task is None else ()):
            row[j] = scorer.score(
                context.model.backbone,
                part=part,
                precision=context.precision,
                device=context.device,
            )
        return row

    def curve_tokens(self, index: int) -> int:
        """Return the tokens of scoring a point of a curve in stage `index`."""
        tasks = [self.scenario.curve[j] for j in self.tasks(index)]
        rows = sum(int(task.rows.lengths.sum()) for task in tasks)
        if writer := self.scenario.writer:
            rows += sum(
                writer.length(task) * len(task.rows) for task in tasks if writer.writes(task)
            )
        return rows + sum(scorer.part_tokens for scorer in self.scenario.scorers)

    def by_name(self, row: Row) -> dict[str, float]:
        """Return the main scores in a row of R by column name."""
        scenario = self.scenario.scenario
        named = zip(scenario.columns, scenario.main_scores(row), strict=True)
        return {name: score for (name, _), score in named if score is not None}
