"""What the shifts that divide one task have in common."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from clbench.errors import ShiftError
from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext
from clbench.shifts.split import SPLITS, Split
from clbench.tasks.task import Rows, Task


class DividingShift(Shift):
    """A shift that divides the rows of one task into parts, which share its head.

    Attributes
    ----------
    task
        Name of the task.
    split
        A saved split, relative to the suite file, to use instead of fitting one. Its rows
        and the settings it was fitted with must be the same as now.
    """

    task: Annotated[str, Field(min_length=1)]
    split: str | None = None

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """The parts in training order."""
        task = context.task(self.task)
        if self.split is None:
            where, split = "the split", self.fit(task, context)
        else:
            path = context.base / self.split
            where, split = f"split {path}", Split.load(path)
            self._check(split, where)
        parts = split.apply(task, where)
        return ScenarioTasks(parts, split, split.numbers, self.picture(task, parts, context))

    def fit(self, task: Task, context: ShiftContext) -> Split:
        """Divide `task` by its training rows."""
        raise NotImplementedError

    def picture(self, task: Task, parts: tuple[Task, ...], context: ShiftContext) -> dict[str, Any]:
        """What a figure of the division is drawn from; by default nothing.

        Parameters
        ----------
        task
            Undivided.
        parts
            The tasks that it was divided into.
        context
            Rows, lengths and embeddings.
        """
        return {}

    def fitted_settings(self) -> dict[str, Any]:
        """The settings that decide the split, kept in it."""
        return {k: v for k, v in self.settings().items() if k not in ("task", "split")}

    def _check(self, split: Split, where: str) -> None:
        if split.kind != self.name:
            raise ShiftError(f"{where} was made by shift {split.kind!r}, not {self.name!r}.")
        for key, value in self.fitted_settings().items():
            if split.fitted.get(key) != value:
                raise ShiftError(
                    f"{where} was fitted with {key} = {split.fitted.get(key)!r}, the scenario "
                    f"has {value!r}. Make them equal, or leave `split` out to divide anew."
                )


def row_splits(task: Task) -> dict[str, Rows]:
    """The splits that `task` has, by name."""
    found = {key: getattr(task, key) for key in SPLITS}
    return {key: rows for key, rows in found.items() if rows is not None}
