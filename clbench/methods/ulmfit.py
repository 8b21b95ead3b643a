"""ULMFiT's fine-tuning: rates by layer, unfreezing from the top, a slanted triangle."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from clbench.methods.base import Method

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from clbench.training.stage import Stage


class Ulmfit(Method):
    """Train from the head downwards: lower layers join later and at lower rates.

    The three parts of Howard & Ruder 2018: discriminative rates (section 3.2: each layer's
    rate is that of the layer above divided by 2.6), slanted triangular rates (equation 3)
    and gradual unfreezing (section 3.3). Groups are the head, each layer from the top down
    and the embeddings; weights that have not joined yet get neither gradient nor update.

    Attributes
    ----------
    lr
        Largest rate of the head; None takes the protocol's. The paper's 0.01 is for LSTMs.
    decay
        What the rate is divided by from one group to the next lower one.
    cut_frac
        Share of the steps in which the rates rise.
    ratio
        How much smaller the lowest rate is than the largest.
    unfreezing
        When groups join. ``epochs``: one an epoch, as in the paper; in a stage of fewer
        epochs than groups the lowest never do. ``scaled``: one each time an equal part of
        the stage has passed, which is the paper's schedule in a stage of as many epochs as
        groups. ``none``: all at once. The curve ``trained_groups`` shows it.
    """

    name: ClassVar[str] = "ulmfit"
    lr: Annotated[float, Field(gt=0.0, le=1.0)] | None = None
    decay: Annotated[float, Field(ge=1.0, le=100.0)] = 2.6
    cut_frac: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    ratio: Annotated[float, Field(ge=1.0, le=1e6)] = 32.0
    unfreezing: Literal["scaled", "epochs", "none"] = "scaled"

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Groups from the head down, each at its rate; all but the head wait frozen."""
        self._groups = depth_groups(stage)
        self._joined = 0
        self._join(1 if self.unfreezing != "none" else len(self._groups))
        top = self.lr or stage.protocol.lr
        return [
            {"params": group, "lr": top / self.decay**depth}
            for depth, group in enumerate(self._groups)
        ]

    def schedule(self, stage: Stage, optimizer: Optimizer) -> LambdaLR:
        """One slanted triangle over the phase, the same for all groups."""
        shape = partial(
            slanted_triangle, steps=stage.steps, cut_frac=self.cut_frac, ratio=self.ratio
        )
        return LambdaLR(optimizer, shape)

    def before_step(self, stage: Stage) -> None:
        """Let the groups join whose time has come."""
        due = self._due(stage)
        if due > self._joined:
            self._join(due)
            stage.model.train()  # the engine leaves dropout off where nothing is trained
        elif stage.step > 0:
            return
        stage.record("trained_groups", float(due))

    def after_stage(self, stage: Stage) -> None:
        """Leave no weight frozen, whether or not its time came."""
        groups = self.__dict__.pop("_groups", [])
        for parameter in (parameter for group in groups for parameter in group):
            parameter.requires_grad_(True)

    def _due(self, stage: Stage) -> int:
        count = len(self._groups)
        if self.unfreezing == "none":
            return count
        if self.unfreezing == "epochs":
            return min(count, 1 + stage.step // stage.epoch_steps)
        return sum(stage.step >= depth * stage.steps // count for depth in range(count))

    def _join(self, count: int) -> None:
        for depth, group in enumerate(self._groups):
            for parameter in group:
                parameter.requires_grad_(depth < count)
        self._joined = count


def depth_groups(stage: Stage) -> list[list[nn.Parameter]]:
    """The weights that the stage trains, from the head down; groups without any left out."""
    trained = {id(parameter) for parameter in stage.trainable()}
    weights = dict(stage.model.named_parameters())
    groups = [
        [weights[name] for name in group.parameters if id(weights[name]) in trained]
        for group in reversed(stage.model.layer_groups())
    ]
    return [group for group in groups if group]


def slanted_triangle(step: int, *, steps: int, cut_frac: float, ratio: float) -> float:
    """Factor on the rate: a short line up, then a long one down.

    Howard & Ruder 2018, equation 3. Where ``steps·cut_frac`` is no whole number the paper's
    line goes on below the lowest rate, down to negative ones; here it ends at the last
    step as for whole numbers.

    Parameters
    ----------
    step
        Number of the step, from 0.
    steps
        T, the number of all steps.
    cut_frac
        Share of the steps in which the rate rises; at least one step does.
    ratio
        How much smaller the lowest rate is than the largest.
    """
    cut = max(1, int(steps * cut_frac))
    rising = step < cut
    share = step / cut if rising else max(0.0, 1.0 - (step - cut) / max(1, steps - cut))
    return (1.0 + share * (ratio - 1.0)) / ratio
