"""Dark experience replay: replay rows of the memory and preserve the outputs for them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import should_record
from clbench.methods.replay import Rehearsal
from clbench.training.batches import Batch
from clbench.training.stage import Stage


class DerPlusPlus(Rehearsal):
    """DER++: replay that also preserves the outputs for rows in the memory.

    Loss = loss of the batch + α · mean squared difference between current and stored
    outputs + β · loss on labels, each on its own draw from the memory (Buzzega et
    al. 2020, equation 6; the mean is over rows and outputs, as in the authors' code).
    See `Rehearsal` for the settings of the memory.

    Outputs are stored without dropout when a row's stage ends, because task boundaries are
    known here; the paper, written for streams without boundaries, stores them during training.

    Attributes
    ----------
    alpha, beta
        Weights of the terms for outputs and for labels; β = 0 is DER.
    """

    name: ClassVar[str] = "der++"
    alpha: Annotated[float, Field(gt=0.0)] = 0.1
    beta: Annotated[float, Field(ge=0.0)] = 0.5

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Return the loss of the batch and both terms on the memory."""
        total = stage.loss(batch)
        if not self.kept:
            return total
        distance = self._distance(stage)
        if should_record(stage):
            stage.record("outputs_distance", distance)
        total = total + self.alpha * distance
        if self.beta > 0:
            total = total + self.beta * self.memory_loss(stage, self.draw(stage, "labels"))
        return total

    def after_stage(self, stage: Stage) -> None:
        """Fill the memory, and store the model's outputs for the new rows."""
        super().after_stage(stage)
        entry = self.kept[stage.index]
        if len(entry["positions"]):
            rows = stage.data.rows.take(entry["positions"])
            outputs = stage.outputs(replace(stage.data, rows=rows))
            entry["outputs"] = torch.from_numpy(outputs).to(stage.device)

    def _distance(self, stage: Stage) -> Tensor:
        """Return the mean squared difference to the stored outputs of drawn rows, a scalar."""
        terms = []
        for part in self.draw(stage, "outputs"):
            stored = self.kept[part.batch.task]["outputs"]
            target = stored[torch.from_numpy(part.indices).to(stored.device)]
            outputs = stage.logits(part.batch)[..., : target.shape[-1]]  # a head may have grown
            outputs, target = (part.batch.predictions(values) for values in (outputs, target))
            terms.append(nn.functional.mse_loss(outputs, target) * part.share)
        return torch.stack(terms).sum()
