"""A learning rate for each depth (Kenneweg et al. 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from clbench.errors import SettingsError
from clbench.methods.base import Method
from clbench.models.groups import Division, lr_groups

if TYPE_CHECKING:
    from clbench.training.protocol import Protocol
    from clbench.training.stage import Stage

Rates = Annotated[list[Annotated[float, Field(gt=0.0, le=1.0)]], Field(min_length=3)]
Multiples = Annotated[list[Annotated[float, Field(gt=0.0, le=1e6)]], Field(min_length=3)]


class Layerwise(Method):
    """Fine-tune each depth of the model at a rate of its own (Kenneweg et al. 2022).

    The first rate is for the embeddings, the last for the head and whatever else is
    neither embedding nor layer, those between for groups of layers from the bottom up;
    ten make the groups of the paper (section 3.1). The curves ``rate.embeddings``,
    ``rate.layers.1`` … and ``rate.head`` say at which rates a stage was trained.

    Attributes
    ----------
    rates
        Absolute rates, at least three.
    multiples
        The same as multiples of the protocol's flat rate, so that a distribution keeps its
        meaning at another one. Give either `rates` or `multiples`.
    depth
        Number of layers of the model that the distribution was found on. A model of another
        depth gets it by relative position, a rate a layer (geometric means; see
        `clbench.models.groups.transfer_rates`); ALBERT, whose layers share their weights, gets
        one for all of them. None divides the model's own layers, whatever their number.
    division
        How layers are put into groups: as in the authors' ``code`` or as in the ``paper``'s
        text; see `clbench.models.groups.divide_layers`.

    Raises
    ------
    SettingsError
        If neither or both of `rates` and `multiples` are given, or a rate comes to above 1.
    """

    name: ClassVar[str] = "layerwise"
    rates: Rates | None = None
    multiples: Multiples | None = None
    depth: Annotated[int, Field(ge=1)] | None = None
    division: Division = "code"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if (self.rates is None) == (self.multiples is None):
            given = "both" if self.rates is not None else "neither"
            raise SettingsError(
                f"rates (absolute) or multiples (of the flat rate) must be "
                f"given, and {given} are. The published ones are the baseline bertcl-combined."
            )

    def check_protocol(self, protocol: Protocol) -> None:
        """Refuse multiples that come to a rate above 1."""
        largest = max(self.multiples or [0.0])
        if largest * protocol.lr > 1.0:
            raise SettingsError(
                f"multiples: {largest:g} times the flat rate of {protocol.lr:g} is a rate of "
                f"{largest * protocol.lr:g}, above 1. Lower it."
            )

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """The groups of the weights that the stage trains, from the embeddings to the head."""
        flat = stage.protocol.lr
        rates = self.rates or [flat * multiple for multiple in self.multiples or []]
        trained = {id(parameter) for parameter in stage.trainable()}
        groups = lr_groups(stage.model, rates, division=self.division, depth=self.depth)
        for group in groups:
            group["params"] = [p for p in group["params"] if id(p) in trained]
            stage.record(f"rate.{group['name']}", group["lr"])
        return [group for group in groups if group["params"]]
