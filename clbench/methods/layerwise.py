"""A learning rate for each depth (Kenneweg et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from clbench.core.errors import SettingsError
from clbench.methods.base import LearningRate, Method
from clbench.models.groups import MOST_LAYERS, Division, lr_groups

if TYPE_CHECKING:
    from clbench.training.stage import Stage

Rates = Annotated[list[LearningRate], Field(min_length=3)]
Multiples = Annotated[list[Annotated[float, Field(gt=0.0, le=1e6)]], Field(min_length=3)]


class Layerwise(Method):
    """Fine-tune each depth of the model at its own rate (Kenneweg et al. 2022).

    The first rate is for the embeddings, the next ones for groups of layers from the bottom
    up, the last for the head and whatever is neither embedding nor layer. Ten rates give the
    groups of the paper (section 3.1). The curves ``rate.embeddings``, ``rate.layers.1`` …
    and ``rate.head`` show the rates of each stage.

    Attributes
    ----------
    rates
        Absolute rates, at least three.
    multiples
        Rates as multiples of the protocol's flat rate, so that a distribution carries over to
        another flat rate. Set either `rates` or `multiples`.
    depth
        Number of layers of the model that the distribution was found on. A model of another
        depth gets one rate per layer, by relative position (geometric means; see
        `clbench.models.groups.transfer_rates`); ALBERT, whose layers share their weights, gets
        one for all of them. None divides the model's own layers, whatever their number.
    division
        How layers are grouped: as in the authors' ``code`` or as in the ``paper``'s
        text; see `clbench.models.groups.divide_layers`.

    Raises
    ------
    SettingsError
        If neither or both of `rates` and `multiples` are set, or absolute rates and a flat one.
    """

    name: ClassVar[str] = "layerwise"
    runs_in_trainer: ClassVar[bool] = True
    rates: Rates | None = None
    multiples: Multiples | None = None
    depth: Annotated[int, Field(ge=1, le=MOST_LAYERS)] | None = None
    division: Division = "code"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if (self.rates is None) == (self.multiples is None):
            raise SettingsError(
                "layerwise needs either rates (absolute) or multiples (of the flat rate). "
                "The baseline bertcl-combined has the published multiples."
            )
        if self.rates is not None and (self.lr, self.lr_multiple) != (None, 1.0):
            raise SettingsError(
                "lr and lr_multiple have no effect on rates (absolute). Use multiples."
            )

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return groups of the weights that the stage trains, from the embeddings to the head."""
        flat = stage.protocol.lr
        rates = self.rates or [flat * multiple for multiple in self.multiples or []]
        trained = {id(parameter) for parameter in stage.trainable()}
        groups = lr_groups(stage.model, rates, division=self.division, depth=self.depth)
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) in trained]
            stage.record(f"rate.{group['name']}", group["lr"])
        return [group for group in groups if group["params"]]
