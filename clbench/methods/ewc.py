"""Elastic weight consolidation: hold the weights that earlier tasks need, also along other axes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from clbench.fisher.diagonal import Mode, diagonal_fisher
from clbench.fisher.losses import AnyBatch, take, task_loss
from clbench.fisher.squares import Rotation, rotate
from clbench.methods.quadratic import PullingMethod, QuadraticPull
from clbench.methods.selection import linear_layers, matrices
from clbench.training.batches import Batch
from clbench.training.context import Snapshot
from clbench.training.stage import Stage


class EWC(PullingMethod):
    """Pull towards the weights after each earlier task, weighted by Fisher information (EWC).

    From the second stage on, adds ``f·importance·Σ_j Σ F_j (θ − θ_j*)²`` with θ_j* the
    weights after task j and F_j the diagonal Fisher information of its loss there, over
    its training rows (Kirkpatrick et al. 2017, eq. 3, and its footnote on several
    penalties). F is the mean over rows of squared gradients of a row's loss, not normalised
    further, so an importance value is meaningful only together with `mode` and `half`. The
    penalties are stored as one: the F_j are added, and the common anchor is the mean of the
    θ_j* weighted by F_j, which has the same gradient.

    Attributes
    ----------
    importance
        λ. Not portable between data sets or code bases.
    half
        Whether the penalty has the factor f = ½, as in eq. 3; else f = 1.
    mode
        ``sampled``: labels drawn from the model, row by row (the Fisher information; for answers
        of m tokens, whose loss is a mean, 1/m² of it);
        ``empirical``: the true labels; ``batched``: squared gradients of batches of
        the protocol's size, smaller by about that size (van de Ven 2025).
    examples
        Largest number of rows to compute F from; None takes all.
    """

    name = "ewc"
    holds_head = True
    runs_in_trainer = True
    takes_fisher = True
    importance: Annotated[float, Field(gt=0.0, le=1e12)] = 1000.0
    half: bool = True
    mode: Mode = "sampled"
    examples: Annotated[int, Field(ge=1)] | None = 2000

    def acts_in(self, index: int) -> bool:
        """Return False for the first stage, which has no earlier task."""
        return index > 0

    def pull(self, stage: Stage) -> QuadraticPull | None:
        """Return the pull on the weights that this stage shares with earlier ones."""
        anchor: Snapshot = getattr(self, "anchor", {})
        shared = {name: anchor[name] for name in stage.shared_names() if name in anchor}
        if not shared:
            return None
        return QuadraticPull(
            stage.model,
            shared,
            self.fisher,
            strength=self.importance,
            half=self.half,
            rotations=getattr(self, "rotations", None),
        )

    def after_stage(self, stage: Stage) -> None:
        """Add the Fisher information of the task just learned, unless it is the last one."""
        super().after_stage(stage)
        if stage.index == stage.stages - 1:
            return
        if self.holds_nothing(stage) and not hasattr(self, "fisher"):  # else F still decays
            return
        names = list(stage.trainable_weights())  # head included: a later task may share it
        fisher = task_fisher(
            stage,
            names,
            mode=self.mode,
            examples=self.examples,
            rotations=self.new_axes(stage, names),
        )
        anchor = stage.snapshot(names)
        if not hasattr(self, "fisher"):
            self.fisher, self.anchor = fisher, anchor
        else:
            self._add(fisher, anchor)

    def new_axes(self, stage: Stage, names: list[str]) -> Mapping[str, Rotation]:
        """Return the axes of the matrices among `names` along which F is to be diagonal."""
        return {}

    def _add(self, fisher: dict[str, Tensor], anchor: Snapshot) -> None:
        """Add a task's Fisher information; move the anchor to the weighted mean."""
        for name, value in fisher.items():
            if name not in self.fisher:
                self.fisher[name], self.anchor[name] = value, anchor[name]
                continue
            total = self.fisher[name] + value
            share = torch.where(total > 0, value / total, torch.ones_like(total))
            before, after = self.anchor[name].to(share.dtype), anchor[name].to(share.dtype)
            self.anchor[name] = torch.lerp(before, after, share).to(anchor[name].dtype)
            self.fisher[name] = total


class EWCOnline(EWC):
    """Pull towards the previous task's weights, with a decaying sum of Fisher information.

    ``F ← γF + F_new``, and the anchor is the weights after the previous task (Schwarz et al.
    2018, section 4, eq. 8 and 9; Huszár 2018). There, the penalty is weighted by γF and each
    F_new is normalised first, which is left out here. F_new is 0 for a head that the task does
    not use. With two tasks it equals `ewc`.

    Attributes
    ----------
    gamma
        γ: the factor on the Fisher information of earlier tasks, 0 to 1.
    """

    name = "ewc-online"
    gamma: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0

    def _add(self, fisher: dict[str, Tensor], anchor: Snapshot) -> None:
        """Decay the sum for all weights, add a task's Fisher information and move the anchor."""
        add_decayed(self.fisher, fisher, self.gamma)
        self.anchor.update(anchor)


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

    def new_axes(self, stage: Stage, names: list[str]) -> Mapping[str, Rotation]:
        """Return the rotation of each dense layer's matrix; carry earlier tasks' F over to it."""
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
        before: dict[str, Rotation] = getattr(self, "rotations", {})
        for name in axes.keys() & before.keys():
            self.fisher[name] = carry_over(self.fisher[name], before[name], axes[name])
        self.rotations = before | axes
        return axes


def add_decayed(totals: dict[str, Tensor], new: Mapping[str, Tensor], gamma: float) -> None:
    """Multiply all `totals` by `gamma`, then add the `new` values to those of the same names."""
    for total in totals.values():
        total.mul_(gamma)
    for name, value in new.items():
        totals[name] = totals[name] + value if name in totals else value


def task_fisher(
    stage: Stage,
    names: Sequence[str],
    *,
    mode: Mode,
    examples: int | None,
    rotations: Mapping[str, Rotation] | None = None,
) -> dict[str, Tensor]:
    """Return the diagonal Fisher information of a stage's loss for weights by name.

    It is computed from at most `examples` of the stage's own rows, drawn at random; None takes all.
    See `diagonal_fisher` for the modes and rotations.
    """
    return diagonal_fisher(
        stage.model,
        fisher_rows(stage, examples),
        "task",
        mode,
        generator=stage.rng("fisher-labels"),
        names=names,
        precision="bf16" if stage.precision.name == "bf16" else "float32",
        rotations=rotations,
    )


def fisher_rows(stage: Stage, examples: int | None) -> Iterator[AnyBatch]:
    """Yield batches of at most `examples` of the stage's own rows, in random order."""
    remaining = examples or len(stage.data.rows)
    for batch in stage.batches("fisher-rows"):
        yield batch if len(batch) <= remaining else take(batch, list(range(remaining)))
        remaining -= len(batch)
        if remaining <= 0:
            return


def carry_over(fisher: Tensor, before: Rotation, after: Rotation) -> Tensor:
    """Return the diagonal along new axes of a Fisher information that is diagonal along old ones.

    `fisher` has the shape (o, i) of the matrix, as has the result.
    """
    left, right = (
        None if new is None or old is None else (new.T @ old).square().T
        for old, new in zip(before, after, strict=True)
    )
    return rotate(fisher, (left, right))


def dense_layers(stage: Stage, names: Iterable[str]) -> dict[str, Any]:
    """Return the backbone's dense layers by the names of their weights, which are in `names`.

    Without weights that are embeddings too.
    """
    own = matrices(stage.model)
    owners = {id(own[name]): name for name in names if name in own}
    layers: list[Any] = list(linear_layers(stage.model).values())
    return {owners[id(x.weight)]: x for x in layers if id(x.weight) in owners}


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
