"""WiSE-FT: average the weights before and after a stage (Wortsman et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar

import torch
from pydantic import Field

from clbench.methods.base import Method
from clbench.models.groups import depth_positions

if TYPE_CHECKING:
    from clbench.models.classifier import Classifier
    from clbench.training.stage import Stage

Share = Annotated[float, Field(ge=0.0, le=1.0)]


class WiseFT(Method):
    """Fine-tune as vanilla; then average the shared weights with those before the stage.

    After every stage but the first, w becomes (1 − `alpha`)·before + `alpha`·after (Wortsman et
    al. 2022, section 3), for all weights that earlier tasks trained too: the backbone, and the head
    if an earlier task shares it. A new head, and the new classes of a head that grows, keep their
    trained weights, since before the stage they were random. The next stage starts from the
    average.

    Attributes
    ----------
    alpha
        Share of the trained weights; 1 is vanilla, 0 undoes the stage except for a new head. One
        number for all weights, as in the paper, or a list by depth of at least three: for the
        embeddings, for groups of layers from the bottom up, and for the head and whatever is
        neither embedding nor layer, divided as by `clbench.models.groups.divide_layers`.
    first
        Whether the first stage is averaged too, with the pretrained weights, as in the paper: for
        what is kept of the pretraining.
    """

    name: ClassVar[str] = "wise-ft"
    control: ClassVar[bool] = True
    only_consolidates: ClassVar[bool] = True
    alpha: Share | Annotated[list[Share], Field(min_length=3)] = 0.5
    first: bool = False

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, before which no task was learned, unless `first`."""
        shares = self.alpha if isinstance(self.alpha, list) else [self.alpha]
        return (index > 0 or self.first) and min(shares) < 1.0

    def before_stage(self, stage: Stage) -> None:
        """Keep the shared weights."""
        self.before = stage.snapshot(stage.shared_names())

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Average the shared weights; those that did not change stay equal in every bit."""
        if not self.acts_in(stage.index):
            return
        weights, alphas = dict(stage.model.named_parameters()), self._alphas(stage.model)
        head = set(stage.model.head_parameter_names(stage.data.head))
        old_classes = stage.shown_before.get(stage.data.head)
        for name, before in self.before.items():
            old = slice(old_classes) if name in head else ...
            after = weights[name][old]
            after.copy_(before[old].lerp(after, alphas[name]))
        self.before = {}

    def _alphas(self, model: Classifier) -> dict[str, float]:
        """Return the share of the trained weights for each parameter, by its name."""
        layers = model.layer_groups()
        shares = self.alpha if isinstance(self.alpha, list) else [self.alpha] * 3
        positions = depth_positions(len(layers) - 2, len(shares))
        return {
            name: shares[positions[layer.name]] for layer in layers for name in layer.parameters
        }
