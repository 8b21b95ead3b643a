"""Score the tasks of a cell after a stage: a row of R."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from clbench.measure.writer import as_outputs, chosen_answers
from clbench.methods.base import Method
from clbench.models.prompt_rows import PromptRows
from clbench.results.correct import correct_rows, pack_rows
from clbench.runner.prepare import PreparedScenario
from clbench.tasks.metrics import score, told_scores
from clbench.tasks.text_metrics import right_texts, score_texts
from clbench.training import hook_checks
from clbench.training.stage import Context

Row = list[dict[str, float] | None]


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
