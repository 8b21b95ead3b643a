"""Learning without forgetting: the old heads' answers to the new rows are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.methods.base import Method

if TYPE_CHECKING:
    from clbench.training.batches import Batch
    from clbench.training.stage import Stage

POINTS = 30
"""Points of the distillation's curve in a stage, at most."""


class LwF(Method):
    """Keep what the earlier heads say about the new rows while the new task is learned.

    When a stage begins, every earlier head answers for all of its rows, once, without
    dropout. While training, the loss gets for each of these heads the divergence of its
    answers now from those, both softened by a temperature (Li & Hoiem 2016, section 3):
    ``KL(softmax(z_then/T) ‖ softmax(z_now/T))``, which is the paper's cross-entropy less
    the entropy of the target and so has the same gradient; for a regression head the mean
    squared difference. It has no factor T². The earlier heads go on being trained, as in
    the paper; a head that all tasks share is held to its own answers. The paper's warm-up
    of the new head alone is left out.

    Attributes
    ----------
    temperature
        T.
    weight
        Weight of each earlier head's term beside the task's loss (λ_o).
    """

    name: ClassVar[str] = "lwf"
    temperature: Annotated[float, Field(gt=0.0, le=1e3)] = 2.0
    weight: Annotated[float, Field(gt=0.0, le=1e6)] = 1.0

    def acts_in(self, index: int) -> bool:
        """There is nothing to keep in the first stage."""
        return index > 0

    def before_stage(self, stage: Stage) -> None:
        """Ask every earlier head about the stage's rows."""
        earlier = stage.tasks[: stage.index]
        self._regression = {task.head: task.regression for task in earlier}
        self._answers = {head: _answers(stage, head) for head in self._regression}

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """The stage's weights and the earlier heads, at the flat rate."""
        trained = stage.trainable()
        weights = dict(stage.model.named_parameters())
        heads = [head for head in self._answers if head not in stage.heads]
        names = [name for head in heads for name in stage.model.head_parameter_names(head)]
        trained += [weights[name] for name in names if weights[name].requires_grad]
        return [{"params": trained, "lr": stage.protocol.lr}]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """The task's loss and the earlier heads' terms, from one pass through the backbone."""
        outputs = _all_outputs(stage, batch, {batch.head, *self._answers})
        loss = stage.criterion(outputs[batch.head], batch)
        if not self._answers:
            return loss
        rows = torch.from_numpy(batch.positions).to(stage.device, non_blocking=True)
        terms = [
            distillation(
                outputs[head],
                answers[rows],
                temperature=self.temperature,
                regression=self._regression[head],
            )
            for head, answers in self._answers.items()
        ]
        kept = torch.stack(terms).sum()
        done = stage.done_before + stage.step
        if done % -(-stage.total_steps // POINTS) == 0:
            stage.record("distillation", kept)
        return loss + self.weight * kept

    def after_stage(self, stage: Stage) -> None:
        """Let go of the answers."""
        self.__dict__.pop("_answers", None)
        self.__dict__.pop("_regression", None)


def distillation(now: Tensor, then: Tensor, *, temperature: float, regression: bool) -> Tensor:
    """How far a head's answers have moved, mean over rows; a scalar.

    Parameters
    ----------
    now, then
        Shape (b, outputs): outputs in training and when the stage began.
    temperature
        T; not used for regression.
    regression
        Squared difference in place of the divergence of softened classes.
    """
    if regression:
        return nn.functional.mse_loss(now, then)
    return nn.functional.kl_div(
        torch.log_softmax(now / temperature, dim=-1),
        torch.log_softmax(then / temperature, dim=-1),
        reduction="batchmean",
        log_target=True,
    )


def _answers(stage: Stage, head: str) -> Tensor:
    """Outputs of `head` for all rows of the stage, shape (n, outputs), on the device."""
    outputs = stage.outputs(replace(stage.data, head=head))
    return torch.from_numpy(outputs).to(stage.device)


def _all_outputs(stage: Stage, batch: Batch, heads: set[str]) -> dict[str, Tensor]:
    """Outputs of several heads on one batch, each of shape (b, outputs), float32."""
    model = stage.model
    with stage.precision.autocast():
        pooled = model.dropout(model.features(batch.inputs))
        return {head: model.head(head)(pooled).float() for head in sorted(heads)}
