"""Dataset shift: one task after another."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from pydantic import Field

from clbench.shifts.base import ScenarioTasks, Shift, ShiftContext


class DatasetShift(Shift):
    """Tasks in the order given, each with a head of its own.

    A task that is named twice keeps its head (Kenneweg et al. 2022, section 4.1, has the
    pairs).

    Attributes
    ----------
    tasks
        Names of two or more tasks.
    """

    name = "dataset"
    short_name = ""

    tasks: Annotated[list[str], Field(min_length=2)]

    def build(self, context: ShiftContext) -> ScenarioTasks:
        """The tasks, in order."""
        loaded = {name: context.task(name) for name in self.tasks}
        return ScenarioTasks(
            tuple(replace(loaded[name], head=loaded[name].name) for name in self.tasks)
        )
