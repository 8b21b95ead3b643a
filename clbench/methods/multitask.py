"""Joint training on all tasks so far: the upper reference for a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

import torch

from clbench.methods.base import Method, Phase

if TYPE_CHECKING:
    from clbench.training.batches import TaskData
    from clbench.training.stage import Context, Stage


class Multitask(Method):
    """Train jointly on all tasks seen so far, starting over in each stage.

    Stage i starts from the pretrained weights and the initial heads. Each batch holds rows of
    one task and trains its head; batches of all tasks are shuffled together, so each task is
    weighted by its number of rows (Caruana 1997, the plain sum of the tasks' losses). Stage 0
    equals vanilla's.

    A stage has as many steps as the stages of its tasks have together under the protocol: with
    equal epochs every row is seen that many times. Where tasks have different epochs, the
    steps are still summed, and all rows are seen equally often.
    """

    name: ClassVar[str] = "multitask"
    control: ClassVar[bool] = True
    keeps_rows: ClassVar[bool] = True

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage: one task alone is not joint training."""
        return index > 0

    def setup(self, context: Context) -> None:
        """Keep the weights that each stage starts from."""
        self._start = context.snapshot([name for name, _ in context.model.named_parameters()])

    @torch.no_grad()
    def before_stage(self, stage: Stage) -> None:
        """Restore the initial weights."""
        for name, value in stage.model.named_parameters():
            value.copy_(self._start[name])

    def training_data(self, stage: Stage) -> Sequence[TaskData]:
        """Return the rows of every task so far."""
        return [stage.earlier(task) for task in range(stage.index + 1)]

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return one phase as long as the tasks' own stages together."""
        tasks = self.training_data(stage)
        lengths = [stage.protocol.stage_length(task.name, len(task.rows))[0] for task in tasks]
        return [Phase(steps=sum(lengths))]
