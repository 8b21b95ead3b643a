"""Experience replay: rows of earlier tasks beside each batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from clbench.methods.rehearsal import Rehearsal, should_record

if TYPE_CHECKING:
    from torch import Tensor

    from clbench.training.batches import Batch
    from clbench.training.stage import Stage


class Replay(Rehearsal):
    """Experience replay (ER): each step also sees rows kept of earlier tasks.

    Loss = loss of the batch + `weight` · mean loss of the rows drawn from the memory
    (Chaudhry et al. 2019b, "On tiny episodic memories in continual learning", Algorithm 1,
    which takes the mean over both together: the same gradient, halved, at weight 1 and equal
    sizes); they train their own heads, too. The settings of the memory are those of `Rehearsal`.

    Attributes
    ----------
    weight
        Of the loss on kept rows.
    """

    name: ClassVar[str] = "replay"
    weight: Annotated[float, Field(gt=0.0)] = 1.0

    def before_phase(self, stage: Stage) -> None:
        """Kept rows train all that they pass through."""
        self.train_old_heads(stage)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """The batch's loss and that of kept rows."""
        own = stage.loss(batch)
        if not self.kept:
            return own
        old = self.recalled_loss(stage, self.draw(stage, "replay"))
        if should_record(stage):
            stage.record("replay_loss", old)
        return own + self.weight * old
