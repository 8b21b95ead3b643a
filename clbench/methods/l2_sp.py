"""L2-SP: weight decay towards the starting point instead of towards zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field

from clbench.methods.quadratic import PullingMethod, QuadraticPull

if TYPE_CHECKING:
    from clbench.training.stage import Context, Stage

Strength = Annotated[float, Field(ge=0.0, le=1e6)]


class L2SP(PullingMethod):
    """Pull pretrained weights towards their starting point and new heads towards zero.

    Adds the gradient of ``α/2·‖θ − θ0‖² + β/2·‖θ_new‖²`` (Li, Grandvalet & Davoine 2018,
    section 3), for biases and normalisation too. A head has no pretrained weights, so the
    head in training counts as new, even where tasks share it.

    Attributes
    ----------
    alpha
        Strength on weights that have a starting point.
    beta
        Strength on the head in training.
    anchor
        θ0: the ``pretrained`` weights, or the ``previous`` ones, with which the stage
        begins. With ``previous``, a head that an earlier task trained has a starting point too.
    """

    name: ClassVar[str] = "l2-sp"
    runs_in_trainer: ClassVar[bool] = True
    alpha: Strength = 0.01
    beta: Strength = 0.01
    anchor: Literal["pretrained", "previous"] = "pretrained"

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights."""
        if self.anchor == "pretrained":
            self._pretrained = context.snapshot()

    def pull(self, stage: Stage) -> QuadraticPull:
        """Return the pull: towards θ0, or towards 0 for a new head."""
        if self.anchor == "pretrained":
            start = dict(self._pretrained)
        else:
            start = stage.snapshot(stage.shared_names())
        strength = dict.fromkeys(start, self.alpha)
        weights = dict(stage.model.named_parameters())
        for name in stage.model.head_parameter_names(stage.data.head):
            if name not in start:
                start[name] = torch.zeros_like(weights[name])
                strength[name] = self.beta
        importance = {
            name: torch.tensor(value, device=stage.device) for name, value in strength.items()
        }
        return QuadraticPull(stage.model, start, importance, strength=1.0, half=True)
