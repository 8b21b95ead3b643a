"""Rotated elastic weight consolidation: EWC along the axes of each layer's signals."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from clbench.fisher.losses import task_loss
from clbench.fisher.squares import Rotation, rotate, rotate_back
from clbench.methods.ewc import EWCOnline, fisher_rows
from clbench.methods.quadratic import QuadraticPull
from clbench.training.batches import Batch
from clbench.training.stage import Stage


class REWC(EWCOnline):
    """EWC in coordinates in which the Fisher information is closer to diagonal (R-EWC).

    Each weight matrix W of the backbone is seen as UᵀWV, with V the eigenvectors of the second
    moment of the layer's inputs, and U those of the loss gradients at its outputs, both after
    the task just learned (Liu et al. 2018, section III, which takes them from an SVD). The
    penalty is ``f·importance·Σ F (Uᵀ(W − W*)V)²``, with F the diagonal Fisher information of
    UᵀWV. The model itself stays as it is: the paper's fixed layers U and V around the trained
    one give the same function and gradient flow, but change what Adam sees. Biases, norms,
    embeddings and heads keep their own coordinates (the paper's head does too).

    For the third task on, the sum F of earlier tasks is carried over into the new axes: its
    diagonal there is (A∘A)·F·(B∘B)ᵀ, with A and B the old axes in terms of the new ones, and ∘
    the product entry by entry. The authors' code keeps the last task's penalty only, as does
    ``gamma = 0``. See `EWCOnline` for the other settings.

    Attributes
    ----------
    sides
        ``both``: the paper's. ``narrow`` rotates only the smaller side of a matrix that is not
        square. The larger one of a feed-forward layer takes four times the layer's memory.
    """

    name = "r-ewc"
    runs_in_trainer = False
    takes_fisher = False
    sides: Literal["narrow", "both"] = "narrow"

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """Return the pull on the weights that this stage shares with earlier ones."""
        shared = self._shared_anchor(stage)
        if not shared:
            return None
        return RotatedPull(
            stage.model,
            shared,
            self.fisher,
            self.rotations,
            strength=self.importance,
            half=self.half,
        )

    def _fisher(
        self, stage: Stage, names: list[str], rotations: Mapping[str, Rotation] | None = None
    ) -> dict[str, Tensor]:
        """Return the Fisher information along new axes; carry that of earlier tasks over."""
        axes = self._axes(stage, names)
        before: dict[str, Rotation] = getattr(self, "rotations", {})
        for name in axes.keys() & before.keys():
            self.fisher[name] = carry_over(self.fisher[name], before[name], axes[name])
        self.rotations = before | axes
        return super()._fisher(stage, names, axes)

    def _axes(self, stage: Stage, names: list[str]) -> dict[str, Rotation]:
        """Return the rotation of each matrix of a dense layer of the backbone."""
        axes: dict[str, Rotation] = {}
        layers = dense_layers(stage, names)
        rng = stage.rng("axes-labels") if self.mode == "sampled" else None
        for name, moments in second_moments(
            stage, layers, fisher_rows(stage, self.examples), rng
        ).items():
            smaller = min(map(len, moments))
            left, right = (
                torch.linalg.eigh(moment)[1]
                if self.sides == "both" or len(moment) == smaller
                else None
                for moment in moments
            )
            axes[name] = left, right
        return axes


class RotatedPull(QuadraticPull):
    """A quadratic pull along the axes of some matrices.

    Parameters
    ----------
    rotations
        Rotations of matrices by name; for these, `importance` is along their axes.
    """

    def __init__(
        self,
        model: nn.Module,
        anchor: Mapping[str, Tensor],
        importance: Mapping[str, Tensor],
        rotations: Mapping[str, Rotation],
        *,
        strength: float,
        half: bool,
    ) -> None:
        plain = {name: value for name, value in anchor.items() if name not in rotations}
        super().__init__(model, plain, importance, strength=strength, half=half)
        parameters = dict(model.named_parameters())
        self._rotated = [
            (parameters[name], anchor[name], importance[name], rotation)
            for name, rotation in rotations.items()
            if name in anchor
        ]

    @torch.no_grad()
    def edit_gradients(self, stage: Stage | None = None) -> None:
        """Add the pull to the gradients; call it in the method's hook of the same name."""
        super().edit_gradients(stage)
        for weight, anchor, importance, rotation in self._rotated:
            if weight.requires_grad:
                if weight.grad is None:
                    weight.grad = torch.zeros_like(weight)
                difference = rotate(weight - anchor, rotation)
                pull = rotate_back(importance * difference, rotation)
                weight.grad.add_(pull, alpha=self._scale)

    @torch.no_grad()
    def value(self) -> Tensor:
        """Return the current penalty, a float32 scalar without a graph."""
        total = super().value()
        for weight, anchor, importance, rotation in self._rotated:
            squares = rotate(weight - anchor, rotation).square()
            total = total + (importance * squares).sum() * (self._scale / 2)
        return total


def carry_over(fisher: Tensor, before: Rotation, after: Rotation) -> Tensor:
    """Return the diagonal along new axes of a Fisher information that is diagonal along old ones.

    `fisher` has the shape (o, i) of the matrix, as has the result.
    """
    left, right = (
        None if new is None or old is None else (new.T @ old).square().T
        for old, new in zip(before, after, strict=True)
    )
    return rotate(fisher, (left, right))


def dense_layers(stage: Stage, names: Iterable[str]) -> dict[str, nn.Module]:
    """Return the backbone's dense layers by the names of their weights, which are in `names`.

    Without weights that are embeddings too.
    """
    allowed = set(names) & stage.model.backbone_parameters().keys()
    owners = {id(p): name for name, p in stage.model.named_parameters() if name in allowed}
    layers: dict[str, nn.Module] = {}
    for layer in stage.model.modules():
        name = owners.get(id(getattr(layer, "weight", None)))
        if name is None:
            continue
        if isinstance(layer, nn.Embedding):
            del owners[id(layer.weight)]
            layers.pop(name, None)
        elif type(layer) is nn.Linear or type(layer).__name__ == "Conv1D":
            layers[name] = layer
    return layers


def second_moments(
    stage: Stage,
    layers: Mapping[str, nn.Module],
    batches: Iterable[Any],
    rng: torch.Generator | None,
) -> dict[str, tuple[Tensor, Tensor]]:
    """Return the second moments of the signals at both sides of each layer's weight.

    Parameters
    ----------
    layers
        By the names of their weights.
    batches
        Batches of the stage's rows.
    rng
        Draws the labels from the model; None takes the true ones.

    Returns
    -------
    dict of tuple of Tensor
        For a weight of shape (o, i) sums of shape (o, o) and (i, i) over the tokens that the loss
        depends on: of the outputs' gradients and of the inputs (the other way round in GPT-2's
        transposed layers). Layers that the model does not call are left out.
    """
    stage.model.eval()
    sums: dict[str, tuple[Tensor, Tensor]] = {}
    for batch in batches:
        for name, inputs, gradient in signals(stage, layers, batch, rng):
            depends = (gradient != 0).any(1, keepdim=True)
            moments = gradient.T @ gradient, (inputs * depends).T @ inputs
            if not isinstance(layers[name], nn.Linear):
                moments = moments[1], moments[0]
            if name in sums:
                moments = sums[name][0] + moments[0], sums[name][1] + moments[1]
            sums[name] = moments
    return sums


def signals(
    stage: Stage, layers: Mapping[str, nn.Module], batch: Batch, rng: torch.Generator | None
) -> list[tuple[str, Tensor, Tensor]]:
    """Return the name, inputs (n, i) and output gradients (n, o) of every call of a layer.

    The n are the tokens of all rows; both are float32.
    """
    calls: list[tuple[str, Tensor, Tensor]] = []

    def record(name: str, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        calls.append((name, inputs[0].detach(), output))

    handles = [layer.register_forward_hook(partial(record, name)) for name, layer in layers.items()]
    try:
        with torch.enable_grad(), stage.precision.autocast():
            outputs = task_loss(stage.model, batch)
            losses = outputs if rng is None else outputs.sample_labels(rng)
            loss = losses.losses().sum()
    finally:
        for handle in handles:
            handle.remove()
    gradients = torch.autograd.grad(loss, [output for _, _, output in calls], allow_unused=True)
    return [
        (name, inputs.flatten(0, -2).float(), gradient.flatten(0, -2).float())
        for (name, inputs, _), gradient in zip(calls, gradients, strict=True)
        if gradient is not None
    ]
