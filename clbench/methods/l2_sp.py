"""L2-SP: weight decay towards the starting point instead of towards zero."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from clbench.errors import SettingsError
from clbench.methods.quadratic import PullingMethod, QuadraticPull

if TYPE_CHECKING:
    from torch import Tensor

    from clbench.training.stage import Context, Stage

Strength = Annotated[float, Field(ge=0.0, le=1e6)]


class L2SP(PullingMethod):
    """Pull the pretrained weights towards where they started and new heads towards zero.

    Adds ``α/2·‖θ − θ0‖² + β/2·‖θ_new‖²`` to the loss (Li, Grandvalet & Davoine 2018,
    section 3), biases and normalisation included, by its gradient. A head has no
    pretrained weights, so the head in training counts as new, also where tasks share it.

    Attributes
    ----------
    alpha
        Strength on weights that have a starting point.
    beta
        Strength on the head in training.
    anchor
        θ0: the ``pretrained`` weights, or the ``previous`` ones, with which the stage
        began; a head that an earlier task trained then has a starting point too.

    Raises
    ------
    SettingsError
        If both strengths are 0.
    """

    name: ClassVar[str] = "l2-sp"
    alpha: Strength = 0.01
    beta: Strength = 0.01
    anchor: Literal["pretrained", "previous"] = "pretrained"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if self.alpha == 0.0 and self.beta == 0.0:
            raise SettingsError(
                "method 'l2-sp': alpha and beta are both 0, so nothing is added to the loss. "
                "Give one of them, or use vanilla."
            )

    def setup(self, context: Context) -> None:
        """Keep the pretrained weights."""
        if self.anchor == "pretrained":
            self._pretrained = context.snapshot()

    def pull(self, stage: Stage) -> QuadraticPull:
        """The pull towards the starting points, and of a new head towards 0."""
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
        importance: dict[str, Tensor] = {
            name: torch.tensor(value, device=stage.device) for name, value in strength.items()
        }
        return QuadraticPull(
            stage.model, start, importance, strength=1.0, half=True, name=self.name
        )
