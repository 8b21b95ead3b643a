"""Prototypes: nearest class mean on frozen features, without training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.core.errors import SettingsError
from clbench.methods.base import Phase
from clbench.methods.controls import Frozen

if TYPE_CHECKING:
    from clbench.training.batches import Batch
    from clbench.training.stage import Context, Stage

NEVER = -1e30
"""Bias of a class without rows so far, which is never the answer."""


class Prototypes(Frozen):
    """Answer with the class whose mean is nearest among the frozen pretrained features.

    A stage is one pass over its rows, without a gradient. It adds to running sums, from which
    follow the mean μ_c of each class of each head, and one covariance Σ for all of them: that of
    the rows around their class means, over all tasks so far. The nearest mean by Mahalanobis
    distance has the largest ``w_c·x + b_c`` with ``w_c = Σ⁻¹μ_c`` and ``b_c = −½ μ_cᵀΣ⁻¹μ_c``,
    which become rows of the head (linear discriminant analysis with equal priors, as in deep
    SLDA: Hayes & Kanan 2020, section 3). So the order of the tasks does not matter, and earlier
    heads are rewritten as Σ changes.

    For multiple choice, right and wrong choices are two classes, and the head holds the
    difference of their rows. A regression head holds the least-squares solution, with the same
    shrinkage of the covariance of its own rows. There is no rate, and the curve of the loss
    stays 0.

    Attributes
    ----------
    shrinkage
        ρ in ``(1 − ρ)·Σ + ρ·m·I``, with m the mean variance. ``oas`` chooses it by the number of
        rows and Σ (oracle approximating shrinkage; Chen et al. 2010, equation 23).
    """

    name: ClassVar[str] = "prototypes"
    head_kinds: ClassVar[tuple[str, ...]] = ("classification",)
    shrinkage: Annotated[float, Field(gt=0.0, le=1.0)] | Literal["oas"] = "oas"

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        if (self.lr, self.lr_multiple) != (None, 1.0):
            raise SettingsError(
                "lr and lr_multiple have no effect on prototypes, which are computed. Remove them."
            )

    def setup(self, context: Context) -> None:
        """Freeze the backbone; start with empty sums."""
        super().setup(context)
        self._classifier = context.model
        self.moment: Tensor | float = 0.0
        self.sums: dict[str, dict[str, Tensor]] = {}

    def phases(self, stage: Stage) -> Sequence[Phase]:
        """Return one pass over the rows."""
        return [Phase("sums", steps=stage.epoch_steps)]

    def parameter_groups(self, stage: Stage) -> list[dict[str, Any]]:
        """Return the head's weights, which no step changes."""
        return [{"params": stage.trainable(), "lr": 0.0}]

    def loss(self, stage: Stage, batch: Batch) -> Tensor:
        """Add the features of a batch to the sums; return 0."""
        with torch.no_grad(), stage.precision.autocast():
            features = stage.model.features(batch.inputs)
        self.add(batch, features.cpu().double())
        return stage.trainable()[0].sum() * 0.0

    def add(self, batch: Batch, features: Tensor) -> None:
        """Add features, shape (b, h), or (b, k, h) for k choices, float64, to the sums."""
        labels, head = batch.labels.cpu(), batch.head
        if batch.regression:
            columns = torch.stack([torch.ones_like(labels), labels], dim=1).double()
        elif features.dim() == 3:
            right = nn.functional.one_hot(labels, features.shape[1]).flatten()
            features, columns = features.flatten(0, 1), nn.functional.one_hot(right, 2).double()
        else:
            outputs = self._layer(head).out_features
            columns = nn.functional.one_hot(labels, outputs).double()
        new = {"weights": columns.sum(0), "features": columns.T @ features}
        moment = features.T @ features
        if batch.regression:
            new["moment"] = moment
        else:
            self.moment = self.moment + moment
        sums = self.sums.setdefault(head, {name: torch.zeros_like(v) for name, v in new.items()})
        for name, value in new.items():
            sums[name] += value

    @torch.no_grad()
    def after_stage(self, stage: Stage) -> None:
        """Write all heads so far."""
        for head, (weight, bias) in self.solve().items():
            layer = self._layer(head)
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)

    def solve(self) -> dict[str, tuple[Tensor, Tensor]]:
        """Return weight, shape (outputs, h), and bias, shape (outputs,), of each head so far."""
        classes = {head: sums for head, sums in self.sums.items() if "moment" not in sums}
        solved = {head: self._regression(s) for head, s in self.sums.items() if "moment" in s}
        if not classes:
            return solved
        scatter, rows = torch.as_tensor(self.moment), 0.0
        for sums in classes.values():
            scatter = scatter - sums["features"].T @ _means(sums)
            rows += float(sums["weights"].sum())
        covariance = shrink(scatter / rows, rows, self.shrinkage)
        for head, sums in classes.items():
            means = _means(sums)
            weight = torch.linalg.solve(covariance, means.T).T
            bias = -0.5 * (weight * means).sum(1)
            if self._layer(head).out_features == 1:  # multiple choice: a wrong one, a right one
                weight, bias = weight[1:] - weight[:1], bias[1:] - bias[:1]
            else:
                bias = bias.masked_fill(sums["weights"] == 0, NEVER)
            solved[head] = weight, bias
        return solved

    def _regression(self, sums: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        rows = sums["weights"][0]
        mean, target = sums["features"][0] / rows, sums["weights"][1] / rows
        covariance = sums["moment"] / rows - torch.outer(mean, mean)
        joint = sums["features"][1] / rows - target * mean
        weight = torch.linalg.solve(shrink(covariance, float(rows), self.shrinkage), joint)
        return weight[None], (target - weight @ mean)[None]

    def _layer(self, head: str) -> nn.Linear:
        layer = self._classifier.head(head)
        assert isinstance(layer, nn.Linear)
        return layer


def _means(sums: dict[str, Tensor]) -> Tensor:
    """Return the mean features of each class, shape (classes, h); 0 for a class without rows."""
    return sums["features"] / sums["weights"].clamp(min=1.0)[:, None]


def shrink(covariance: Tensor, rows: float, shrinkage: float | Literal["oas"]) -> Tensor:
    """Return a covariance of shape (h, h), estimated from `rows` rows, shrunk towards m·I.

    m is the mean variance. Without any variance the result is I.
    """
    size = len(covariance)
    identity = torch.eye(size, dtype=covariance.dtype)
    trace = float(covariance.trace())
    if trace <= 0.0:
        return identity
    if shrinkage == "oas":
        squares = float(covariance.square().sum())
        spread = (rows + 1 - 2 / size) * (squares - trace**2 / size)
        excess = (1 - 2 / size) * squares + trace**2
        shrinkage = 1.0 if excess >= spread else excess / spread
    return (1 - shrinkage) * covariance + shrinkage * trace / size * identity
