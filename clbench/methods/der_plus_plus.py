"""Dark experience replay: kept rows are to keep their outputs, and their labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.rehearsal import Rehearsal, should_record

if TYPE_CHECKING:
    from clbench.training.batches import Batch
    from clbench.training.stage import Stage


class DerPlusPlus(Rehearsal):
    """DER++: replay that also holds the outputs of kept rows where they were.

    Loss = loss of the batch + α · mean squared difference between the outputs now and the
    stored ones + β · loss on labels, each on a draw of its own from the memory (Buzzega et
    al. 2020, equation 6; the mean is over rows and outputs, as in the authors' code). The
    settings of the memory are those of `Rehearsal`.

    The outputs are stored without dropout when a row's stage ends, as boundaries are known
    here; the paper, made for streams without boundaries, stores them while training passes.

    Attributes
    ----------
    alpha, beta
        Weights of the outputs' and of the labels' term; β = 0 is DER.
    """

    name: ClassVar[str] = "der++"
    alpha: Annotated[float, Field(gt=0.0)] = 0.1
    beta: Annotated[float, Field(ge=0.0)] = 0.5

    def before_phase(self, stage: Stage) -> None:
        """Kept rows train all that they pass through."""
        self.train_old_heads(stage)

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """The batch's loss and both terms on kept rows."""
        total = stage.loss(batch)
        if not self.kept:
            return total
        outputs = self._distance(stage)
        if should_record(stage):
            stage.record("outputs_distance", outputs)
        total = total + self.alpha * outputs
        if self.beta > 0:
            total = total + self.beta * self.recalled_loss(stage, self.draw(stage, "labels"))
        return total

    def after_stage(self, stage: Stage) -> None:
        """Fill the memory, and store what the model answers now."""
        super().after_stage(stage)
        if not len(self.kept[stage.index]["positions"]):
            return
        outputs = stage.outputs(self.kept_rows(stage, stage.index))
        self.kept[stage.index]["outputs"] = torch.from_numpy(outputs).to(stage.device)

    def _distance(self, stage: Stage) -> Tensor:
        """Mean squared difference to the stored outputs, on a draw of its own; a scalar."""
        terms = []
        for part in self.draw(stage, "outputs"):
            stored = self.kept[part.batch.task]["outputs"]
            then = stored[torch.from_numpy(part.places).to(stored.device)]
            now = stage.logits(part.batch)
            terms.append(nn.functional.mse_loss(now, then) * part.share)
        return torch.stack(terms).sum()
